"""Statistics over a whole evaluation, from the calls of `nlu.runs.summary.over_evaluation`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self, get_args

import numpy as np

from nlu.config.errors import UserError
from nlu.runs.tallies import Mean

Reduction = Literal["mean", "sum", "min", "max"]
REDUCTIONS = get_args(Reduction)
Reduce = Reduction | Callable[[np.ndarray], float | Mapping[str, float]]
PREFIX = "summary/"
"""what the names of the statistics start with among the metrics of a set"""


@dataclass
class Values:
    """All values of one name: a few numbers, or each of them where a function of the user's will read them."""

    reduce: Reduce | None
    """None on its way between processes, since a function may not be sent"""
    mean: Mean = field(default_factory=Mean)
    low: float = np.inf
    high: float = -np.inf
    kept: list[np.ndarray] = field(default_factory=list)

    def add(self, values_V: np.ndarray) -> None:
        if callable(self.reduce):
            # The caller may reuse its array for the next batch.
            self.kept.append(values_V.copy())
            return
        for value in values_V.tolist():
            self.mean.add(value)
        if len(values_V):
            # numpy's minimum and maximum of values with a NaN are NaN, in any order.
            self.low, self.high = (
                float(np.minimum(self.low, values_V.min())),
                float(np.maximum(self.high, values_V.max())),
            )

    def merge(self, other: Self) -> None:
        self.mean.merge(other.mean)
        self.low, self.high = float(np.minimum(self.low, other.low)), float(np.maximum(self.high, other.high))
        self.kept += other.kept

    def result(self, name: str) -> dict[str, float]:
        """Return the statistics by name."""
        if callable(self.reduce):
            # The order of values depends on batches and ranks; sorted, the same values give the same statistic.
            found = self.reduce(np.sort(np.concatenate(self.kept)))
            named = (
                {f"{name}/{key}": value for key, value in found.items()}
                if isinstance(found, Mapping)
                else {name: found}
            )
            try:
                return {key: float(value) for key, value in named.items()}
            except (TypeError, ValueError):
                shown = {key: type(value).__name__ for key, value in named.items()}
                raise UserError(
                    f"the function of summary.over_evaluation({name!r}) returned {shown}; return a number, or a "
                    "dictionary of numbers"
                ) from None
        if not self.mean.calls:
            return {}
        assert self.reduce is not None
        return {name: {"mean": self.mean.value, "sum": self.mean.total, "min": self.low, "max": self.high}[self.reduce]}


class Recorder:
    """The values that this process records in one evaluation."""

    def __init__(self) -> None:
        self._values: dict[str, Values] = {}

    def add(self, name: str, values: Any, reduce: Reduce) -> None:
        """Add all elements of a tensor, an array or a sequence, or one number."""
        if not callable(reduce) and reduce not in REDUCTIONS:
            raise UserError(
                f"summary.over_evaluation({name!r}) was given reduce={reduce!r}; give {', '.join(REDUCTIONS)} or a "
                "function of an array"
            )
        own = self._values.setdefault(name, Values(reduce))
        # Functions are not compared: each call may make its own from the same code.
        if own.reduce != reduce and not (callable(own.reduce) and callable(reduce)):
            raise UserError(
                f"summary.over_evaluation({name!r}) was given reduce={reduce!r} after {own.reduce!r}; choose another "
                "name"
            )
        if hasattr(values, "detach"):
            values = values.detach().double().cpu().numpy()
        own.add(np.asarray(values, np.float64).reshape(-1))

    def copy(self) -> "Recorder":
        """Return a recorder that has recorded the same; what either records later is not in the other."""
        copied = Recorder()
        copied._values = {
            name: replace(one, mean=replace(one.mean, partials=one.mean.partials[:]), kept=one.kept[:])
            for name, one in self._values.items()
        }
        return copied

    def sent(self) -> dict[str, Values]:
        """Return what another process can receive."""
        return {name: Values(None, one.mean, one.low, one.high, one.kept) for name, one in self._values.items()}

    def merge(self, others: Mapping[str, Values]) -> None:
        """Add the values of another process. Raises UserError for a name that only the other one recorded."""
        for name, values in others.items():
            if name not in self._values:
                raise UserError(
                    f"summary.over_evaluation({name!r}) was called in one process, but not in the first one; call it "
                    "for every batch of an evaluation"
                )
            self._values[name].merge(values)

    def results(self) -> dict[str, float]:
        """Return all statistics by their names among the metrics of a set."""
        return {
            f"{PREFIX}{key}": value
            for name in sorted(self._values)
            for key, value in self._values[name].result(name).items()
        }
