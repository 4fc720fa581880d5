"""A result that several jobs make together, in pieces that they claim one by one.

The pieces are in a folder or a bucket beside the result, `.NAME.jobs/PLAN/`, where PLAN is a digest of all that
determines their bytes. A job that computes a piece first creates its claim, on the condition that none exists; a piece
appears as a whole. A claim only saves work: whoever computes a piece writes the same bytes. So nothing has to be known
of a job that was killed or suspended. If its piece is not there after a while, another job claims it again; no clock
of another machine is asked.
"""

import json
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Self

from nlu.config.command_keys import STANDARD, Shared
from nlu.config.errors import DataError, UserError
from nlu.inference.output_pieces import Joins, pieces_of
from nlu.storage.access import stat
from nlu.storage.cache import text_digest
from nlu.storage.files import replacing, write_bytes
from nlu.storage.locations import BEGUN, parse_place
from nlu.storage.objects import ObjectStore
from nlu.storage.outputs import send_file
from nlu.storage.tables import is_table

log = logging.getLogger(__name__)

PATIENCE_S = 20.0
"""how long at least a job waits for a piece that another one has claimed, before it claims it again"""
MAKING_S = 300.0
"""the same for the result itself"""
PAUSES_S = 0.2, 5.0
"""the shortest and the longest pause between two looks at what is there"""
DONE, LEFT = "done", "left-"
"""the last piece, which says that the result is complete; what the jobs that are through have left"""


@dataclass(frozen=True)
class Team:
    """The jobs that make a result."""

    job: int
    """the number of this one, from 0"""
    jobs: int

    @classmethod
    def of(cls, config: Shared) -> Self:
        """Return the team of a job; a command that starts its jobs has none of them."""
        return cls(config.job or 0, config.jobs)


class _Folder:
    """A folder of this machine or of a shared file system, with the methods of ObjectStore that are used here."""

    def __init__(self, path: Path):
        self.path, self.shown = path, str(path)

    def put(self, key: str, content: bytes) -> None:
        write_bytes(self.path / key, content)

    def put_new(self, key: str, content: bytes) -> bool:
        self.path.mkdir(parents=True, exist_ok=True)
        try:
            with open(self.path / key, "xb") as file:
                file.write(content)
        except FileExistsError:
            return False
        return True

    def get(self, key: str) -> bytes:
        return (self.path / key).read_bytes()

    def list(self) -> dict[str, None]:
        try:
            # Without what other jobs have begun to write, which is nobody else's to delete.
            return {name: None for name in os.listdir(self.path) if not name.startswith(".")}
        except FileNotFoundError:
            return {}

    def delete(self, key: str) -> None:
        (self.path / key).unlink(missing_ok=True)


class Claimed:
    """The pieces of one result; `shared` gives one."""

    def __init__(self, output: str, plan: Mapping[str, object], key: str = "output"):
        """`plan` is JSON with everything that determines the bytes of the pieces; errors call `output` by `key`."""
        self.place = parse_place(output, key, writes=True)
        self._shown = f"{key} is {self.place.shown}"
        top = replace(self.place, path=f"{self.place.path.rpartition('/')[0]}/.{self.place.name}.jobs".lstrip("/"))
        own = text_digest(json.dumps(plan, sort_keys=True))
        local = Path(output).with_name(f".{self.place.name}.jobs")
        self._store: _Folder | ObjectStore = (
            _Folder(local / own) if self.place.is_local else ObjectStore(f"{top.shown}/{own}", key)
        )
        self._seen: dict[str, tuple[str, float]] = {}
        """the newest claim of a piece that another job has, and when this one saw it first"""
        self._longest_s = 0.0

    def run(self, names: Sequence[str], compute: Callable[[str], bytes], patience_s: float = 0.0) -> None:
        """Compute pieces until all of `names` are there; `patience_s`: how long one may take, as far as is known."""
        left, pause_s = dict.fromkeys(names), PAUSES_S[0]
        while left:
            there, has_computed = self._store.list(), False
            if DONE in there:
                return
            for name in list(left):
                if name in there:
                    del left[name]
                elif self._claims(name, there, patience_s):
                    self._compute(name, compute)
                    del left[name]
                    has_computed = True
            if left and not has_computed:
                time.sleep(pause_s)
                pause_s = min(1.5 * pause_s, PAUSES_S[1])

    def _claims(self, name: str, there: Mapping[str, object], patience_s: float) -> bool:
        """Return whether this job may compute a piece: no job has claimed it, or too long ago."""
        number = 0
        while f"{name}.claim-{number}" in there:
            number += 1
        newest, now_s = f"{name}.claim-{number - 1}", time.monotonic()
        if number:
            claim, since_s = self._seen.get(name, ("", now_s))
            if claim != newest:
                self._seen[name] = newest, now_s
                return False
            # Longer for each claim, so that a slow piece is not computed by all jobs at once.
            if now_s - since_s < max(PATIENCE_S, patience_s, 2 * self._longest_s) * 2 ** (number - 1):
                return False
            log.info("%s: %s is not there %.0f s after its claim; it is computed again here", self.place.shown, name,
                     now_s - since_s)  # fmt: skip
        if self._store.put_new(f"{name}.claim-{number}", b""):
            return True
        self._seen[name] = f"{name}.claim-{number}", now_s
        return False

    def _compute(self, name: str, compute: Callable[[str], bytes]) -> None:
        began_s, is_written = time.monotonic(), False
        try:
            self._store.put(name, compute(name))
            is_written = True
        finally:
            if not is_written:
                # A job that is stopped lets another one have the piece at once.
                for claim in [claim for claim in self._store.list() if claim.startswith(f"{name}.claim-")]:
                    self._store.delete(claim)
        self._longest_s = max(self._longest_s, time.monotonic() - began_s)

    def get(self, name: str) -> bytes | None:
        """Return a piece that was there; None if the result is complete by now."""
        try:
            return self._store.get(name)
        except FileNotFoundError:
            if not self.is_done:
                raise
            return None

    @property
    def is_done(self) -> bool:
        """Whether the result is complete."""
        return DONE in self._store.list()

    @property
    def _is_made(self) -> bool:
        path = Path(self.place.path)
        if self.place.is_local:
            return path.is_file() or path.is_dir() and any(path.iterdir())
        # A folder has this mark until it is complete.
        return stat(self.place) is not None and stat(self.place.within(BEGUN)) is None

    def finish(self, names: Sequence[str], make: Callable[[list[Path]], None]) -> None:
        """Have one job `make` the result, which appears as a whole, from pieces; return once it is complete."""

        def made(_: str) -> bytes:
            # A job that was killed before it could say so may have made it.
            if not self._is_made:
                try:
                    with self._paths(names) as paths:
                        make(paths)
                except (OSError, UserError):
                    # This job was slow, and another one has made it meanwhile.
                    if not self._is_made:
                        raise
            return b""

        self.run([DONE], made, MAKING_S)
        for name in [name for name in self._store.list() if not name.startswith((DONE, LEFT))]:
            self._store.delete(name)

    @contextmanager
    def _paths(self, names: Sequence[str]) -> Iterator[list[Path]]:
        if isinstance(self._store, _Folder):
            yield [self._store.path / name for name in names]
            return
        with TemporaryDirectory(prefix="nlu-pieces-", ignore_cleanup_errors=True) as folder:
            for name in names:
                self._store.get_file(name, Path(folder, name))
            yield [Path(folder, name) for name in names]

    def join(self, names: Sequence[str], output: Joins) -> None:
        """Join pieces to the file, as `finish` does."""

        def make(paths: list[Path]) -> None:
            if self.place.is_local:
                with replacing(self.place.path) as file:
                    output.join(paths, file)
                return
            with TemporaryDirectory(prefix="nlu-joined-", ignore_cleanup_errors=True) as folder:
                with open(joined := Path(folder, self.place.name), "wb") as file:
                    output.join(paths, file)
                send_file(joined, self.place)

        self.finish(names, make)

    def begin(self, require_free: Callable[[], None]) -> None:
        """Call `require_free`, which raises UserError if something is at the place of the result, unless these jobs
        have made it."""
        there = self._store.list()
        if not any(name.startswith(DONE) for name in there):
            require_free()
        elif DONE in there and not self._is_made:
            # The result was removed since.
            self.remove()

    def leave(self, team: Team) -> None:
        """Note that this job is through. The last one removes the folder; after a kill it stays, with a few bytes."""
        self._store.put(f"{LEFT}{team.job}", b"")
        if sum(name.startswith(LEFT) for name in self._store.list()) == team.jobs:
            self.remove()

    def remove(self) -> None:
        """Remove all pieces and claims of these jobs."""
        if not isinstance(self._store, _Folder):
            for name in self._store.list():
                self._store.delete(name)
            return
        # Another job may do so too, and pieces of another plan may be beside it.
        shutil.rmtree(self._store.path, ignore_errors=True)
        with suppress(OSError):
            self._store.path.parent.rmdir()


@contextmanager
def claimed(
    output: str, plan: Mapping[str, object], team: Team, require_free: Callable[[], None], key: str = "output"
) -> Iterator[Claimed]:
    """Give the pieces of a result for as long as this job works on it; see `Claimed`."""
    found = Claimed(output, plan, key)
    found.begin(require_free)
    try:
        yield found
    except DataError:
        # Every job finds these rows wrong.
        found.leave(team)
        raise
    found.leave(team)


def write_in_pieces(
    output: str, plan: Mapping[str, object], count: int, compute: Callable[[int], bytes], joins: Joins, team: Team
) -> None:
    """Write a file from `count` pieces, in this process or together with the other jobs of the team.

    `compute` returns a piece by its number; it must be a function of the plan. Raises UserError if the file exists.
    """
    pieces = pieces_of(output)
    if team.jobs > 1:
        names = piece_names(count)
        with claimed(output, plan, team, pieces.require_place) as shared:
            shared.run(names, lambda name: compute(int(name)))
            shared.join(names, joins)
    elif not pieces.is_finished(plan):
        with pieces.held(plan):
            for number in range(count):
                if not pieces.has(number):
                    pieces.write(number, compute(number))
            pieces.finish(count, joins)
    pieces.clear()


def piece_names(count: int) -> list[str]:
    """Return the names of numbered pieces."""
    return [f"{number:06d}" for number in range(count)]


def require_shareable(team: Team, world_size: int, output: str | None, key: str = "output") -> None:
    """Raise UserError unless the jobs can make a result together."""
    jobs = team.jobs
    if jobs == 1:
        return
    if team.job >= jobs:
        raise UserError(f"job is {team.job}, but jobs is {jobs}; number jobs from 0 to {jobs - 1}")
    if output is None or output == STANDARD or is_table(output):
        raise UserError(f"jobs is {jobs}, but {key} is {output}; name a file that all jobs see, or set jobs=1")
    if world_size > 1:
        raise UserError(
            f"jobs is {jobs}, but this job has {world_size} processes; let each job use one device, and set jobs to "
            "the number of devices"
        )
