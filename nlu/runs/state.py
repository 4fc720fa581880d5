"""Everything that a checkpoint stores of a run besides tensors, as one visible object.

Random generators and data loaders need no state, since they are functions of the seed and the step.
"""

from dataclasses import asdict, dataclass, field, fields
from typing import Any, Self

from nlu.runs.summary import Mean


@dataclass
class Best:
    """One of the best evaluations so far."""

    step: int
    examples: int
    epoch: float
    value: float
    metrics: dict[str, dict[str, float]]
    """by set, by name"""
    rows: dict[str, int] = field(default_factory=dict)
    """the number of scored rows of each set of which only a sample was scored (`trainer.eval_rows`)"""


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
    """steps whose gradient overflowed; only their rows and time are counted"""
    examples: int = 0
    real_tokens: int = 0
    steps_s: float = 0.0
    """without evaluations, saves, and waiting for rows that are still written"""
    seconds: dict[str, float] = field(default_factory=dict)
    """by phase (`nlu.training.phases`), on rank 0; together they are the time since the last row"""
    peak_mb: float = 0.0
    recorded: dict[str, Mean] = field(default_factory=dict)
    """values of `nlu.runs.summary.scalar`, over all ranks, on rank 0"""

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Self:
        """Build from the value in `State.to_json`."""
        window = cls(**values)
        for name, each in values.get("recorded", {}).items():
            # An earlier version saved the sum of those that are not finite by itself.
            apart = each.get("not_finite")
            window.recorded[name] = Mean([*each["partials"], *([] if apart is None else [apart])], each["calls"])
        return window

    def add_recorded(self, means: dict[str, Mean]) -> None:
        """Add the recorded values of one rank."""
        for name, mean in means.items():
            self.recorded.setdefault(name, Mean()).merge(mean)

    def add_costs(self, seconds: dict[str, float], peak_mb: float) -> None:
        """Add the seconds of each phase, and the largest memory since the last call."""
        for phase, value in seconds.items():
            self.seconds[phase] = self.seconds.get(phase, 0.0) + value
        self.peak_mb = max(self.peak_mb, peak_mb)

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


@dataclass
class State:
    """The progress of a run."""

    step: int = 0
    best: list[Best] = field(default_factory=list)
    """best first"""
    last_metrics: dict[str, dict[str, float]] = field(default_factory=dict)
    window: Window = field(default_factory=Window)
    throughput: Throughput = field(default_factory=Throughput)
    train_s: float = 0.0
    """wall time of the training loop with evaluations and saves, over all starts"""
    evaluated_at: int = 0
    """step of the last evaluation"""
    improved_at: int = 0
    """step of the last evaluation that improved on all before, for `trainer.patience`"""
    precision: dict[str, float] = field(default_factory=dict)
    """of a precision that scales the loss: the scale, and the numbers that decide the next one"""
    skipped: int = 0
    """steps without an update, since the gradient overflowed"""
    pruned: bool = False
    """whether the search ended this run, a trial, early"""
    pieces: int = 1
    """the number of parts in which each micro-batch is computed, since memory ran out"""

    def to_json(self) -> dict[str, object]:
        return asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Self:
        """Build from the result of `to_json`."""
        known = {item.name: values[item.name] for item in fields(cls)}
        known["best"] = [Best(**entry) for entry in known["best"]]
        known["window"] = Window.from_json(known["window"])
        known["throughput"] = Throughput(**known["throughput"])
        return cls(**known)
