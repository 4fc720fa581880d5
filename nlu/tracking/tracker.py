"""What a tracker promises, and what it is told. Only rank 0 has one, and what it raises never ends a run.

A tracker writes to this machine alone. Its constructor takes the keys of its YAML; `start` comes before all else.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from nlu.runs.tallies import Histogram

Outcome = Literal["finished", "pruned", "stopped", "failed"]


@dataclass
class Point:
    """All that is known of one step."""

    step: int
    """optimizer steps done"""
    values: dict[str, float] = field(default_factory=dict)
    """`train/loss`, `dev/accuracy`, `summary/NAME`, ..."""
    histograms: dict[str, Histogram] = field(default_factory=dict)

    def add(self, other: "Point") -> None:
        """Take over what another point of the same step holds."""
        self.values |= other.values
        self.histograms |= other.histograms


@dataclass(frozen=True)
class Beginning:
    """A run as it begins, or continues."""

    name: str
    group: str | None
    """the search, the grid or the repeats that it is a part of; None = it stands alone"""
    folder: Path
    """for the tracker alone, in the run's folder; it may not be there yet, or hold what an earlier start left"""
    config: Mapping[str, Any]
    """by dotted key"""
    step: int
    """the run continues from here; whatever was told of later steps, before a kill, will be told once more"""
    past: Callable[[], Iterable[Point]]
    """gives all points up to `step` anew, in their order, from the run's own tables"""


class Tracker(Protocol):
    """One of them. Optional class constants, read before anything is built: `packages`, by the name that is imported
    the name that pip installs, and the `extra` of nlu that has them."""

    def start(self, beginning: Beginning) -> None:
        """Begin or continue, so that each step is there once."""

    def log(self, point: Point) -> None:
        """Keep what is known of a step, which is told once; steps grow."""

    def flush(self) -> None:
        """Have on disk whatever was logged: a state is saved next, and a run continues from there."""

    def end(self, outcome: Outcome, results: Mapping[str, float]) -> None:
        """Close. `results` are the metrics of the best weights; a run that stopped or failed has none yet."""
