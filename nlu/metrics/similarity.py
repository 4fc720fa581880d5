"""Scores of two classes told apart by one number, such as a cosine. Axes: N examples."""

from array import array
from typing import Self

import numpy as np

from nlu.metrics.classes import ByClass, ClassScorer
from nlu.metrics.scores import Record, Scores


class SimilarityScorer:
    """The scores of a classifier that says the second class from a threshold on.

    A record holds `label` and `similarity`. With `threshold` None it is the one whose accuracy on this very set is
    highest; the metric `threshold` says which. Memory: 9 bytes an example.
    """

    def __init__(self, names: list[str], threshold: float | None = None):
        self.names, self.threshold = names, threshold
        self._similarity, self._label = array("d"), array("b")
        self._of_all: ByClass | None = None

    def add(self, record: Record) -> None:
        self._similarity.append(record["similarity"])
        self._label.append(self.names.index(record["label"]))

    def merge(self, other: Self) -> None:
        self._similarity.extend(other._similarity)
        self._label.extend(other._label)

    def known(self) -> ByClass:
        return self._classified()[0].known()

    def drawn_from(self, known: ByClass) -> None:
        self._of_all = known

    def result(self) -> Scores:
        scorer, threshold = self._classified()
        scores = scorer.result()
        del scores.metrics["loss"]
        scores.metrics["threshold"] = threshold
        return scores

    def _classified(self) -> tuple[ClassScorer, float]:
        """Return the scorer of what is predicted at the threshold, and that."""
        similarity_N, label_N = np.array(self._similarity), np.array(self._label)
        threshold = most_accurate_cut(similarity_N, label_N) if self.threshold is None else self.threshold
        scorer = ClassScorer(self.names)
        for similarity, label in zip(similarity_N.tolist(), label_N.tolist(), strict=True):
            prediction = self.names[int(similarity >= threshold)]
            scorer.add({"label": self.names[label], "prediction": prediction, "loss": 0.0, "margin": similarity})
        if self._of_all is not None:
            scorer.drawn_from(self._of_all)
        return scorer, threshold


def most_accurate_cut(similarity_N: np.ndarray, label_N: np.ndarray) -> float:
    """Return the threshold with most right predictions, midway between two values that occur; the highest of equal
    ones."""
    order_N = np.argsort(-similarity_N, kind="stable")
    similarity_N, label_N = similarity_N[order_N], label_N[order_N]
    # With the first k said to be positive, those of label 1 among them and of label 0 after them are right.
    right = (
        np.concatenate([[0], np.cumsum(label_N)])
        + (label_N == 0).sum()
        - np.concatenate([[0], np.cumsum(label_N == 0)])
    )
    is_cut = np.concatenate([[True], similarity_N[1:] != similarity_N[:-1], [True]])
    best = int(np.where(is_cut, right, -1).argmax())
    above = similarity_N[best - 1] if best else similarity_N[0] + 1.0
    below = similarity_N[best] if best < len(similarity_N) else similarity_N[-1] - 1.0
    return float((above + below) / 2)
