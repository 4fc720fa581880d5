"""What a job elsewhere would not find: files that only this machine has, and storages that it cannot reach."""

import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from nlu.config.checks.composing import MISSING
from nlu.launching.queue import Job, QueueContext
from nlu.storage.places import address_problems, data_folder

from ._settings import PREFIX, mount_of

REMOTE = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
LOCAL_STORAGES = ("journal", "sqlite")
UNLIKE = ("trial", "resume", "mirror", "seed", "optimizer.", "scheduler.", "trainer.", "loss.", "method.")
"""keys that name no file: jobs that only differ in these are checked once"""


def problems_of_jobs(
    jobs: Sequence[Job],
    mirrors: Mapping[str, str],
    files: frozenset[str],
    within: str,
    context: QueueContext,
    mounts: Collection[str] = (),
) -> list[str]:
    """Return everything that is wrong with the jobs, each once, with the numbers of the jobs if not all have it.

    `files` are those in the archive of the code, `within` is the folder of the project in which the command was
    started, `mounts` are the paths of mounted folders.
    """
    found: dict[str, list[int]] = {}
    holders: dict[str, int] = {}
    everywhere = [
        f"--config-dir is {folder}, which does not go to a job; keep it in the project, and let git track it"
        for folder in config_dirs(context)
        if not _goes_along(folder, files, within)
    ]
    for job in jobs:
        own = [
            *everywhere,
            *_of_files_once(job, files, within, context, mounts),
            *_of_trial(job),
            *address_problems(mirrors[job.token], "mirror"),
        ]
        own += [
            "resume starts a run from a folder of this machine, which jobs do not have; name the mirror of that run"
            for text in job.overrides
            if text.startswith("resume=") and text.partition("=")[2] not in ("auto", "never")
        ]
        # Two runs with one mirror would take it from each other, and each would end the other one.
        if (other := holders.setdefault(mirrors[job.token], job.number)) != job.number:
            own.append(f"it would have the mirror of job {other}, {mirrors[job.token]}; give each job another folder")
        for problem in own:
            found.setdefault(problem, []).append(job.number)
    return [_named(problem, numbers, len(jobs)) for problem, numbers in found.items()]


_KNOWN: dict[tuple[str, tuple[str, ...]], list[str]] = {}
"""problems by the folder of the submission and the overrides that may name files, since a search submits many trials"""


def _of_files_once(
    job: Job, files: frozenset[str], within: str, context: QueueContext, mounts: Collection[str]
) -> list[str]:
    if context.compose is None:
        return []
    like = str(context.folder), tuple(text for text in job.overrides if not text.lstrip("+~").startswith(UNLIKE))
    if like not in _KNOWN:
        _KNOWN[like] = list(_of_files(context.compose(job), files, within, mounts))
    return _KNOWN[like]


def config_dirs(context: QueueContext) -> list[str]:
    """Return the folders of --config-dir, relative to the working folder."""
    return [os.path.relpath(folder) for folder in context.config_dirs]


def _named(problem: str, numbers: Sequence[int], count: int) -> str:
    if len(numbers) == count:
        return problem
    which = f"job {numbers[0]}" if len(numbers) == 1 else f"jobs {', '.join(map(str, numbers))}"
    return f"{which}: {problem}"


def _of_trial(job: Job) -> Iterator[str]:
    for text in job.overrides:
        if match := re.search(r'^trial=\{storage:"((?:[^"\\]|\\.)*)"', text):
            if match[1].partition("://")[0].partition("+")[0] in LOCAL_STORAGES:
                yield (
                    f"hydra.sweeper.storage is {match[1]}, which is a file of this machine, but trials on PAI report "
                    "by themselves; set mirror=oss://BUCKET/FOLDER, which keeps the journal there, or "
                    "hydra.sweeper.storage=postgresql://HOST/DATABASE"
                )


def _of_files(config: Mapping[str, Any], files: frozenset[str], within: str, mounts: Collection[str]) -> Iterator[str]:
    """Yield a problem for each file that a configuration names and a job would not find."""
    if "mirror" not in config:
        yield (
            "the output of this command would stay in its job: it has no key mirror; submit nlu.train, which prepares "
            f"its data itself, or name the command in {PREFIX}.before"
        )
    data = config.get("data") or {}
    urls = data.get("urls") or {}
    for key, path in named_paths(config):
        if REMOTE.match(path) or "#sha256=" in path or path in urls:
            continue
        if _goes_along(path, files, within) or mount_of(path, mounts) is not None:
            continue
        where = Path(path).expanduser() if Path(path).expanduser().exists() else data_folder() / path
        yield (
            f"{key} is {path}, which is {where} on this machine, and jobs do not have it; put it on the store (python "
            f"-m nlu.io cp) and set {key} to its address, or name it in {PREFIX}.include if it is small"
        )


def named_paths(config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the keys that name paths or addresses that a run reads, with these."""
    for name in ("train", "dev", "test"):
        source = (config.get("data") or {}).get(name)
        if isinstance(source, Mapping):
            yield from ((f"data.{name}.{label}", str(path)) for label, path in source.items())
        elif source not in (None, MISSING):
            yield from ((f"data.{name}", str(path)) for path in ([source] if isinstance(source, str) else source))
    for group, key in (("tokenizer", "vocab"), ("model", "pretrained")):
        value = (config.get(group) or {}).get(key)
        if isinstance(value, str) and value != MISSING:
            yield f"{group}.{key}", value


def _goes_along(path: str, files: frozenset[str], within: str) -> bool:
    """Whether a path leads, from the folder where a job starts, to files in the archive of the code."""
    if os.path.isabs(path) or path.startswith("~"):
        return False
    place = os.path.normpath(os.path.join(within, path.partition("#")[0]))
    # A pattern names files; any other path may also be that of a folder.
    if set(place) & set("*?["):
        from fnmatch import fnmatch

        return any(fnmatch(name, place) for name in files)
    return place in files or any(name.startswith(f"{place}/") for name in files)
