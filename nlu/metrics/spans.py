"""Spans: read from BIO tags, compared, and scored by exact match. Axes: U units of one row, C tags."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Literal, Self

import numpy as np

from nlu.metrics.scores import Columns, Record, Scores, by_label, micro, precision_recall_f1

Span = tuple[int, int, str]
"""first unit, last unit and type"""
Fault = Literal["wrong type", "wrong ends", "wrong type and ends", "missed", "invented"]
FAULTS: tuple[Fault, ...] = ("wrong type", "wrong ends", "wrong type and ends", "missed", "invented")


def spans_of(tags: Sequence[str]) -> list[Span]:
    """Return (first, last, type) of each span; an I- that continues no span of its type begins one."""
    spans: list[Span] = []
    start, kind = 0, ""
    # The O behind the last tag ends a span that reaches the end of the row.
    for place, tag in enumerate([*tags, "O"]):
        prefix, _, name = tag.partition("-")
        if kind and (prefix != "I" or name != kind):
            spans.append((start, place - 1, kind))
            kind = ""
        if prefix == "B" or (prefix == "I" and not kind):
            start, kind = place, name
    return spans


def in_characters(spans: Sequence[Span], ends_U: Sequence[Sequence[int]] | None) -> list[Span]:
    """Return spans of units as spans of characters, given the first and last character of each unit.

    `ends_U` None: the row is a list of units, and the spans stay as they are.
    """
    if ends_U is None:
        return list(spans)
    return [(ends_U[first][0], ends_U[last][1], name) for first, last, name in spans]


def legal_steps(names: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Return which tag (column) may follow which (row), (C, C), and which may come first, (C,).

    An I- may follow only a B- or I- of its type; every other tag may follow any.
    """
    follows_CC = np.array(
        [
            [not after.startswith("I-") or before[:2] in ("B-", "I-") and before[2:] == after[2:] for after in names]
            for before in names
        ],
        dtype=bool,
    ).reshape(len(names), len(names))
    return follows_CC, np.array([not name.startswith("I-") for name in names], dtype=bool)


class SpanScorer(Columns):
    """Precision, recall and F1 of spans, micro-averaged over types; a span is right if its ends and type are.

    A record holds `label` and `spans`, lists of (first unit, last unit, type); the counts `units`, `units_right` and
    `units_scored` (those within max_len); and `loss`, the negative log likelihood of the scored units in nats.
    """

    def __init__(self, names: list[str]):
        super().__init__(names, sums=["units", "units_right", "units_scored", "loss"])
        self.right, self.predicted, self.wanted = self.counts = Counter[str](), Counter[str](), Counter[str]()
        """numbers of spans by type"""

    def add(self, record: Record) -> None:
        super().add(record)
        found, gold = span_set(record["spans"]), span_set(record["label"])
        for counter, spans in zip(self.counts, (found & gold, found, gold), strict=True):
            counter.update(type_ for _, _, type_ in spans)

    def merge(self, other: Self) -> None:
        super().merge(other)
        for counter, theirs in zip(self.counts, other.counts, strict=True):
            counter.update(theirs)

    def result(self) -> Scores:
        types = sorted(self.wanted | self.predicted)
        counts_3C = [np.array([counter[one] for one in types], np.int64) for counter in self.counts]
        units, right, scored = map(self.total, ("units", "units_right", "units_scored"))
        metrics = dict(zip(("span_precision", "span_recall", "span_f1"), micro(*counts_3C), strict=True))
        metrics["tag_accuracy"] = right / units if units else 0.0
        metrics["loss"] = self.total("loss") / scored if scored else math.nan
        right_C, _, wanted_C = counts_3C
        return Scores(metrics, by_label(types, wanted_C, right_C, precision_recall_f1(*counts_3C)))


def span_set(spans: Iterable[Sequence[Any]]) -> set[Span]:
    """Return spans as a set; spans that were read from JSON are lists."""
    return {(first, last, kind) for first, last, kind in spans}


def faults_of(wanted: set[Span], found: set[Span]) -> list[tuple[Fault, Span | None, Span | None]]:
    """Return the faults, each with the gold span and the one found instead, in order of the text.

    A gold span that was not found exactly has the wrong type if a span with the same ends was found, wrong ends if one
    of its type overlaps it, and both if another one overlaps it; otherwise it is missed. A found span that overlaps no
    gold span is invented.
    """
    faults: list[tuple[Fault, Span | None, Span | None]] = []
    for span in wanted - found:
        near = [other for other in found if _overlap(span, other)]
        same_ends = [other for other in near if other[:2] == span[:2]]
        same_type = [other for other in near if other[2] == span[2]]
        # The first three faults, in the order of how little is wrong; the other two lack a counterpart.
        for fault, others in zip(FAULTS, (same_ends, same_type, near), strict=False):
            if others:
                faults.append((fault, span, min(others)))
                break
        else:
            faults.append(("missed", span, None))
    faults += [("invented", None, span) for span in found if not any(_overlap(span, other) for other in wanted)]
    return sorted(faults, key=lambda fault: fault[1] or fault[2] or (0, 0, ""))


def _overlap(span: Span, other: Span) -> bool:
    return span[0] <= other[1] and other[0] <= span[1]
