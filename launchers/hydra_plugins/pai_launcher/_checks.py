"""What a job elsewhere would not find or could not leave: files of this machine, and storages of this machine."""

import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from fnmatch import fnmatch

from hydra_plugins.pai_launcher._code import CodePackage
from hydra_plugins.pai_launcher._command import MODULE, OUTPUT_OF, value_of
from hydra_plugins.pai_launcher._settings import mount_of

from nlu.config.addresses import address_problems, is_object
from nlu.config.command_keys import STANDARD
from nlu.config.resolving import MISSING
from nlu.config.scoring import scored_sets
from nlu.jobs.queue import Job, QueueContext
from nlu.storage.required import of_jobs, texts_of
from nlu.storage.tables import is_table

_REMOTE = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_CHECKPOINT = re.compile(r"best|last|best-\d+")
_READ = re.compile(
    r"run|checkpoint|input(\.path)?|data\.(train|dev|test)(\..*)?|tokenizer\.vocab|model\.(pretrained|embeddings)"
    r"|method\.(teacher|logits)(\..*)?"
)
"""keys of what a command reads"""


def problems_of_jobs(
    jobs: Sequence[Job],
    mirrors: Mapping[str, str],
    code: CodePackage,
    context: QueueContext,
    mounts: Collection[str] = (),
) -> list[str]:
    """Return everything that is wrong with the jobs, each once, with the numbers of the jobs if not all have it.

    `mirrors` are those of the runs by token, `mounts` the paths of mounted folders.
    """
    found: dict[str, list[int]] = {}
    holders: dict[str, int] = {}
    key = "mirror" if context.module == MODULE else OUTPUT_OF[context.module]
    for job in jobs:
        own = [*_of_files(job, code, context, mounts), *_of_trial(job)]
        place = mirrors[job.token] if key == "mirror" else value_of(job.overrides, key)
        own += address_problems(str(place), key) if key == "mirror" else _of_output(context.module, key, place)
        if key == "mirror" and value_of(job.overrides, "resume") not in ("auto", "never", None):
            own.append(
                "resume starts a run from a folder of this machine, which jobs do not have; name the mirror of that run"
            )
        # Jobs that build parts of one store share it.
        if place and key != "stores" and (other := holders.setdefault(place, job.number)) != job.number:
            own.append(f"it would have the {key} of job {other}, {place}; give each job another folder")
        for problem in own:
            found.setdefault(problem, []).append(job.number)
    return [of_jobs(numbers, len(jobs)) + problem for problem, numbers in found.items()]


def _of_trial(job: Job) -> Iterator[str]:
    for text in job.overrides:
        match = re.search(r'^trial=\{storage:"((?:[^"\\]|\\.)*)"', text)
        if match and match[1].partition("://")[0].partition("+")[0] in ("journal", "sqlite"):
            yield (
                f"hydra.sweeper.storage is {match[1]}, which is a file of this machine, but trials on PAI report "
                "by themselves; set mirror=oss://BUCKET/FOLDER, which keeps the journal there, or "
                "hydra.sweeper.storage=postgresql://HOST/DATABASE"
            )


def _of_files(job: Job, code: CodePackage, context: QueueContext, mounts: Collection[str]) -> Iterator[str]:
    """Yield a problem for each file that a job reads and would not find."""
    for folder in config_dirs(context):
        if not _goes_along(folder, code):
            yield f"--config-dir is {folder}, which does not go to a job; keep it in the project, and let git track it"
    config = context.compose(job) if context.compose is not None else {}
    urls = (config.get("data") or {}).get("urls") or {}
    for key, path in texts_of(config):
        is_named = (
            _READ.fullmatch(key) and path != MISSING and not (key == "checkpoint" and _CHECKPOINT.fullmatch(path))
        )
        if not is_named or _REMOTE.match(path) or "#sha256=" in path or path in urls:
            continue
        if context.module == "nlu.evaluate" and config.get("run") and key.startswith("data."):
            # An evaluation of a run reads only the sets that the command gives rows for.
            if key.split(".")[1] not in scored_sets(job.overrides):
                continue
        if path == STANDARD:
            yield f"{key} is -, but a job has no standard input; name a file on the store"
        elif not _goes_along(path, code) and mount_of(path, mounts) is None:
            yield (
                f"{key} is {path}, a file of this machine, which jobs do not have; put it on the store (python -m "
                f"nlu.io cp) and set {key} to its address, or git add it to the project if it is small"
            )


def config_dirs(context: QueueContext) -> list[str]:
    """Return the folders of --config-dir, relative to the working folder."""
    return [os.path.relpath(folder) for folder in context.config_dirs]


def _of_output(module: str, key: str, place: str | None) -> Iterator[str]:
    """Yield a problem if a job would leave what it makes on its own machine."""
    if place is None or not (is_object(place) or key == "output" and is_table(place)):
        table = " or odps://PROJECT/tables/NAME" if key == "output" else ""
        yield (
            f"{key} is {place or 'not set'}, but what {module} makes in a job must leave its machine; set {key} to "
            f"oss://BUCKET/...{table}"
        )


def _goes_along(path: str, code: CodePackage) -> bool:
    """Whether a path leads, from the folder where a job starts, to files in the archive of the code."""
    if os.path.isabs(path) or path.startswith("~"):
        return False
    place = os.path.normpath(os.path.join(code.within, path.partition("#")[0]))
    # A pattern names files; any other path may also be that of a folder.
    return any(fnmatch(name, place) or name.startswith(f"{place}/") for name in code.names)
