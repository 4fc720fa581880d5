"""Local files that are replaced atomically, so that a kill at any moment leaves the old or the new one; their JSON."""

import hashlib
import json
import math
import numbers
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from nlu.config.errors import DataError


def read_json(path: Path) -> dict[str, Any] | None:
    """Return the JSON object in a file, None if it cannot be read or is something else."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def read_digest(path: Path) -> str:
    """Return the sha256 of a file in hex, read from disk."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_json(path: str | os.PathLike[str], value: object) -> None:
    """Write `value` as indented JSON, atomically. Numbers that JSON does not have (nan, inf) become null."""
    write_text(path, json.dumps(plain(value), indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write `text` as UTF-8, atomically; see `replacing`."""
    write_bytes(path, text.encode())


def write_bytes(path: str | os.PathLike[str], content: bytes) -> None:
    """Write `content`, atomically; see `replacing`."""
    with replacing(path) as file:
        file.write(content)


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Open a file that replaces the one at `path` at the end of the block; the folder is created if necessary.

    Readers see the old or the new content, never a part of it. If the block raises an error, the old content stays. At
    the end of the block the content and the name are on the disk. If several processes write the same file, the content
    is that of one of them.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    # The name is random, since process ids of hosts that share a folder may be equal.
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    try:
        with open(temporary, "wb") as file:
            yield file
            # The content must be on the disk before the name is: after a power failure the name could otherwise lead to
            # an empty file.
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        # Errors of write and fsync do not name the file.
        error.filename = error.filename or str(path)
        raise
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(path.parent)


def sync_file(path: Path) -> None:
    """Write the content of a file to the disk (fsync)."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Write the names in a folder, including new and renamed ones, to the disk (fsync)."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def plain(value: object) -> object:
    """Return `value` in the types of JSON: numpy scalars become numbers, nan and inf None, all else its text."""
    if value is None or isinstance(value, (bool, str)):
        return value
    # Not `int` and `float`: numpy's scalars are registered with these abstract classes.
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): plain(entry) for key, entry in value.items()}
    return [plain(entry) for entry in value] if isinstance(value, list | tuple) else str(value)


def json_text(value: object) -> str:
    """Return `value` as JSON, with null for numbers that JSON does not have, and the text of objects of other types."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, default=str)
    except ValueError:
        return json.dumps(plain(value), ensure_ascii=False)


def umask() -> int:
    """Return the permissions that new files of this process do not get."""
    # The mask can only be read by setting it. Another thread could create a file between the two calls.
    mask = os.umask(0)
    os.umask(mask)
    return mask


def inside(folder: Path, name: str, source: str) -> Path:
    """Return the path of `name` below a folder. Raises DataError for a name that leads out of it."""
    path = PurePosixPath(name)
    if not path.parts or path.is_absolute() or ".." in path.parts or "\0" in name:
        raise DataError(f"{source} holds {name!r}, a path outside its folder; it is not safe, use another source")
    return folder / path
