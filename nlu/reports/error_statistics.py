"""How often predictions of some rows are wrong, or how far off, with a 95 % interval; and labels that may be wrong.

Suspected labels come from confident learning over out-of-fold probabilities, which cleanlab computes (extra `errors`):
Northcutt, Jiang and Chuang, Journal of Artificial Intelligence Research 70, 2021.

Axes: N rows, C classes, M suspected rows.
"""

import math
import warnings
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import NormalDist

import numpy as np

from nlu.config.errors import UserError
from nlu.metrics.kinds import Kind, Unit
from nlu.runs.predictions import Record

LEVEL = 0.95


@dataclass(frozen=True)
class Slice:
    """Some rows of a set, with their errors."""

    name: str
    rows: int
    wrong: int | None
    """None for predictions that have a distance, and are not right or wrong"""
    value: float | None
    """the share that is wrong, or the mean distance from the label; None without rows"""
    low: float | None
    high: float | None
    more: dict[str, int | str] = field(default_factory=dict)
    """further columns, by header"""


def rate(name: str, rows: int, wrong: int, more: dict[str, int | str] | None = None) -> Slice:
    """Return the share that is wrong, with Wilson's interval (J. of the American Statistical Association 22, 1927).

    It lies within 0 and 1 and holds for few rows and rare errors, unlike the usual p ± 1.96 sd.
    """
    if not rows:
        return Slice(name, 0, 0, None, None, None, more or {})
    from scipy.stats import binomtest

    interval = binomtest(wrong, rows).proportion_ci(LEVEL, method="wilson")
    return Slice(name, rows, wrong, wrong / rows, float(interval.low), float(interval.high), more or {})


def mean(name: str, distance_N: np.ndarray) -> Slice:
    """Return the mean distance, with the interval of a normal mean; without ends for fewer than two rows."""
    rows = len(distance_N)
    if not rows:
        return Slice(name, 0, None, None, None, None)
    value = float(distance_N.mean())
    if rows == 1:
        return Slice(name, 1, None, value, None, None)
    half = NormalDist().inv_cdf((1 + LEVEL) / 2) * float(distance_N.std(ddof=1)) / math.sqrt(rows)
    return Slice(name, rows, None, value, max(0.0, value - half), value + half)


def slice_of(name: str, value_N: np.ndarray, is_rate: bool) -> Slice:
    """Return the slice of rows that have these values: 1 wrong and 0 right, or distances."""
    return rate(name, len(value_N), int(value_N.sum())) if is_rate else mean(name, value_N)


def by_bounds(
    value_N: np.ndarray, measured_N: np.ndarray, bounds: list[float], names: list[str], is_rate: bool
) -> list[Slice]:
    """Return a slice for each range of a measured quantity: up to and including the first bound, and so on.

    `names` has one name more than there are bounds. Empty slices are left out.
    """
    # side="left" puts a value that equals a bound into the range that ends there.
    part_N = np.searchsorted(np.array(bounds), measured_N, side="left")
    found = [slice_of(name, value_N[part_N == part], is_rate) for part, name in enumerate(names)]
    return [one for one in found if one.rows]


class Parts:
    """The units of records by their part, such as the label: how many there are, and what is wrong with them."""

    def __init__(self, kind: Kind):
        self._kind = kind
        self._rows: Counter[str] = Counter()
        self._faults: dict[str, Counter[tuple[str, bool]]] = defaultdict(Counter)
        self._instead: dict[str, Counter[str]] = defaultdict(Counter)

    def add(self, units: Iterable[Unit]) -> None:
        """Count the units of a record."""
        for unit in units:
            if unit.is_gold:
                self._rows[unit.part] += 1
            if unit.fault:
                self._faults[unit.part][unit.fault, unit.is_gold] += 1
            if unit.instead:
                self._instead[unit.part][unit.instead] += 1

    def slices(self) -> list[Slice]:
        """Return a slice for each part, those with most errors first."""
        # A label may be predicted but never right, and then has faults without rows.
        found = [self._slice(part) for part in self._rows.keys() | self._faults.keys()]
        return sorted(found, key=lambda one: (-(one.wrong or 0), -(one.value or 0.0) * (one.wrong is None), one.name))

    def _slice(self, part: str) -> Slice:
        faults = self._faults[part]
        more: dict[str, int | str] = {fault: faults[fault, True] + faults[fault, False] for fault in self._kind.faults}
        header, most = self._kind.instead
        if header:
            more[header] = ", ".join(f"{name} {count:,}" for name, count in self._instead[part].most_common(most))
        wrong = sum(count for (_, is_gold), count in faults.items() if is_gold)
        return rate(part, self._rows[part], wrong, more)


@dataclass(frozen=True)
class Suspect:
    """A row whose label may be wrong."""

    number: int
    """of the record in the file, from 0"""
    label: str
    likely: str
    """the most probable class; for label sets the label that the row should have or lack"""
    self_confidence: float
    """the probability of the label"""


class Probabilities:
    """Labels and probabilities of all rows in their order. Memory: 8 bytes for each row and class."""

    def __init__(self, first: Record):
        self.names = list(first["probabilities"])
        self._number = {name: number for number, name in enumerate(self.names)}
        self._values = array("d")
        self.labels: list[list[int]] = []

    def add(self, record: Record) -> None:
        """Add a record."""
        label = record["label"]
        self.labels.append([self._number[name] for name in (label if isinstance(label, list) else [label])])
        of_each = record["probabilities"]
        self._values.extend(np.nan if of_each[name] is None else of_each[name] for name in self.names)

    @property
    def values_NC(self) -> np.ndarray:
        return np.array(self._values).reshape(len(self.labels), len(self.names))


def find_label_errors(known: Probabilities, are_sets: bool) -> list[Suspect]:
    """Return the suspected labels, each a class or a set of labels, the least probable label first.

    Probabilities of classes are divided by their sum, since losses that score each class separately give sums other
    than 1. Raises UserError if cleanlab is missing or the rows do not suffice.
    """
    values_NC = known.values_NC
    if not np.isfinite(values_NC).all():
        raise UserError("some probabilities are not finite")
    if len({label for labels in known.labels for label in labels}) < 2:
        raise UserError("all rows have the same label, so it cannot be confused with another")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            from cleanlab.filter import find_label_issues
            from cleanlab.multilabel_classification.filter import find_label_issues as find_in_sets
        except ImportError as error:
            raise UserError(
                f"this needs {(error.name or 'cleanlab').partition('.')[0]}; install it with pip install 'nlu[errors]'"
            ) from None
        if not are_sets:
            values_NC = values_NC / values_NC.sum(1, keepdims=True)
        # One process: the start of more takes longer than this, and they would import everything again.
        asked = {"filter_by": "confident_learning", "return_indices_ranked_by": "self_confidence", "n_jobs": 1}
        if are_sets:
            found_M = find_in_sets(known.labels, values_NC, **asked)
        else:
            found_M = find_label_issues(np.array([label for (label,) in known.labels]), values_NC, **asked)
    suspect = _of_sets if are_sets else _of_classes
    return [suspect(row, known.names, known.labels[row], values_NC[row]) for row in np.asarray(found_M).tolist()]


def _of_classes(row: int, names: Sequence[str], labels: Sequence[int], values_C: np.ndarray) -> Suspect:
    (label,) = labels
    others_C = values_C.copy()
    others_C[label] = -np.inf
    return Suspect(row, names[label], names[int(others_C.argmax())], float(values_C[label]))


def _of_sets(row: int, names: Sequence[str], labels: Sequence[int], values_C: np.ndarray) -> Suspect:
    """Name the label that fits least, since cleanlab names the row only."""
    has_C = np.zeros(len(names), bool)
    has_C[list(labels)] = True
    as_annotated_C = np.where(has_C, values_C, 1 - values_C)
    worst = int(as_annotated_C.argmin())
    likely = f"{'not ' if has_C[worst] else ''}{names[worst]}"
    shown = ", ".join(names[label] for label in labels) or "none"
    return Suspect(row, shown, likely, float(as_annotated_C[worst]))
