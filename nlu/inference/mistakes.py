"""The mistakes that a run made on its evaluation set, and which of them lie nearest to a row.

Axes: M mistakes, D width.
"""

import heapq
from collections.abc import Generator, Iterable, Iterator
from itertools import islice
from typing import Any

import numpy as np

from nlu.data.layouts import Values
from nlu.inference.columns import kind_of
from nlu.inference.predictor import Predictor
from nlu.inference.rows import alternatives_of
from nlu.runs.predictions import Record, evaluation_sets, predictions_of

MOST = 1000
"""mistakes that are looked at, those with the largest loss"""
READ_AT_ONCE = 500
"""records of predictions that a part of the work reads"""
FAR_OFF = 0.1
"""share of rows whose numbers are called mistakes: those that are furthest from what is right"""


class Mistakes:
    """What a run predicted wrong on its first evaluation set, as it kept it with its texts; encoded once."""

    def __init__(
        self, predictor: Predictor, records: list[Record], values: list[dict[str, Any]], vectors_MD: np.ndarray
    ):
        """Use `of`, which finds the rest."""
        self._predictor, self._records, self._values, self._vectors_MD = predictor, records, values, vectors_MD

    @classmethod
    def of(cls, predictor: Predictor) -> "Generator[None, None, Mistakes]":
        """Find and encode them, and give way between parts of the work. Raises DataError where they are damaged."""
        records = yield from _worst(predictor)
        values = [_texts(predictor, record) for record in records]
        vectors = []
        for start in range(0, len(values), predictor.batch_size):
            yield
            vectors.append(predictor.vectors(predictor.encode(values[start : start + predictor.batch_size])))
        return cls(predictor, records, values, _unit(np.concatenate(vectors or [np.zeros((0, 0), np.float32)])))

    def nearest(self, values: Values, count: int) -> list[dict[str, Any]]:
        """Return the mistakes whose vectors have the largest cosine with that of a row, the nearest first.

        Each has its texts by role, `label`, `prediction` and the `cosine`.
        """
        if not self._records:
            return []
        (own_D,) = _unit(self._predictor.vectors(self._predictor.encode([dict(values)])))
        cosines_M = self._vectors_MD @ own_D
        order = np.argsort(-cosines_M, kind="stable")[:count]
        return [
            {
                **self._values[place], "label": self._records[place]["label"],
                "prediction": _predicted(self._records[place]), "cosine": float(cosines_M[place]),
            }
            for place in order
        ]  # fmt: skip


def _worst(predictor: Predictor) -> Generator[None, None, list[Record]]:
    """Find the records whose prediction is wrong and whose text was kept, those with the largest loss first."""
    trained = predictor.trained
    run_dir, kind = trained.located.run_dir, kind_of(trained)
    names = evaluation_sets(run_dir)
    # A pair that is ranked has no wrong prediction by itself.
    if not names or kind == "similarity":
        return []
    limit = 0.0
    if kind == "number":
        losses: list[float] = []
        for some in _in_parts(predictions_of(run_dir, names[0])):
            losses += map(_badness, some)
            yield
        limit = float(np.quantile(losses, 1 - FAR_OFF)) if losses else 0.0
    worst: list[Record] = []
    for some in _in_parts(predictions_of(run_dir, names[0])):
        wrong = [
            record
            for record in some
            if (_badness(record) > limit if kind == "number" else _predicted(record) != record["label"])
            and any(all(role in record for role in roles) for roles in alternatives_of(trained))
        ]
        worst = heapq.nlargest(MOST, [*worst, *wrong], key=_badness)
        yield
    return worst


def _in_parts(records: Iterable[Record]) -> Iterator[list[Record]]:
    left = iter(records)
    while some := list(islice(left, READ_AT_ONCE)):
        yield some


def _badness(record: Record) -> float:
    # Of cosines there is no loss.
    return float(record.get("loss") or 0.0)


def _predicted(record: Record) -> Any:
    return record["spans"] if "spans" in record else record.get("prediction")


def _texts(predictor: Predictor, record: Record) -> dict[str, Any]:
    roles = next(roles for roles in alternatives_of(predictor.trained) if all(role in record for role in roles))
    return {role: record[role] for role in roles}


def _unit(vectors_ND: np.ndarray) -> np.ndarray:
    norms_N = np.linalg.norm(vectors_ND, axis=1, keepdims=True)
    return vectors_ND / np.maximum(norms_N, np.finfo(np.float32).tiny)
