"""Unpacking zip and tar archives that were written by others.

Nothing is ever written outside the target folder, and links and devices are refused: only plain files come out.
"""

import difflib
import gzip
import lzma
import shutil
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, Any

from nlu.config.errors import DataError
from nlu.storage.files import inside

ARCHIVE_SUFFIXES = (".tar.gz", ".tgz", ".zip")
DAMAGE = (zipfile.BadZipFile, tarfile.TarError, gzip.BadGzipFile, zlib.error, lzma.LZMAError, EOFError, RuntimeError)
CLASHES = (FileExistsError, NotADirectoryError, IsADirectoryError)


@dataclass(frozen=True)
class Member:
    """One entry of an archive that is no folder; `open` is None for what is not a plain file."""

    name: str
    open: Callable[[], IO[bytes]] | None


def archive_stem(name: str) -> str | None:
    """The name without its archive suffix, or None for the name of something else."""
    for suffix in ARCHIVE_SUFFIXES:
        if name.lower().endswith(suffix):
            return name[: -len(suffix)]
    return None


def unpack(archive: Path, folder: Path, source: str) -> Path:
    """Unpacks the archive into the folder; returns its one top-level folder if it holds just that, else the folder.

    `source` names the archive in errors. Raises DataError for a damaged archive, a link, or a path that leaves
    the folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for member in _members(archive, source):
        if not member.name.startswith("__MACOSX/"):
            _write(member, inside(folder, member.name, source), source)
    content = list(folder.iterdir())
    return content[0] if len(content) == 1 and content[0].is_dir() else folder


def extract(archive: Path, member: str, folder: Path, source: str, *, skip_parts: int = 0) -> Path:
    """Extracts one file, or all files below one folder, of the archive into the folder; returns its path there.

    The first `skip_parts` parts of every name in the archive are left out of account. Raises DataError for a
    damaged archive, a link, or a member that does not exist (with the nearest names that do).
    """
    names = []
    target = folder / PurePosixPath(member).name
    for found in _members(archive, source):
        name = "/".join(found.name.split("/")[skip_parts:])
        names.append(name)
        if name == member:
            _write(found, target, source)
            return target
        elif name.startswith(member + "/"):
            _write(found, inside(target, name.removeprefix(member + "/"), source), source)
    if not target.exists():
        near = ", ".join(difflib.get_close_matches(member, names, n=3, cutoff=0.5)) or ", ".join(sorted(names)[:3])
        raise DataError(f"{source} holds no {member!r}; correct the member, the nearest are: {near}")
    return target


def _write(member: Member, path: Path, source: str) -> None:
    if member.open is None:
        raise DataError(f"{source} holds {member.name!r}, a link or device; only plain files are unpacked")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with member.open() as content, open(path, "wb") as file:
            shutil.copyfileobj(content, file, 1 << 20)
    except (*DAMAGE, *CLASHES) as error:
        raise _damaged(source, error) from error


def _members(archive: Path, source: str) -> Iterator[Member]:
    """All members but folders. A member must be read before the next one is asked for."""
    try:
        yield from _zip_members(archive) if zipfile.is_zipfile(archive) else _tar_members(archive)
    except DAMAGE as error:
        raise _damaged(source, error) from error


def _zip_members(archive: Path) -> Iterator[Member]:
    with zipfile.ZipFile(archive) as content:
        for info in content.infolist():
            if not info.is_dir():
                is_link = stat.S_ISLNK(info.external_attr >> 16)
                yield Member(info.filename, None if is_link else partial(content.open, info))


def _tar_members(archive: Path) -> Iterator[Member]:
    with tarfile.open(archive) as content:
        for info in content:
            if not info.isdir():
                # What is no regular file (a link, say) has nothing to open and is refused where it is extracted.
                opened: Any = partial(content.extractfile, info) if info.isreg() else None
                yield Member(info.name.removeprefix("./"), opened)


def _damaged(source: str, error: Exception) -> DataError:
    return DataError(f"{source} cannot be unpacked: {error}; the archive is damaged or of an unknown kind")
