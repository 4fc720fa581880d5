"""A file that several processes write in pieces, so that a killed command can continue.

The pieces are in a folder `.NAME.pieces` beside the file, together with the plan that they follow. The last step joins
them under the name of the file and removes the folder.
"""

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Protocol

from nlu.config.command_keys import STANDARD
from nlu.config.errors import UserError
from nlu.config.sentences import counted
from nlu.data.dataset import find_file
from nlu.jobs.placement import placement
from nlu.storage.access import stat
from nlu.storage.cache import cache_dir, text_digest
from nlu.storage.files import replacing, sync_folder, write_bytes, write_json
from nlu.storage.locations import Place, files_like, is_pattern, parse_place
from nlu.storage.locks import Locked, hold_folder
from nlu.storage.outputs import require_no_object, send_file
from nlu.storage.settle import remove, require_writable
from nlu.storage.tables import TableTarget, is_table

PLAN = "plan.json"
LOCK = ".lock"
JOINED, DONE = "joined", "done"
"""the joined file before it is renamed, and a mark that it is complete"""
COMMITTING = "committing"
"""the upload to a table whose commit has started"""


class Joins(Protocol):
    """Joins pieces."""

    def join(self, pieces: Sequence[Path], file: BinaryIO) -> None:
        """Write all pieces, in order."""


class Pieces:
    """The pieces of one file."""

    def __init__(self, place: Path):
        self.place = place
        self.folder = place.with_name(f".{place.name}.pieces")
        self.shown = str(place)

    @contextmanager
    def held(self, plan: Mapping[str, object]) -> Iterator[int]:
        """Lock the pieces for this process; yields the number of existing pieces of the same plan.

        `plan` is JSON with everything that determines the bytes. Raises UserError if the file exists, if there are
        pieces of another plan, or if another process has the lock.
        """
        self.require_place()
        try:
            with hold_folder(self.folder, LOCK, wait_s=0):
                try:
                    self._require(plan)
                    yield len(list(self.folder.glob("*.piece")))
                finally:
                    # A command that is refused, or killed before its first piece, leaves nothing beside the file. With
                    # pieces the folder stays, for the same command to continue.
                    is_empty = self.folder.is_dir() and not any(self.folder.glob("*.piece"))
                    if is_empty and not (self.folder / DONE).is_file():
                        remove(self.folder)
        except Locked:
            raise UserError(
                f"output is {self.shown}, which another process is writing; wait for it, or choose another"
            ) from None

    def require_place(self) -> None:
        """Raise UserError if the folder of the file does not exist, or the file does, unless a command has completed it
        and was killed before its end; `is_finished` then compares the plan."""
        if self._is_marked():
            return
        if self.place.exists():
            raise UserError(f"output is {self.place}, which exists; nothing was written; choose another, or remove it")
        if not self.place.parent.is_dir():
            raise UserError(
                f"output is {self.place}, but the folder {self.place.parent} does not exist; make it, or choose another"
            )
        if not self.folder.exists():
            require_writable(self.place.parent, "output", self.place)

    def _is_marked(self) -> bool:
        """Whether a command that has not ended completed this file: DONE without JOINED shows that it was renamed."""
        return (self.folder / DONE).is_file() and not (self.folder / JOINED).exists() and self._exists()

    def _exists(self) -> bool:
        return self.place.exists()

    def is_finished(self, plan: Mapping[str, object]) -> bool:
        """Whether the same command has already completed this file.

        Raises UserError if it was a command with other settings.
        """
        if not self._is_marked():
            return False
        self._require(plan)
        return True

    def clear(self) -> None:
        """Remove the mark of a complete file, at the end of the command that may write several."""
        if self._is_marked():
            remove(self.folder)

    def _end(self) -> None:
        """Remove the pieces, and leave the plan and the mark that the file is complete."""
        write_bytes(self.folder / DONE, b"")
        for path in [*self.folder.glob("*.piece"), self.folder / JOINED]:
            path.unlink(missing_ok=True)

    def _require(self, plan: Mapping[str, object]) -> None:
        known = self.folder / PLAN
        if not known.is_file():
            # Pieces without their plan may belong to another output.
            for path in self.folder.glob("*.piece"):
                path.unlink()
            write_json(known, plan)
            return
        before = json.loads(known.read_text(encoding="utf-8"))
        # `plan` is compared with what JSON made of it when it was written, so it must hold lists instead of tuples.
        if changed := [key for key in {**before, **plan} if before.get(key) != plan.get(key)]:
            raise UserError(
                f"output is {self.shown}, which was started with other settings ({', '.join(changed)} differ); give "
                f"the same to continue, choose another, or remove {self.folder}"
            )

    def has(self, number: int) -> bool:
        """Whether the piece of this number, from 0, is written."""
        return self._path(number).is_file()

    def write(self, number: int, content: bytes) -> None:
        """Write a piece atomically."""
        write_bytes(self._path(number), content)

    def finish(self, count: int, output: Joins) -> None:
        """Join the pieces to the file and remove them. Raises UserError if the file exists by now."""
        self.require_place()
        self._join([self._path(number) for number in range(count)], output)
        # The mark is on the disk before the rename, so a kill at any line leaves either no file at the place or one
        # that is known as complete. A rename is no copy only within one file system, so the joined file lies in a
        # folder beside the place.
        write_bytes(self.folder / DONE, b"")
        os.rename(self.folder / JOINED, self.place)
        sync_folder(self.place.parent)
        self._end()

    def _join(self, paths: Sequence[Path], output: Joins) -> None:
        with replacing(self.folder / JOINED) as file:
            output.join(paths, file)

    def _all(self, count: int) -> list[Path]:
        """Return the paths of all pieces. Raises UserError if one is in the cache of another machine."""
        paths = [self._path(number) for number in range(count)]
        if absent := [path for path in paths if not path.is_file()]:
            raise UserError(
                f"{absent[0]} is missing, so another machine has it; set NLU_CACHE to a folder that all machines share"
            )
        return paths

    def _path(self, number: int) -> Path:
        return self.folder / f"{number:06d}.piece"


class ObjectPieces(Pieces):
    """The pieces of a file in an object store. They are in the cache of this machine; the file is sent at the end."""

    def __init__(self, place: Place):
        super().__init__(cache_dir() / "outputs" / text_digest(place.shown) / place.name)
        self._target, self.shown = place, place.shown

    def _exists(self) -> bool:
        return stat(self._target) is not None

    def require_place(self) -> None:
        if self._is_marked():
            return
        # At the start nothing may exist and writing is tried. With a plan, this command has done so before; `stat` is
        # enough to see that no other has sent the object since.
        if not (self.folder / PLAN).is_file():
            require_no_object(self._target, "output")
        elif self._exists():
            raise UserError(
                f"output is {self._target.shown}, which exists; nothing was written; choose another, or remove it"
            )
        self.place.parent.mkdir(parents=True, exist_ok=True)

    def finish(self, count: int, output: Joins) -> None:
        self.require_place()
        self._join(self._all(count), output)
        # An object appears when its upload is completed. Killed before that, the command sends the joined file again;
        # killed after it, the next start finds the object and refuses.
        send_file(self.folder / JOINED, self._target)
        self._end()


class TablePieces(Pieces):
    """The pieces of a table of MaxCompute, which gets all rows in one upload at the end."""

    def __init__(self, target: TableTarget):
        super().__init__(cache_dir() / "outputs" / text_digest(target.shown) / target.name)
        self._target, self.shown = target, target.shown

    def require_place(self) -> None:
        # If a commit has started, rows in the table may come from this output.
        if not (self.folder / COMMITTING).is_file():
            self._target.require_free()
        self.place.parent.mkdir(parents=True, exist_ok=True)

    def finish(self, count: int, output: Joins) -> None:
        self.require_place()
        self._join(self._all(count), output)
        self._target.send(self.folder / JOINED, self.folder / COMMITTING)
        remove(self.folder)


def pieces_of(output: str) -> Pieces:
    """Return the pieces of the file that `output` names. Raises UserError if it cannot be written."""
    if is_table(output):
        return TablePieces(TableTarget(output, "output"))
    place = parse_place(output, "output", writes=True)
    return Pieces(Path(output)) if place.is_local else ObjectPieces(place)


def require_places(inputs: str | Sequence[str], output: str, jobs: int) -> None:
    """Raise UserError for an input that is missing and an output that exists or cannot be written."""
    pairs = pairs_of(inputs, output)
    for path, _ in pairs:
        if path != STANDARD:
            find_file("input", path)
    # Not with several ranks or jobs: one that starts late would find the pieces of the others.
    if output != STANDARD and placement().kind == "alone" and jobs == 1:
        for _, place in pairs:
            pieces_of(place).require_place()


def pairs_of(inputs: str | Sequence[str], output: str) -> list[tuple[str, str]]:
    """Return each input with its output, in which `*` becomes the name of the input without its suffix.

    Patterns stand for the files that match. Raises UserError if several inputs would have the same output.
    """
    given = [inputs] if isinstance(inputs, str) else list(inputs)
    if not given:
        raise UserError("input is [], which names no file; give at least one")
    # A pattern without files stays; the error of a missing file describes it.
    paths = [path for one in given for path in ([*map(str, files_like(one))] if is_pattern(one) else []) or [one]]
    if len(paths) == 1 and "*" not in output:
        return [(paths[0], output)]
    if STANDARD in (*paths, output) or is_table(output):
        raise UserError(
            f"input names {counted(len(paths), 'file')} and output is {output}; give files, and for each a file"
        )
    if output.count("*") != 1:
        raise UserError(
            f"input names {counted(len(paths), 'file')}, but output is {output}; write one * into output, which stands "
            "for the name of each, such as 'output=predicted-*.csv'"
        )
    pairs = {output.replace("*", _name_of(path)): path for path in paths}
    if len(pairs) < len(paths):
        twice = next(path for path in paths if path not in pairs.values())
        other = pairs[output.replace("*", _name_of(twice))]
        raise UserError(
            f"input names {twice} and {other}, whose outputs would have the same name; predict one by itself"
        )
    return [(path, place) for place, path in pairs.items()]


def _name_of(path: str) -> str:
    """Return the name of a file without its suffix, and without that of a compressed file."""
    name = re.split("[?#]", path)[0].rstrip("/").rpartition("/")[2].removesuffix(".gz")
    return Path(name).stem
