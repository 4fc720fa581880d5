"""A store built in parts by several jobs: each encodes some of the chunks of rows, and whoever comes last joins them.

A chunk that was encoded lies at PLACE/SET-NUMBER.npz, in the cache or, where stores are shared, beside the store there.
What is joined is what one job would have built, to the byte: the rows are walked again in their order, and what is
found encoded is not encoded again. What is missing is encoded then, so a part that never came costs time alone.
"""

import io
import logging
import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from zipfile import BadZipFile

import numpy as np

from nlu.data.encoding import EncodedRows
from nlu.storage.bucket import Unreachable
from nlu.storage.cache import cache_dir
from nlu.storage.files import write_bytes
from nlu.storage.objects import ObjectStore

log = logging.getLogger(__name__)


class Chunks:
    """The encoded chunks of a store that is not built yet, by set and number."""

    def __init__(self, name: str, shared: ObjectStore | None):
        self._name, self._shared = name, shared
        self._folder = cache_dir() / "parts" / name
        self._names = self._listed()

    def __bool__(self) -> bool:
        return bool(self._names)

    def has(self, set_name: str, number: int) -> bool:
        """Whether a chunk was encoded, as far as was known when this was made."""
        return _file(set_name, number) in self._names

    def encoded(self, set_name: str, number: int, rows: int, encode: Callable[[], EncodedRows]) -> EncodedRows:
        """A chunk of so many rows as it was encoded by some job, else by `encode`."""
        if self.has(set_name, number):
            try:
                with np.load(io.BytesIO(self._read(_file(set_name, number))), allow_pickle=False) as arrays:
                    found = EncodedRows(**dict(arrays))
                if len(found.lengths_N) == rows:
                    return found
            except (OSError, ValueError, EOFError, TypeError, KeyError, BadZipFile) as error:
                log.debug("chunk %d of %s is encoded again: %s", number, set_name, error)
        return encode()

    def keep(self, set_name: str, number: int, encoded: EncodedRows) -> None:
        """Have all find a chunk. Raises Unreachable where a store does not take it."""
        content = io.BytesIO()
        np.savez(content, **{name: array for name, array in asdict(encoded).items() if array is not None})
        if self._shared is None:
            write_bytes(self._folder / _file(set_name, number), content.getvalue())
        else:
            self._shared.put(f"{self._name}/parts/{_file(set_name, number)}", content.getvalue())

    def clear(self) -> None:
        """Take all of them away: the store is built."""
        shutil.rmtree(self._folder, ignore_errors=True)
        if self._shared is not None and self._names:
            try:
                for name in self._names:
                    self._shared.delete(f"{self._name}/parts/{name}")
            except Unreachable as error:
                log.debug("%s", error)

    def _read(self, name: str) -> bytes:
        if self._shared is None:
            return (self._folder / name).read_bytes()
        return self._shared.get(f"{self._name}/parts/{name}")

    def _listed(self) -> frozenset[str]:
        if self._shared is None:
            found = self._folder.glob("*.npz") if self._folder.is_dir() else ()
            return frozenset(path.name for path in found)
        try:
            return frozenset(Path(key).name for key in self._shared.list(f"{self._name}/parts"))
        except Unreachable as error:
            log.warning("no parts of the data store are found: %s", error)
            return frozenset()


def _file(set_name: str, number: int) -> str:
    return f"{set_name}-{number:08d}.npz"
