"""A file that is made piece by piece, by several processes, and goes on where a kill left it.

The pieces lie beside the place of the file, in a folder `.NAME.pieces` with the plan that they follow; the last thing
that is done is to put them together, under the file's name, and to remove the folder.
"""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from nlu.config.errors import UserError
from nlu.storage.files import replacing, sync_folder, write_bytes, write_json
from nlu.storage.locks import Locked, hold_folder
from nlu.storage.settle import remove

PLAN = "plan.json"
LOCK = ".lock"
JOINED, DONE = "joined", "done"
"""the whole file before it gets its name, and the mark that from now on it may have it"""


class Joins(Protocol):
    """Puts pieces together."""

    def join(self, pieces: Sequence[Path], file: BinaryIO) -> None:
        """Write all of them, in their order."""


class Pieces:
    """The pieces of one file."""

    def __init__(self, place: Path):
        self.place = place
        self.folder = place.with_name(f".{place.name}.pieces")

    @contextmanager
    def held(self, plan: Mapping[str, Any]) -> Iterator[int]:
        """Keep other processes out while the block runs; gives how many pieces of the same plan are there already.

        `plan` is all that the bytes hang on, as JSON. Raises UserError where the file is there, where pieces of another
        plan are, and where another process is at work.
        """
        self.require_place()
        try:
            with hold_folder(self.folder, LOCK, wait_s=0):
                try:
                    self._require(plan)
                    yield len(list(self.folder.glob("*.piece")))
                finally:
                    if self.folder.is_dir() and not any(self.folder.glob("*.piece")):
                        remove(self.folder)
        except Locked:
            raise UserError(
                f"output is {self.place}, which another process is writing; wait for it, or choose another"
            ) from None

    def require_place(self) -> None:
        """Raise UserError where the file is there, or its folder is not; clear away what a kill left behind it."""
        if self.place.exists() and (self.folder / DONE).is_file() and not (self.folder / JOINED).exists():
            remove(self.folder)
        if self.place.exists():
            raise UserError(f"output is {self.place}, which exists; nothing was written; choose another, or remove it")
        if not self.place.parent.is_dir():
            raise UserError(
                f"output is {self.place}, but there is no folder {self.place.parent}; make it, or choose another"
            )

    def _require(self, plan: Mapping[str, Any]) -> None:
        known = self.folder / PLAN
        if not known.is_file():
            # Without their plan nobody knows what pieces are of.
            for path in self.folder.glob("*.piece"):
                path.unlink()
            write_json(known, plan)
            return
        before = json.loads(known.read_text(encoding="utf-8"))
        if changed := [key for key in {**before, **plan} if before.get(key) != plan.get(key)]:
            raise UserError(
                f"output is {self.place}, which was begun otherwise ({', '.join(changed)} differ); give the same to go "
                f"on, choose another, or remove {self.folder}"
            )

    def has(self, number: int) -> bool:
        """Whether this piece, counted from 0, is written."""
        return self._path(number).is_file()

    def write(self, number: int, content: bytes) -> None:
        """Keep a piece; it is on the disk, whole, or not there."""
        write_bytes(self._path(number), content)

    def finish(self, count: int, output: Joins) -> None:
        """Put the pieces together as the file, and remove them. Raises UserError where the file is there by now."""
        self.require_place()
        with replacing(self.folder / JOINED) as file:
            output.join([self._path(number) for number in range(count)], file)
        write_bytes(self.folder / DONE, b"")
        os.rename(self.folder / JOINED, self.place)
        sync_folder(self.place.parent)
        remove(self.folder)

    def _path(self, number: int) -> Path:
        return self.folder / f"{number:06d}.piece"
