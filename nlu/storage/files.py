"""Whole local files that appear complete or not at all, so that a kill at any moment leaves the old or the new one."""

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
    """The JSON object in the file, or None where there is none that can be read."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def read_digest(path: Path) -> str:
    """sha256 of the file in hex, read from disk now."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_json(path: str | os.PathLike[str], value: Any) -> None:
    """Write `value` as indented JSON, atomically. Numbers that JSON lacks (nan, inf) become null."""
    write_text(path, json.dumps(plain(value), indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write `text` as UTF-8, atomically; see `replacing`."""
    write_bytes(path, text.encode())


def write_bytes(path: str | os.PathLike[str], content: bytes) -> None:
    """Replace the file, or make it with its folder; see `replacing`."""
    with replacing(path) as file:
        file.write(content)


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Open what is to replace the file, which is made with its folder where it is absent.

    Readers see the old or the new content, never a part of it; where the block raises, the old one stays. The content
    is on the disk when the block is over. Several may write the same file: one of them wins, whole.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    # Hosts that share a folder number their processes alike.
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    try:
        with open(temporary, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        error.filename = error.filename or str(path)
        raise
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(path.parent)


def sync_file(path: Path) -> None:
    """Have the content of a file on the disk when this returns."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Have the names in a folder, new and renamed ones, on the disk when this returns."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def plain(value: Any) -> Any:
    """Return `value` in the types of JSON; numpy scalars are numbers, paths are text."""
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): plain(entry) for key, entry in value.items()}
    assert isinstance(value, (list, tuple)), f"{type(value).__name__} has no form in JSON"
    return [plain(entry) for entry in value]


def json_text(value: Any) -> str:
    """Return `value` as JSON, with null for numbers that JSON lacks and the text of what it has no form for."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, default=str)
    except ValueError:
        return json.dumps(_finite(value), ensure_ascii=False, default=str)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(entry) for key, entry in value.items()}
    return [_finite(entry) for entry in value] if isinstance(value, list | tuple) else value


def umask() -> int:
    """Return which rights new files of this process lack."""
    mask = os.umask(0)
    os.umask(mask)
    return mask


def inside(folder: Path, name: str, source: str) -> Path:
    """The path of `name` below the folder. Raises DataError for a name that would lie elsewhere."""
    path = PurePosixPath(name)
    if not path.parts or path.is_absolute() or ".." in path.parts or "\0" in name:
        raise DataError(f"{source} holds {name!r}, a path outside its folder; it is not safe, use another source")
    return folder / path
