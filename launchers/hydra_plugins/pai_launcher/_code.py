"""What goes to a job: its command and the archive of the code. What it would lack elsewhere is found beforehand.

A job fetches the archive of its code into an empty folder, checks its digest and becomes its program. MaxCompute
unpacks the archive itself, and `_entry.py` in the archive does the rest. The command is shell for DLC, letters and
digits for MaxCompute, and every value arrives as it was given.

The archive has the files that git tracks, with changes that are not committed. A link to a file of the project is
replaced by its target. Links to folders stay here, and files whose names look secret. The same files give the same
bytes and the same name, and are uploaded once.
"""

import base64
import functools
import gzip
import hashlib
import io
import json
import os
import re
import shlex
import subprocess
import sys
import tarfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from hydra_plugins.pai_launcher.pai_launcher import mount_of

import nlu
from nlu.config.addresses import address_problems, is_object
from nlu.config.choices import conf_dir
from nlu.config.command_keys import STANDARD
from nlu.config.errors import UserError
from nlu.config.redaction import is_secret_file
from nlu.config.resolving import MISSING
from nlu.config.scoring import scored_sets
from nlu.jobs.queue import Job, QueueContext
from nlu.storage.required import of_jobs, texts_of
from nlu.storage.tables import is_table

MODULE = "nlu.train"
FETCH = Path(__file__).with_name("_fetch.py")
"""the program that fetches the code; it needs the standard library and fsspec"""
ENTRY = "nlu_pai_entry.py"
"""the name of the first program of a MaxCompute job in the archive"""
JOB = "--nlu-job="
OURS = ("mirror", "resume", "hydra.run.dir", "trial")
"""keys that the launcher gives to a job"""
OUTPUT_OF = {"nlu.predict": "output", "nlu.evaluate": "out", "nlu.export": "out", "nlu.preprocess": "stores"}
"""the commands besides MODULE that jobs may run, and the key with the place of their output"""

LARGEST_SHOWN = 5
LIMIT_MB = 100
CODE = (".py", ".yaml", ".yml")
"""endings of files that a run imports or composes"""
_REMOTE = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_CHECKPOINT = re.compile(r"best|last|best-\d+")
_READ = re.compile(
    r"run|checkpoint|input(\.path)?|data\.(train|dev|test)(\..*)?|tokenizer\.vocab|model\.(pretrained|embeddings)"
    r"|method\.(teacher|logits)(\..*)?"
)
"""keys of what a command reads"""


def value_of(overrides: Sequence[str], key: str) -> str | None:
    """Return the value of the last override of a key, without quotes; None if it is absent or null."""
    found = [text.partition("=")[2] for text in overrides if text.partition("=")[0].lstrip("+~") == key]
    return found[-1].strip("'\"") if found and found[-1] not in ("null", "") else None


def without_ours(overrides: Sequence[str]) -> list[str]:
    """Return the overrides without the keys of the launcher."""
    return [text for text in overrides if text.partition("=")[0].lstrip("+~") not in OURS]


def shell_command(archive: str, digest: str, arguments: Sequence[str], within: str) -> str:
    """Return the command line of a DLC job, for `sh -c`: it fetches `archive`, checks it and becomes its program.

    `arguments` are those of Python, `within` is the folder of the code in which it starts.
    """
    fetch = shlex.join(["python3", "-c", FETCH.read_text(encoding="utf-8"), archive, digest])
    lines = [
        # Every step must succeed: a job without its code must not compute.
        "set -eu",
        "code=$(mktemp -d)",
        f'{fetch} "$code"',
        'export PYTHONPATH="$code${PYTHONPATH:+:$PYTHONPATH}"',
        f'cd "$code"/{shlex.quote(within)}',
        f"exec {shlex.join(['python3', *arguments])}",
    ]
    return "\n".join(lines) + "\n"


def parameters(arguments: Sequence[str], within: str, environment: Mapping[str, str], token: str) -> str:
    """Return the argument of a MaxCompute job, in characters that no client, service or shell changes."""
    job = {"arguments": list(arguments), "within": within, "environment": dict(environment), "token": token}
    # Without padding, since `=` may separate names from values on the way.
    return JOB + base64.urlsafe_b64encode(json.dumps(job, ensure_ascii=False).encode()).decode().rstrip("=")


def token_in(given: str) -> str:
    """Return the token in the arguments of a MaxCompute job, an empty text if the job is not ours."""
    text = given.removeprefix(JOB)
    try:
        return str(json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))["token"])
    except (ValueError, KeyError, TypeError):
        return ""


@dataclass(frozen=True)
class CodePackage:
    """The code of the jobs of this process, as it was when the first of them was checked."""

    content: bytes
    """a tar.gz"""
    names: frozenset[str]
    """the files that jobs find, by path within the project"""
    within: str
    """the folder in which the command was started, by path within the project"""

    @property
    def digest(self) -> str:
        """sha256 of the content, in hexadecimal digits: its name in the store."""
        return hashlib.sha256(self.content).hexdigest()


@functools.cache
def packed() -> CodePackage:
    """Return the code. It is packed once per process, so that all trials of a search run the same code.

    Raises UserError as `code_files` does, and for an archive above the limit, with its largest file.
    """
    here = Path.cwd()
    top = next((folder for folder in (here, *here.parents) if (folder / ".git").exists()), here)
    files = {name: path.read_bytes() for name, path in sorted(code_files(top).items())}
    if untracked := [name for name in _listed(top, "--others") if name.endswith(CODE) and name not in files]:
        shown = f"{', '.join(untracked[:LARGEST_SHOWN])}{' and others' if len(untracked) > LARGEST_SHOWN else ''}"
        print(
            f"nlu: warning: jobs will not find {shown}, which git does not track: git add what they need",
            file=sys.stderr,
        )
    files[ENTRY] = Path(__file__).with_name("_entry.py").read_bytes()
    content = _tar(files)
    if len(content) > LIMIT_MB * 1e6:
        largest = max(files, key=lambda name: len(files[name]))
        raise UserError(
            f"the archive of the code has {len(content) / 1e6:.1f} MB, more than {LIMIT_MB}; the largest file is "
            f"{largest} ({len(files[largest]) / 1e6:.1f} MB); take such files out of git, and put data on the store"
        )
    return CodePackage(content, frozenset(files), Path(os.path.relpath(Path.cwd(), top)).as_posix())


def code_files(top: Path) -> dict[str, Path]:
    """Return the files that go to a job, by their names there: tracked ones, and nlu.

    Raises UserError if git does not know `top` as a checkout.
    """
    found = {name: top / name for name in _listed(top, "--cached", "--recurse-submodules") if _goes(top, name)}
    if not any(name.startswith("nlu/") for name in found):
        # The project uses an installed nlu; jobs get the same one.
        package, conf = Path(nlu.__file__).resolve().parent, conf_dir().resolve()
        found |= {f"nlu/{name}": path for name, path in _files_of(package)}
        if conf.parent != package:
            # In a checkout the folder conf lies beside the package.
            found |= {f"conf/{name}": path for name, path in _files_of(conf)}
    return found


def is_secret(name: str) -> bool:
    """Whether a part of a path looks like the name of a secret."""
    return any(map(is_secret_file, Path(name).parts))


def _goes(top: Path, name: str) -> bool:
    """Whether a tracked name is a file, or a link to one in the project, and neither looks secret."""
    target, root = (top / name).resolve(), top.resolve()
    within = target.is_file() and target.is_relative_to(root)
    return within and not is_secret(name) and not is_secret(target.relative_to(root).as_posix())


def _files_of(folder: Path) -> Iterator[tuple[str, Path]]:
    for path in sorted(folder.rglob("*")):
        inner = path.relative_to(folder)
        is_ours = path.is_file() and not path.is_symlink()
        if is_ours and not any(part == "__pycache__" or part.startswith(".git") for part in inner.parts):
            yield inner.as_posix(), path


def _listed(top: Path, *which: str) -> list[str]:
    command = ["git", "-C", str(top), "ls-files", "-z", "--exclude-standard", *which]
    try:
        done = subprocess.run(command, capture_output=True, check=False, stdin=subprocess.DEVNULL)
    except OSError as error:
        raise UserError(f"git is not installed ({error}), but it lists the files of the code; install it") from None
    if done.returncode:
        reason = done.stderr.decode(errors="replace").strip().splitlines()
        raise UserError(
            f"{top} is not a checkout of git ({reason[-1] if reason else 'no reason given'}), which lists the files of "
            f"the code; start in the folder of your project, after git init and git add"
        )
    # git prints names as bytes, which need not be UTF-8.
    return [name.decode(errors="surrogateescape") for name in done.stdout.split(b"\0") if name]


def _tar(files: Mapping[str, bytes]) -> bytes:
    content = io.BytesIO()
    with (
        # Without the time and a file name in the header, so that the same files give the same bytes.
        gzip.GzipFile(fileobj=content, mode="wb", mtime=0, filename="") as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(data), 0o644
            archive.addfile(entry, io.BytesIO(data))
    return content.getvalue()


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
        # Jobs that build parts of one store share it, as those with a number of their own share an output.
        is_shared = key == "stores" or value_of(job.overrides, "job") is not None
        if place and not is_shared and (other := holders.setdefault(place, job.number)) != job.number:
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
