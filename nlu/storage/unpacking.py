"""Compressed files, unpacked into the cache, so that whoever reads them meets plain ones; archives, unpacked safely."""

import logging
import lzma
import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from nlu.config.addresses import Reference
from nlu.config.errors import DataError
from nlu.config.sentences import called, counted, show_as
from nlu.storage.cache import Entry, file_digest
from nlu.storage.places import COMPRESSED, plain_name

log = logging.getLogger(__name__)


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
