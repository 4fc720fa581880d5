"""What is wrong with a prediction of each kind, how sure it was, and how the classes fare.

A judge is told every record of a set. The kinds are told apart by what a record holds: `spans`, or a prediction that is
a list, a number or a text; of rankings no row is right or wrong by itself.
"""

from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any, Protocol

from nlu.config.errors import UserError
from nlu.reports.errors.slices import Slice, rate
from nlu.runs.predictions import Record

Threshold = Callable[[Record], float]
MOST_NAMED = 3
"""confusions that are listed with a class"""


class Judge(Protocol):
    """One kind of prediction."""

    kind: str
    is_rate: bool
    """whether rows are right or wrong; else they are near or far"""
    ranked_by: str
    """what mistakes are ranked by, the largest first"""
    by_class: str
    """the title of the table by class; empty where there is none"""

    def add(self, record: Record) -> tuple[float, float]:
        """Count a record. Return 1 where it is wrong and 0 where it is right, or its distance; and how sure it was."""

    def classes(self) -> list[Slice]:
        """Return how the classes fare, those with most errors first."""

    def told(self, record: Record) -> dict[str, str]:
        """Return what is shown of a mistake, by header: first what is right, then what was predicted."""


class ClassJudge:
    """One of several classes, with its probability, or by a cosine and a threshold."""

    kind, is_rate, by_class = "classes", True, "by class"

    def __init__(self, first: Record, threshold: Threshold):
        self._threshold = threshold
        sources = {"probability": "probability", "similarity": "similarity - threshold", "loss": "loss"}
        self._sure_by = next((name for name in sources if name in first), "")
        self.ranked_by = sources.get(self._sure_by, "order")
        self._confused: dict[str, Counter[str]] = defaultdict(Counter)

    def add(self, record: Record) -> tuple[float, float]:
        self._confused[str(record["label"])][str(record["prediction"])] += 1
        return float(record["prediction"] != record["label"]), self._sureness(record)

    def _sureness(self, record: Record) -> float:
        value = float(record.get(self._sure_by) or 0.0)
        return abs(value - self._threshold(record)) if self._sure_by == "similarity" else value

    def classes(self) -> list[Slice]:
        found = []
        for label, predicted in self._confused.items():
            rows, wrong = predicted.total(), predicted.total() - predicted[label]
            others = [f"{name} {count:,}" for name, count in predicted.most_common() if name != label]
            found.append(rate(label, rows, wrong, {"predicted instead": ", ".join(others[:MOST_NAMED])}))
        return _worst_first(found)

    def told(self, record: Record) -> dict[str, str]:
        told = {"label": str(record["label"]), "predicted": str(record["prediction"])}
        if self._sure_by in ("probability", "similarity"):
            told[self._sure_by] = f"{record[self._sure_by]:.4f}"
        return told


class LabelSetJudge:
    """Any number of labels: a row is wrong unless the whole set is right."""

    kind, is_rate = "label sets", True
    ranked_by, by_class = "the surest wrong label", "by label of the rows that have it"

    def __init__(self, first: Record, threshold: Threshold):
        self._has: Counter[str] = Counter()
        self._missed: Counter[str] = Counter()
        self._invented: Counter[str] = Counter()

    def add(self, record: Record) -> tuple[float, float]:
        wanted, predicted = set(record["label"]), set(record["prediction"])
        for counter, labels in ((self._has, wanted), (self._missed, wanted - predicted),
                                (self._invented, predicted - wanted)):  # fmt: skip
            counter.update(labels)
        return float(wanted != predicted), self._surest(record)[0]

    def _surest(self, record: Record) -> tuple[float, str]:
        """The probability that a label has, or of one that is missed lacks, and the label."""
        of_each = record.get("probabilities") or {}
        wanted, predicted = set(record["label"]), set(record["prediction"])
        missed = [(1 - of_each.get(label, 0.0), label) for label in wanted - predicted]
        return max([*missed, *((of_each.get(label, 0.0), label) for label in predicted - wanted)], default=(0.0, ""))

    def classes(self) -> list[Slice]:
        labels = self._has | self._invented
        return _worst_first(
            [rate(label, self._has[label], self._missed[label], {"invented": self._invented[label]})
             for label in labels]
        )  # fmt: skip

    def told(self, record: Record) -> dict[str, str]:
        wanted, predicted = set(record["label"]), set(record["prediction"])
        probability, label = self._surest(record)
        return {
            "labels": _listed(record["label"]), "missed": _listed(sorted(wanted - predicted)),
            "invented": _listed(sorted(predicted - wanted)), "surest": f"{label} {probability:.4f}",
        }  # fmt: skip


class NumberJudge:
    """A number: near or far."""

    kind, is_rate = "numbers", False
    ranked_by, by_class = "distance", ""

    def __init__(self, first: Record, threshold: Threshold):
        pass

    def add(self, record: Record) -> tuple[float, float]:
        distance = abs(record["prediction"] - record["label"])
        return distance, distance

    def classes(self) -> list[Slice]:
        return []

    def told(self, record: Record) -> dict[str, str]:
        away = record["prediction"] - record["label"]
        return {
            "label": f"{record['label']:.6g}",
            "predicted": f"{record['prediction']:.6g}",
            "distance": f"{away:+.4g}",
        }


def judge_of(first: Record, threshold: Threshold) -> Judge:
    """Return the judge of predictions like this one. Raises UserError for those that nothing can be said of."""
    from nlu.reports.errors.spans import SpanJudge

    prediction: Any = first.get("prediction")
    if "spans" in first:
        return SpanJudge(first, threshold)
    if isinstance(prediction, list):
        return LabelSetJudge(first, threshold)
    if isinstance(prediction, float) and isinstance(first["label"], (int, float)):
        return NumberJudge(first, threshold)
    if prediction is not None:
        return ClassJudge(first, threshold)
    raise UserError(
        "these predictions rank candidates, so that no row is right or wrong by itself; python -m nlu.evaluate gives "
        "the scores of queries"
    )


def _worst_first(slices: list[Slice]) -> list[Slice]:
    return sorted(slices, key=lambda one: (-(one.wrong or 0), one.name))


def _listed(labels: list[str]) -> str:
    return ", ".join(labels) or "none"
