"""Exact spans from BIO tags, and their scores. Axes: U units of one row, C tags."""

from collections import Counter
from collections.abc import Sequence
from functools import cache
from typing import Self

import numpy as np

Span = tuple[int, int, str]


def spans_of(tags: Sequence[str]) -> list[Span]:
    """Return (first, last, type) of each span; an I- that continues nothing of its type begins a span."""
    spans: list[Span] = []
    start, kind = 0, ""
    for place, tag in enumerate([*tags, "O"]):
        prefix, _, name = tag.partition("-")
        if kind and (prefix != "I" or name != kind):
            spans.append((start, place - 1, kind))
            kind = ""
        if prefix == "B" or (prefix == "I" and not kind):
            start, kind = place, name
    return spans


def in_characters(spans: Sequence[Span], ends_U: Sequence[Sequence[int]] | None) -> list[Span]:
    """Return the spans of units as spans of a text's characters; `ends_U`: the first and the last character of each
    unit, null where a row is a list of units."""
    if ends_U is None:
        return list(spans)
    return [(ends_U[first][0], ends_U[last][1], name) for first, last, name in spans]


def legal_steps(names: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Return which tag may follow which, (C, C), rows being what is followed, and which may come first, (C,).

    An I- follows only a B- or I- of its own type; everything else may stand anywhere.
    """
    follows_CC = np.array(
        [[not after.startswith("I-") or before[:2] in ("B-", "I-") and before[2:] == after[2:] for after in names]
         for before in names], dtype=bool,
    ).reshape(len(names), len(names))  # fmt: skip
    return follows_CC, np.array([not name.startswith("I-") for name in names], dtype=bool)


def legal_tags(scores_UC: np.ndarray, names: Sequence[str]) -> np.ndarray:
    """Return the best tag sequence of those that `legal_steps` allows (Viterbi); (U,).

    Scores of tags are added up; of equal sequences the tag of lower number wins.
    """
    tags_U = np.zeros(len(scores_UC), np.int64)
    if not len(scores_UC):
        return tags_U
    forbidden_CC, first_C = _costs(tuple(names))
    best_C = scores_UC[0] + first_C
    came_from_UC = np.zeros(scores_UC.shape, np.int64)
    for place in range(1, len(scores_UC)):
        paths_CC = best_C[:, None] + forbidden_CC
        came_from_UC[place] = paths_CC.argmax(0)
        best_C = paths_CC.max(0) + scores_UC[place]
    tags_U[-1] = best_C.argmax()
    for place in range(len(scores_UC) - 1, 0, -1):
        tags_U[place - 1] = came_from_UC[place, tags_U[place]]
    return tags_U


@cache
def _costs(names: tuple[str, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Return what is added to a path for each tag (column) after another (row), and for each first tag: 0, or -inf."""
    follows_CC, begins_C = legal_steps(names)
    return np.where(follows_CC, 0.0, -np.inf), np.where(begins_C, 0.0, -np.inf)


class SpanCounts:
    """Right, predicted and wanted spans, in all and by type."""

    def __init__(self) -> None:
        self.right: Counter[str] = Counter()
        self.predicted: Counter[str] = Counter()
        self.wanted: Counter[str] = Counter()

    def add(self, predicted: Sequence[str], wanted: Sequence[str]) -> None:
        """Count one row's tags; a span is right when its first unit, last unit and type are."""
        self.add_spans(set(spans_of(predicted)), set(spans_of(wanted)))

    def add_spans(self, found: set[Span], gold: set[Span]) -> None:
        """Count one row's spans."""
        for counter, spans in ((self.right, found & gold), (self.predicted, found), (self.wanted, gold)):
            counter.update(kind for _, _, kind in spans)

    def merge(self, other: Self) -> None:
        """Count all rows that another was told."""
        for counter, theirs in (
            (self.right, other.right), (self.predicted, other.predicted), (self.wanted, other.wanted),
        ):  # fmt: skip
            counter.update(theirs)

    def scores(self, kind: str | None = None) -> dict[str, float]:
        """Return precision, recall and F1 over all types (micro) or of one type; 0 where there is nothing."""
        right, predicted, wanted = (
            (c.total() if kind is None else c[kind]) for c in (self.right, self.predicted, self.wanted)
        )
        precision = right / predicted if predicted else 0.0
        recall = right / wanted if wanted else 0.0
        f1 = 2 * right / (predicted + wanted) if predicted + wanted else 0.0
        return {"precision": precision, "recall": recall, "f1": f1}
