"""Everything of a run that a checkpoint must hold besides tensors, as one visible object.

There is no generator state and no loader state: both are functions of the seed and the step.
"""

from dataclasses import asdict, dataclass, field, fields
from typing import Any, Self

from nlu.runs.tallies import Histogram, Mean


@dataclass
class Best:
    """One of the best evaluations so far."""

    step: int
    examples: int
    epoch: float
    value: float
    metrics: dict[str, dict[str, float]]
    """by set, by name"""


@dataclass
class Window:
    """Sums since the last row of train.tsv."""

    sums: dict[str, float] = field(default_factory=dict)
    """of each term of the loss"""
    counts: dict[str, int] = field(default_factory=dict)
    """rows of each term"""
    loss_sum: float = 0.0
    """of the loss of each step"""
    gnorm_sum: float = 0.0
    clipped: int = 0
    steps: int = 0
    skipped: int = 0
    """steps whose gradient overflowed, of which nothing else is counted but rows and time"""
    examples: int = 0
    real_tokens: int = 0
    steps_s: float = 0.0
    recorded: dict[str, Mean] = field(default_factory=dict)
    """by `nlu.runs.summary.scalar`, over all ranks, on rank 0"""
    histograms: dict[str, Histogram] = field(default_factory=dict)
    """the same, by `histogram`"""

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Self:
        """Build from what a state's `to_json` gave."""
        window = cls(**values)
        window.recorded = {name: Mean(**each) for name, each in values.get("recorded", {}).items()}
        window.histograms = {name: Histogram(**each) for name, each in values.get("histograms", {}).items()}
        return window

    def add_recorded(self, means: dict[str, Mean], histograms: dict[str, Histogram]) -> None:
        """Add what the calls on a rank recorded."""
        for name, mean in means.items():
            self.recorded.setdefault(name, Mean()).merge(mean)
        for name, histogram in histograms.items():
            self.histograms.setdefault(name, Histogram()).merge(histogram)

    def add_terms(self, sums: dict[str, float], counts: dict[str, int]) -> None:
        """Add a step's sums."""
        for name, value in sums.items():
            self.sums[name] = self.sums.get(name, 0.0) + value
            self.counts[name] = self.counts.get(name, 0) + counts[name]

    def means(self) -> dict[str, float]:
        """Return the mean of each term over its rows."""
        return {name: value / max(1, self.counts[name]) for name, value in self.sums.items()}

    @property
    def updates(self) -> int:
        """Steps that were not skipped."""
        return self.steps - self.skipped

    @property
    def examples_per_s(self) -> float:
        return self.examples / self.steps_s

    @property
    def real_tokens_per_s(self) -> float:
        return self.real_tokens / self.steps_s


@dataclass
class Throughput:
    """Training steps, without evaluation, saving and the first steps of each process."""

    steps_s: float = 0.0
    examples: int = 0
    real_tokens: int = 0
    computed_tokens: int = 0
    """real ones plus the padding that the encoder computed"""


@dataclass
class State:
    """Where a run stands."""

    step: int = 0
    best: list[Best] = field(default_factory=list)
    """best first"""
    last_metrics: dict[str, dict[str, float]] = field(default_factory=dict)
    window: Window = field(default_factory=Window)
    throughput: Throughput = field(default_factory=Throughput)
    train_s: float = 0.0
    """wall time of the training loop, evaluations and saves included, over all starts"""
    evaluated_at: int = 0
    """step of the last evaluation"""
    improved_at: int = 0
    """step of the last evaluation that was better than all before, for `trainer.patience`"""
    precision: dict[str, float] = field(default_factory=dict)
    """of a precision that scales the loss: the scale, and whatever else decides the next one"""
    skipped: int = 0
    """steps so far whose gradient overflowed, so that nothing was updated"""
    pruned: bool = False
    """whether the sweep that this run is a trial of ended it early"""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Self:
        """Build from what `to_json` gave."""
        known = {item.name: values[item.name] for item in fields(cls)}
        known["best"] = [Best(**entry) for entry in known["best"]]
        known["window"] = Window.from_json(known["window"])
        known["throughput"] = Throughput(**known["throughput"])
        return cls(**known)
