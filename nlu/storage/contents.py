"""What is in files of any store, without a copy on the disk."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

from nlu.config.errors import UserError
from nlu.storage.cache import staging_folder
from nlu.storage.objects import store_of
from nlu.storage.parts import PART_BYTES
from nlu.storage.places import Place
from nlu.storage.transfer import disk_errors, found_at


def chunks_of(place: Place) -> Iterator[bytes]:
    """The content of a file, piece by piece. Raises UserError for a folder, DataError for what is not there."""
    found = found_at(place)
    if found.is_folder:
        raise UserError(f"{place.shown} is a folder; name a file")
    store = store_of(place)
    with disk_errors(place):
        if found.size is None:
            with staging_folder() as folder:
                store.read_whole(place, folder / "whole")
                yield from _pieces(folder / "whole")
        else:
            for start in range(0, found.size, PART_BYTES):
                yield store.read(place, start, min(start + PART_BYTES, found.size), found)


def _pieces(path: Path) -> Iterator[bytes]:
    with open(path, "rb") as file:
        yield from iter(lambda: file.read(PART_BYTES), b"")


def md5_of(place: Place) -> str:
    """The MD5 of a file in hex, of its bytes as they are read now."""
    digest = hashlib.md5(usedforsecurity=False)
    for chunk in chunks_of(place):
        digest.update(chunk)
    return digest.hexdigest()


def size_of(place: Place) -> int:
    """The bytes of a file, or of all files below a folder."""
    found = found_at(place)
    if found.is_folder:
        return sum(entry.size or 0 for entry in store_of(place).files(place).values())
    return sum(map(len, chunks_of(place))) if found.size is None else found.size
