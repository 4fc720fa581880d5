"""The contract of a tracker, and the tables of a run as points for one that lost some or is new.

Only rank 0 has a tracker, and its errors never end a run. A tracker writes only to this machine. Its constructor takes
the keys of its YAML, and `start` is the first call.
"""

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Literal, Protocol

from nlu.runs.records import INSPECT, INSPECT_VALUES, SCALARS, TRAIN, VALID, Cell, read_rows

Outcome = Literal["finished", "pruned", "stopped", "failed"]


@dataclass
class Point:
    """The numbers of one step."""

    step: int
    """the number of optimizer steps so far"""
    values: dict[str, float] = field(default_factory=dict)
    """`train/loss`, `dev/accuracy`, `summary/NAME`, ..."""

    def add(self, other: "Point") -> None:
        """Add the numbers of another point of the same step."""
        self.values |= other.values


@dataclass(frozen=True)
class Beginning:
    """A run when it begins or continues."""

    name: str
    group: str | None
    """the search, the grid or the repeats to which it belongs; None for a single run"""
    folder: Path
    """a folder for the tracker in that of the run; it may not exist, or may hold files of an earlier start"""
    config: Mapping[str, object]
    """the configuration by dotted key"""
    step: int
    """the step from which the run continues; points of later steps, logged before a kill, are logged again"""
    past: Callable[[], Iterable[Point]]
    """returns all points up to `step` in order, from the tables of the run"""


class Tracker(Protocol):
    """A tracker. It may have class constants, read before anything is built: `packages` maps importable names to names
    for pip, and `extra` is the extra of nlu that contains them."""

    def start(self, beginning: Beginning) -> None:
        """Begin or continue, so that each step is recorded once."""

    def log(self, point: Point) -> None:
        """Record the numbers of a step. Each step is logged once, in increasing order."""

    def flush(self) -> None:
        """Write everything logged so far to the disk: a state is saved next, from which a run may continue."""

    def end(self, outcome: Outcome, results: Mapping[str, float]) -> None:
        """Close. `results` are the metrics of the best weights; empty for a run that stopped or failed."""


Row = Mapping[str, Cell]
OF_SUMMARY = "summary"
"""the prefix of names from `nlu.runs.summary`"""
OF_INSIDE = "inspect"
"""the prefix of norms of modules"""


def of_train(row: Row) -> Point:
    """Return the point of a row of train.tsv."""
    return _point(row, {f"train/{name}": value for name, value in row.items() if name != "step"})


def of_valid(row: Row) -> Point:
    """Return the point of a row of valid.tsv."""
    return _point(row, {f"{row['set']}/{row['metric']}": row["value"]})


def of_scalars(row: Row) -> Point:
    """Return the point of a row of scalars.tsv."""
    return _point(row, {f"{OF_SUMMARY}/{row['name']}": row["value"]})


def of_inside(row: Row) -> Point:
    """Return the point of a row of inspect.tsv, with its numbers as `inspect/COLUMN/NAME`."""
    return _point(row, {f"{OF_INSIDE}/{column}/{row['name']}": row.get(column) for column in INSPECT_VALUES})


def past_points(run_dir: Path, step: int) -> Iterator[Point]:
    """Yield one point for each step up to `step`, in order."""
    tables = {name: _rows(run_dir / name, step) for name in (TRAIN, VALID, SCALARS, INSPECT)}
    kinds: list[Iterable[Point]] = [
        map(of_train, tables[TRAIN]),
        map(of_valid, tables[VALID]),
        map(of_scalars, tables[SCALARS]),
        map(of_inside, tables[INSPECT]),
    ]
    # Each table is in the order of steps, so merging puts the points of one step side by side.
    for number, points in groupby(heapq.merge(*kinds, key=attrgetter("step")), key=attrgetter("step")):
        whole = Point(number)
        for point in points:
            whole.add(point)
        yield whole


def _point(row: Row, values: Mapping[str, Cell]) -> Point:
    numbers = {key: float(value) for key, value in values.items() if isinstance(value, int | float)}
    return Point(int(row["step"] or 0), numbers)


def _rows(path: Path, step: int) -> list[dict[str, Cell]]:
    rows = read_rows(path) if path.is_file() else []
    # Rows of later steps were written before a kill and are written again.
    return [row for row in rows if int(row["step"] or 0) <= step]
