"""Scores of tagged rows, by exact spans."""

import math
from typing import Any, Self

from nlu.metrics.scores import ExactSum, Record, Scores, ratio
from nlu.metrics.spans import SpanCounts


class SpanScorer:
    """Precision, recall and F1 of spans, micro-averaged over types; a span is right when its ends and type are.

    A record holds `label` and `spans`, lists of (first unit, last unit, type), and the counts `units`, `units_right`
    and `units_scored`, of those that max_len left, with `loss`, the negative log likelihood of the latter in nats.
    Memory: a few numbers for each type.
    """

    def __init__(self, names: list[str]):
        self._spans = SpanCounts()
        self._loss = ExactSum()
        self._units = self._right = self._scored = 0

    def add(self, record: Record) -> None:
        found, gold = ({tuple(span) for span in record[key]} for key in ("spans", "label"))
        self._spans.add_spans(found, gold)  # type: ignore[arg-type]
        self._units += record["units"]
        self._right += record["units_right"]
        self._scored += record["units_scored"]
        self._loss.add(record["loss"])

    def merge(self, other: Self) -> None:
        self._spans.merge(other._spans)
        self._loss.merge(other._loss)
        self._units += other._units
        self._right += other._right
        self._scored += other._scored

    def result(self) -> Scores:
        total = self._spans.scores()
        metrics = {f"span_{name}": total[name] for name in ("f1", "precision", "recall")}
        metrics["tag_accuracy"] = ratio(self._right, self._units)
        metrics["loss"] = self._loss.value / self._scored if self._scored else math.nan
        return Scores(metrics, self._by_label())

    def _by_label(self) -> list[dict[str, Any]]:
        counts = self._spans
        return [
            {"label": kind, "examples": counts.wanted[kind], "correct": counts.right[kind], **counts.scores(kind)}
            for kind in sorted(counts.wanted | counts.predicted)
        ]
