"""What a job elsewhere would not find: files that only this machine has, and storages that it cannot reach."""

import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from nlu.config.checks.composing import MISSING
from nlu.config.inference import STANDARD, scored_sets
from nlu.launching.queue import Job, QueueContext
from nlu.storage.places import address_problems, data_folder, is_object
from nlu.storage.tables import is_table

from ._command import MODULE, OUTPUT_OF, value_of
from ._settings import PREFIX, mount_of

REMOTE = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_NAMED = re.compile(r"best|last|best-\d+")
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
    output = OUTPUT_OF.get(context.module)
    for job in jobs:
        own = [*everywhere, *_of_files_once(job, files, within, context, mounts)]
        if context.module == MODULE:
            place = mirrors[job.token]
            own += [*_of_trial(job), *address_problems(place, "mirror")]
            own += [
                "resume starts a run from a folder of this machine, which jobs do not have; name the mirror of that run"
                for text in job.overrides
                if text.startswith("resume=") and text.partition("=")[2] not in ("auto", "never")
            ]
        elif output is None:
            commands = ", ".join((MODULE, *OUTPUT_OF))
            own.append(f"{context.module} cannot be submitted to PAI; submit one of {commands}")
            place = None
        else:
            place = value_of(job.overrides, output)
            own += _of_output(context.module, output, place)
            # Jobs that build parts of one store share it.
            place = None if output == "stores" else place
        # Two runs with one mirror would take it from each other, and each would end the other one.
        if place is not None and (other := holders.setdefault(place, job.number)) != job.number:
            what = output or "mirror"
            own.append(f"it would have the {what} of job {other}, {place}; give each job another folder")
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
        config = context.compose(job)
        found = list(_of_files(config, files, within, mounts))
        if context.module == "nlu.evaluate" and config.get("run") is not None:
            found = [text for text in found if _read_by_evaluation(text.partition(" ")[0], job.overrides)]
        _KNOWN[like] = found
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
    data = config.get("data") or {}
    urls = data.get("urls") or {}
    for key, path in named_paths(config):
        if path == STANDARD:
            yield f"{key} is -, but a job has no standard input; name a file on the store"
            continue
        if REMOTE.match(path) or "#sha256=" in path or path in urls:
            continue
        if _goes_along(path, files, within) or mount_of(path, mounts) is not None:
            continue
        where = Path(path).expanduser() if Path(path).expanduser().exists() else data_folder() / path
        yield (
            f"{key} is {path}, which is {where} on this machine, and jobs do not have it; put it on the store (python "
            f"-m nlu.io cp) and set {key} to its address, or name it in {PREFIX}.include if it is small"
        )


def _of_output(module: str, key: str, place: str | None) -> Iterator[str]:
    """Yield a problem if a job would leave what it makes on its own machine."""
    if place is None or not (is_object(place) or key == "output" and is_table(place)):
        table = " or odps://PROJECT/tables/NAME" if key == "output" else ""
        yield (
            f"{key} is {place or 'not set'}, but what {module} makes in a job must leave its machine; set {key} to "
            f"oss://BUCKET/...{table}"
        )


def _read_by_evaluation(key: str, overrides: Sequence[str]) -> bool:
    """Whether an evaluation of a trained run reads the file of a key: only the sets that the command gives rows for."""
    group, _, name = key.partition(".")
    return group in ("run", "checkpoint") or (group == "data" and name.partition(".")[0] in scored_sets(overrides))


def named_paths(config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the keys that name paths or addresses that a command reads, with these."""
    input = config.get("input")
    of_command = (
        ("run", config.get("run")),
        ("checkpoint", config.get("checkpoint")),
        ("input", input.get("path") if isinstance(input, Mapping) else None),
    )
    for key, value in of_command:
        if isinstance(value, str) and value != MISSING and not (key == "checkpoint" and _NAMED.fullmatch(value)):
            yield key, value
    for name in ("train", "dev", "test"):
        source = (config.get("data") or {}).get(name)
        if isinstance(source, Mapping):
            yield from ((f"data.{name}.{label}", str(path)) for label, path in source.items())
        elif source not in (None, MISSING):
            yield from ((f"data.{name}", str(path)) for path in ([source] if isinstance(source, str) else source))
    for group, key in (("tokenizer", "vocab"), ("model", "pretrained"), ("model", "embeddings")):
        value = (config.get(group) or {}).get(key)
        if isinstance(value, str) and value != MISSING:
            yield f"{group}.{key}", value
    for key in ("teacher", "logits"):
        value = (config.get("method") or {}).get(key)
        if value not in (None, MISSING):
            yield from ((f"method.{key}", str(path)) for path in ([value] if isinstance(value, str) else value))


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
