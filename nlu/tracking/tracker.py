"""The contract of a tracker. Only rank 0 has one, and its errors never end a run.

A tracker writes only to this machine. Its constructor takes the keys of its YAML, and `start` is the first call.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from nlu.runs.tallies import Histogram

Outcome = Literal["finished", "pruned", "stopped", "failed"]


@dataclass
class Point:
    """The numbers of one step."""

    step: int
    """the number of optimizer steps so far"""
    values: dict[str, float] = field(default_factory=dict)
    """`train/loss`, `dev/accuracy`, `summary/NAME`, ..."""
    histograms: dict[str, Histogram] = field(default_factory=dict)

    def add(self, other: "Point") -> None:
        """Add the numbers of another point of the same step."""
        self.values |= other.values
        self.histograms |= other.histograms


@dataclass(frozen=True)
class Beginning:
    """A run when it begins or continues."""

    name: str
    group: str | None
    """the search, the grid or the repeats to which it belongs; None for a single run"""
    folder: Path
    """a folder for the tracker in that of the run; it may not exist, or may hold files of an earlier start"""
    config: Mapping[str, Any]
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
