"""The archive of the code that goes to a job: the files that git tracks, and those of hydra.launcher.include.

The same files give the same bytes and the same name, and are uploaded once. Files of submodules are tracked. A link to
a file or folder of the project is replaced by its target. Changes that are not committed go along. A file whose name
looks secret is left out even if git tracks it, and refused in `include`. `left_out` lists what jobs will not find.
"""

import functools
import gzip
import hashlib
import io
import logging
import os
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import nlu
from nlu.config.choices import conf_dir
from nlu.config.errors import UserError
from nlu.launching.submissions import project_folder
from nlu.storage.objects import ObjectStore
from nlu.storage.redaction import is_secret_file

from ._claim import MODULE as CLAIM
from ._command import ENTRY, LAST
from ._settings import PREFIX

log = logging.getLogger(__name__)

LARGEST_SHOWN = 5
EPOCH = (1980, 1, 1, 0, 0, 0)
CODE = (".py", ".yaml", ".yml")
"""endings of files that a run imports or composes"""
OURS = {
    ENTRY: Path(__file__).with_name("_entry.py"),
    f"{CLAIM}.py": Path(__file__).with_name("_claim.py"),
    f"{LAST}.py": Path(__file__).with_name("_last.py"),
}
"""programs of this package that a job starts, by their names in the archive"""


@dataclass(frozen=True)
class Archive:
    """Code as one file."""

    content: bytes
    suffix: str

    @property
    def digest(self) -> str:
        """sha256 of the content, in hexadecimal digits: its name in the store."""
        return hashlib.sha256(self.content).hexdigest()


def pack(top: Path, include: Sequence[str] = (), *, limit_mb: float, as_tar: bool = False) -> Archive:
    """Return the code under `top` as a zip or, `as_tar`, a tar.gz. The same files give the same bytes.

    Raises UserError for files that cannot be included, and for an archive above the limit, with its largest files.
    """
    files = {name: path.read_bytes() for name, path in sorted(code_files(top, include).items())}
    files |= {name: path.read_bytes() for name, path in OURS.items()}
    content = _tar(files) if as_tar else _zip(files)
    if len(content) > limit_mb * 1e6:
        largest = sorted(files, key=lambda name: -len(files[name]))[:LARGEST_SHOWN]
        shown = ", ".join(f"{name} ({len(files[name]) / 1e6:.1f} MB)" for name in largest)
        raise UserError(
            f"the archive of the code has {len(content) / 1e6:.1f} MB, more than {PREFIX}.code_limit_mb={limit_mb:g}; "
            f"the largest files are {shown}; take them out of git, put data on the store, or raise the limit"
        )
    return Archive(content, ".tar.gz" if as_tar else ".zip")


def code_files(top: Path, include: Sequence[str] = ()) -> dict[str, Path]:
    """Return the files that go to a job, by their names there: tracked ones, those of `include`, and nlu.

    Raises UserError if git does not know `top` as a checkout, or if a file of `include` cannot go.
    """
    found = {
        inner: path
        for name in _tracked(top)
        for inner, path in _followed(top, name)
        if not _is_secret(inner) and not _is_secret(_within(top, path))
    }
    problems = []
    for declared in include:
        try:
            found |= _declared(top, declared)
        except UserError as error:
            problems += error.problems
    if problems:
        raise UserError(*problems)
    if not any(name.startswith("nlu/") for name in found):
        # The project uses an installed nlu; jobs get the same one.
        found |= _of_nlu()
    return found


def left_out(top: Path, include: Sequence[str] = ()) -> list[str]:
    """Return a sentence for each kind of file that is here, and that a job will not find.

    These are modules and configurations that git does not track, links that lead out of the project, submodules that
    are not checked out, and files whose names look secret.
    """
    tracked = _tracked(top)
    going = code_files(top, include)
    untracked = [name for name in _untracked(top) if name.endswith(CODE) and name not in going and not _is_secret(name)]
    links = [name for name in tracked if (top / name).is_symlink() and not list(_followed(top, name))]
    # git lists the folder of a submodule that is not checked out.
    empty = [name for name in tracked if (top / name).is_dir() and not (top / name).is_symlink()]
    secret = [
        name
        for name in tracked
        if _is_secret(name) or any(_is_secret(_within(top, to)) for _, to in _followed(top, name))
    ]
    told = (
        (untracked, f"which git does not track: git add them, or name them in {PREFIX}.include"),
        (links, f"links that lead out of {top} or nowhere: put what they lead to into the project, or on the store"),
        (empty, "submodules that are not checked out: git submodule update --init"),
        (secret, "which by their names hold secrets: rename what is code"),
    )
    return [
        f"jobs will not find {', '.join(names[:LARGEST_SHOWN])}"
        f"{f' and {len(names) - LARGEST_SHOWN} more' if len(names) > LARGEST_SHOWN else ''}, {why}"
        for names, why in told
        if names
    ]


def _is_secret(name: str) -> bool:
    return any(map(is_secret_file, Path(name).parts))


def _within(top: Path, path: Path) -> str:
    return path.resolve().relative_to(top.resolve()).as_posix()


def _followed(top: Path, name: str) -> Iterator[tuple[str, Path]]:
    """Yield the files of a tracked name, by their names in the archive.

    These are the file itself, the target of a link, or the files in a folder to which a link leads. A link that leads
    out of the project yields nothing.
    """
    path = top / name
    if not path.is_symlink():
        if path.is_file():
            yield name, path
        return
    target = path.resolve()
    # A link to a folder above itself would contain itself.
    if not target.is_relative_to(top.resolve()) or path.parent.resolve().is_relative_to(target):
        return
    if target.is_file():
        yield name, target
    elif target.is_dir():
        for inner in _files_of(target):
            yield f"{name}/{inner.relative_to(target).as_posix()}", inner


def _of_nlu() -> dict[str, Path]:
    package = Path(nlu.__file__).resolve().parent
    folders = {"nlu": package}
    if conf_dir().resolve().parent != package:
        # In a checkout the folder conf lies beside the package.
        folders["conf"] = conf_dir().resolve()
    return {
        f"{name}/{path.relative_to(folder).as_posix()}": path
        for name, folder in folders.items()
        for path in _files_of(folder)
    }


def _tracked(top: Path) -> list[str]:
    return _listed(top, "--cached", "--recurse-submodules")


def _untracked(top: Path) -> list[str]:
    return sorted(_listed(top, "--others", "--exclude-standard"))


def _listed(top: Path, *which: str) -> list[str]:
    command = ["git", "-C", str(top), "ls-files", "-z", *which]
    try:
        done = subprocess.run(command, capture_output=True, check=False, stdin=subprocess.DEVNULL)
    except OSError as error:
        raise UserError(f"git is not installed ({error}), but it lists the files of the code; install it") from None
    if done.returncode:
        reason = done.stderr.decode(errors="replace").strip().splitlines()
        raise UserError(
            f"{top} is not a checkout of git ({reason[-1] if reason else 'no reason given'}), which lists the files of "
            f"the code; start in the folder of your project, after git init and git add, and name other files in "
            f"{PREFIX}.include"
        )
    # git prints names as bytes, which need not be UTF-8.
    return [name.decode(errors="surrogateescape") for name in done.stdout.split(b"\0") if name]


def _declared(top: Path, declared: str) -> dict[str, Path]:
    path = Path(os.path.abspath(top / declared))
    if not path.is_relative_to(top):
        raise UserError(
            f"{PREFIX}.include holds {declared}, which lies outside of {top}; copy it there, or put it on the store"
        )
    if not path.exists():
        raise UserError(f"{PREFIX}.include holds {declared}, which does not exist under {top}")
    files = [path] if path.is_file() else list(_files_of(path))
    names = {file.relative_to(top).as_posix(): file for file in files}
    if secret := [name for name in names if _is_secret(name)]:
        raise UserError(
            f"{PREFIX}.include holds {', '.join(secret[:LARGEST_SHOWN])}, which by its name holds secrets; leave it "
            "out: jobs get their rights from a role"
        )
    return names


def _files_of(folder: Path) -> Iterable[Path]:
    for path in sorted(folder.rglob("*")):
        parts = path.relative_to(folder).parts
        if _is_plain(path) and "__pycache__" not in parts and not any(part.startswith(".git") for part in parts):
            yield path


def _is_plain(path: Path) -> bool:
    # A link may lead out of the project, and a tracked file may have been deleted.
    return path.is_file() and not path.is_symlink()


def _zip(files: Mapping[str, bytes]) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            entry = zipfile.ZipInfo(name, date_time=EPOCH)
            entry.create_system = 3
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, data, zipfile.ZIP_DEFLATED)
    return content.getvalue()


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


@dataclass(frozen=True)
class CodePackage:
    """The code of the jobs of this process, as it was when the first of them was submitted."""

    archive: Archive
    names: frozenset[str]
    """the files that jobs find, by path within the project"""
    within: str
    """the folder in which the command was started, by path within the project"""

    @property
    def key(self) -> str:
        """Its name on the store."""
        return f"code/{self.archive.digest}{self.archive.suffix}"

    @property
    def resource(self) -> str:
        """Its name as a resource of a MaxCompute project."""
        return f"nlu-code-{self.archive.digest[:32]}.tar.gz"

    def put(self, store: ObjectStore) -> None:
        """Put it on the store unless it is there."""
        if store.stat(self.key) is None:
            log.info("uploading the code, %.1f MB", len(self.archive.content) / 1e6)
            # The key is the digest of the content, so two commands that upload at the same time write the same bytes.
            store.put(self.key, self.archive.content)


NOTHING = CodePackage(Archive(b"", ""), frozenset(), ".")
"""no code, for a queue that only looks after jobs"""


@functools.lru_cache(maxsize=4)
def packed(include: tuple[str, ...], limit_mb: float, as_tar: bool) -> CodePackage:
    """Return the code. It is packed once per process, so that all trials of a search run the same code."""
    top = project_folder()
    names = frozenset(code_files(top, include))
    archive = pack(top, include, limit_mb=limit_mb, as_tar=as_tar)
    for sentence in left_out(top, include):
        print(f"nlu: warning: {sentence}", file=sys.stderr)
    return CodePackage(archive, names, Path(os.path.relpath(Path.cwd(), top)).as_posix())
