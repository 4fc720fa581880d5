"""The mistakes of a run on its evaluation set, and the ones nearest to a row.

Axes: M mistakes, D width.
"""

import heapq
from collections.abc import Generator, Iterable, Iterator
from itertools import islice

import numpy as np

from nlu.data.layouts import Values
from nlu.inference.predictor import Predictor
from nlu.inference.source import alternatives_of
from nlu.runs.predictions import Record, evaluation_sets, predictions_of

MOST = 1000
"""the maximum number of mistakes that are searched"""
READ_AT_ONCE = 500
"""the number of records that are read before other work may run"""
FAR_OFF = 0.1
"""if predictions have a distance from the label, the share of them, with the largest distances, that are mistakes"""


class Mistakes:
    """The wrong predictions of a run on its first evaluation set that were kept with their texts, encoded once."""

    def __init__(self, predictor: Predictor, records: list[Record], values: list[Values], vectors_MD: np.ndarray):
        """Use `of`, which computes the other arguments."""
        self._predictor, self._records, self._values, self._vectors_MD = predictor, records, values, vectors_MD

    @classmethod
    def of(cls, predictor: Predictor) -> "Generator[None, None, Mistakes]":
        """Find and encode the mistakes. A generator that yields between parts of the work.

        Raises DataError if the predictions are damaged.
        """
        records = yield from _worst(predictor)
        values = [_texts(predictor, record) for record in records]
        vectors = []
        for start in range(0, len(values), predictor.batch_size):
            yield
            vectors.append(predictor.vectors(predictor.encode(values[start : start + predictor.batch_size])))
        return cls(predictor, records, values, _unit(np.concatenate(vectors or [np.zeros((0, 0), np.float32)])))

    def nearest(self, values: Values, count: int) -> list[dict[str, object]]:
        """Return the mistakes whose vectors have the largest cosine with the vector of a row, the largest first.

        Each has its texts by role, `label`, `prediction` and `cosine`.
        """
        if not self._records:
            return []
        (own_D,) = _unit(self._predictor.vectors(self._predictor.encode([values])))
        cosines_M = self._vectors_MD @ own_D
        # Stable, so that mistakes with equal cosines keep their order, the worst first, in every answer.
        order = np.argsort(-cosines_M, kind="stable")[:count]
        return [
            {
                **self._values[place],
                "label": self._records[place]["label"],
                "prediction": self._predictor.trained.kind.answer(self._records[place]),
                "cosine": float(cosines_M[place]),
            }
            for place in order
        ]


def _worst(predictor: Predictor) -> Generator[None, None, list[Record]]:
    """Find the records with a wrong prediction and a kept text, those with the largest distance or loss first."""
    trained = predictor.trained
    run_dir, kind = trained.located.run_dir, trained.kind
    names = evaluation_sets(run_dir, trained.located.head_name)
    if not names or kind.unjudged:
        return []
    limit = 0.0
    if not kind.is_binary:
        # The file is read twice: which distances are large is known only after all of them. A distance takes 8 bytes, a
        # record with its text many more.
        distances: list[float] = []
        for some in _in_parts(predictions_of(run_dir, names[0])):
            distances += map(kind.error, some)
            yield
        limit = float(np.quantile(distances, 1 - FAR_OFF)) if distances else 0.0
    worst: list[Record] = []
    for some in _in_parts(predictions_of(run_dir, names[0])):
        wrong = [
            record
            for record in some
            if kind.error(record) > limit
            and any(all(role in record for role in roles) for roles in alternatives_of(trained))
        ]
        # At most MOST + READ_AT_ONCE records are in memory, however long the file is.
        worst = heapq.nlargest(MOST, [*worst, *wrong], key=_loss if kind.is_binary else kind.error)
        yield
    return worst


def _in_parts(records: Iterable[Record]) -> Iterator[list[Record]]:
    left = iter(records)
    while some := list(islice(left, READ_AT_ONCE)):
        yield some


def _loss(record: Record) -> float:
    # Records of cosines have no loss.
    return float(record.get("loss") or 0.0)


def _texts(predictor: Predictor, record: Record) -> Values:
    roles = next(roles for roles in alternatives_of(predictor.trained) if all(role in record for role in roles))
    return {role: record[role] for role in roles}


def _unit(vectors_ND: np.ndarray) -> np.ndarray:
    # A vector of zeros gets cosine 0 with every other instead of NaN.
    norms_N = np.linalg.norm(vectors_ND, axis=1, keepdims=True)
    return vectors_ND / np.maximum(norms_N, np.finfo(np.float32).tiny)
