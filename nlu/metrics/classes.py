"""Scores of a classifier, also of one that decides by a threshold on a cosine. Axes: N examples, C classes."""

import math
from array import array
from collections import Counter
from collections.abc import Sequence
from typing import Any, Self

import numpy as np

from nlu.metrics.queries import ChosenScorer, QueryScorer
from nlu.metrics.scores import ExactSum, LabelRow, Record, Scores

ByClass = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def log_probabilities(logits_NC: np.ndarray) -> np.ndarray:
    """Return log softmax over the last axis, in float64."""
    shifted = logits_NC.astype(np.float64)
    # The largest exponent is 0, so exp cannot overflow.
    shifted -= shifted.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


class ClassScorer:
    """Scores of any classifier and, with two classes, those that count the second class as positive.

    A record holds `label`, `prediction`, `loss` (negative log likelihood in nats) and, with two classes, `margin`,
    any number that grows with the probability of the second class. Averages are over the classes that occur as label or
    prediction. Scores that need both classes among the labels (auc, average_precision) are NaN if one is absent.
    `chosen_classes` and `score_queries` add the scores of `ChosenScorer` and `QueryScorer`, for which a record also
    holds `id`, `group` and `probabilities`. Memory: one number for each pair of classes and, with two classes, 9 bytes
    an example for the exact area under the curve.
    """

    def __init__(self, names: list[str], *, chosen_classes: Sequence[str] | None = None, score_queries: bool = False):
        self.names = names
        self._more: list[ChosenScorer | QueryScorer] = []
        if chosen_classes:
            self._more.append(ChosenScorer(chosen_classes))
        if score_queries:
            self._more.append(QueryScorer(names))
        self._number = {name: number for number, name in enumerate(names)}
        self._pairs: Counter[tuple[int, int]] = Counter()
        self._loss = ExactSum()
        # Areas under curves depend on the rank of every row among all others, so these are the only numbers kept for
        # each row.
        self._margins, self._positive = array("d"), array("b")
        self._of_all: ByClass | None = None

    def add(self, record: Record) -> None:
        label, prediction = self._number[record["label"]], self._number[record["prediction"]]
        self._pairs[label, prediction] += 1
        self._loss.add(record["loss"])
        if len(self.names) == 2:
            self._margins.append(record["margin"])
            self._positive.append(label)
        for scorer in self._more:
            scorer.add(record)

    def merge(self, other: Self) -> None:
        self._pairs.update(other._pairs)
        self._loss.merge(other._loss)
        self._margins.extend(other._margins)
        self._positive.extend(other._positive)
        own_and_theirs: Any = zip(self._more, other._more, strict=True)
        for own, theirs in own_and_theirs:
            own.merge(theirs)

    def known(self) -> ByClass:
        """Return precision, recall and F1 of each class, and whether averages include it; (C,) each.

        If the denominator of a score is 0 in a resample, the class has its score in all examples, so that averages are
        over the same classes in every resample.
        """
        right_C, rows_C, predicted_C = self._counts()
        parts = (right_C, predicted_C), (right_C, rows_C), (2 * right_C, rows_C + predicted_C)
        found = [quotients(*part) for part in parts]
        occurs_C = rows_C + predicted_C > 0
        if self._of_all is not None:
            *of_all, occurs_C = self._of_all
            found = [
                np.where(below_C > 0, own_C, all_C)
                for own_C, all_C, (_, below_C) in zip(found, of_all, parts, strict=True)
            ]
        return found[0], found[1], found[2], occurs_C

    def drawn_from(self, known: ByClass) -> None:
        self._of_all = known

    def result(self) -> Scores:
        """Return the scores.

        They are computed here, from integers where possible, because scikit-learn's checks of its arguments take fifty
        times as long, and a bootstrap computes the scores a thousand times.
        """
        right_C, rows_C, predicted_C = self._counts()
        total = int(rows_C.sum())
        precision_C, recall_C, f1_C, occurs_C = self.known()
        scores = {
            "accuracy": right_C.sum() / total,
            "f1_macro": np.average(f1_C[occurs_C]),
            "f1_weighted": np.average(f1_C[occurs_C], weights=rows_C[occurs_C]),
            "precision_macro": np.average(precision_C[occurs_C]),
            "recall_macro": np.average(recall_C[occurs_C]),
            "mcc": matthews(right_C.tolist(), rows_C.tolist(), predicted_C.tolist()),
            "loss": self._loss.value / total,
        }
        if len(self.names) == 2:
            auc, average_precision = areas(np.array(self._margins), np.array(self._positive))
            scores |= {"f1": f1_C[1], "precision": precision_C[1], "recall": recall_C[1]}
            scores |= {"auc": auc, "average_precision": average_precision}
        for scorer in self._more:
            scores |= scorer.result().metrics
        by_label: list[LabelRow] = [
            {
                "label": name,
                "examples": int(rows_C[i]),
                "correct": int(right_C[i]),
                "precision": float(precision_C[i]),
                "recall": float(recall_C[i]),
                "f1": float(f1_C[i]),
            }
            for i, name in enumerate(self.names)
        ]
        return Scores({name: float(value) for name, value in scores.items()}, by_label)

    def _counts(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return true positives, rows and predictions of each class; (C,), int64, each."""
        # A unit without prediction has the number behind those of the classes.
        counts_3C = np.zeros((3, len(self.names) + 1), np.int64)
        for (label, prediction), count in self._pairs.items():
            counts_3C[0, label] += count if label == prediction else 0
            counts_3C[1, label] += count
            counts_3C[2, prediction] += count
        return counts_3C[0, :-1], counts_3C[1, :-1], counts_3C[2, :-1]


class UnitScorer(ClassScorer):
    """Accuracy and macro F1 of the classes of units, each of which counts once.

    A record holds `label`, a list of classes, `prediction`, which may be shorter, and `loss`, the sum over predicted
    units. A unit without prediction, since max_len cut it off, is wrong.
    """

    def __init__(self, names: list[str]):
        super().__init__(names)
        self._predicted = 0

    def add(self, record: Record) -> None:
        found = [self._number[name] for name in record["prediction"] if name in self._number]
        self._predicted += len(found)
        self._loss.add(record["loss"])
        missing = [len(self.names)] * (len(record["label"]) - len(found))
        self._pairs.update(zip((self._number[name] for name in record["label"]), [*found, *missing], strict=True))

    def merge(self, other: Self) -> None:
        super().merge(other)
        self._predicted += other._predicted

    def result(self) -> Scores:
        scores = super().result()
        loss = self._loss.value / self._predicted if self._predicted else math.nan
        scores.metrics = {name: scores.metrics[name] for name in ("accuracy", "f1_macro")} | {"loss": loss}
        return scores


class SimilarityScorer:
    """The scores of a classifier that predicts the second class if a similarity reaches a threshold.

    A record holds `label` and `similarity`. With `threshold` None the `prediction` of the records counts if they have
    one, as those of folds that each had its own threshold; else the threshold with the highest accuracy on the same set
    is used, and the metric `threshold` is its value. Memory: 9 bytes an example.
    """

    def __init__(self, names: list[str], threshold: float | None = None):
        self.names, self.threshold = names, threshold
        self._similarity, self._label, self._predicted = array("d"), array("b"), array("b")
        self._of_all: ByClass | None = None

    def add(self, record: Record) -> None:
        self._similarity.append(record["similarity"])
        self._label.append(self.names.index(record["label"]))
        if self.threshold is None and "prediction" in record:
            self._predicted.append(self.names.index(record["prediction"]))

    def merge(self, other: Self) -> None:
        self._similarity.extend(other._similarity)
        self._label.extend(other._label)
        self._predicted.extend(other._predicted)

    def known(self) -> ByClass:
        return self._classified()[0].known()

    def drawn_from(self, known: ByClass) -> None:
        self._of_all = known

    def result(self) -> Scores:
        scorer, threshold = self._classified()
        scores = scorer.result()
        # The scorer of classes got a loss of 0 for each row, since no likelihood follows from a cosine.
        del scores.metrics["loss"]
        if threshold is not None:
            scores.metrics["threshold"] = threshold
        return scores

    def _classified(self) -> tuple[ClassScorer, float | None]:
        """Return the scorer of the predictions, and their threshold, None if there are several."""
        similarity_N, label_N, predicted_N = map(np.array, (self._similarity, self._label, self._predicted))
        threshold = self.threshold
        if not len(predicted_N):
            # In a resample the threshold is set, so that an interval does not contain the choice of another one.
            threshold = most_accurate_cut(similarity_N, label_N) if threshold is None else threshold
            predicted_N = (similarity_N >= threshold).astype(int)
        scorer = ClassScorer(self.names)
        for similarity, label, predicted in zip(*map(list, (similarity_N, label_N, predicted_N)), strict=True):
            names = {"label": self.names[label], "prediction": self.names[predicted]}
            scorer.add({**names, "loss": 0.0, "margin": float(similarity)})
        if self._of_all is not None:
            scorer.drawn_from(self._of_all)
        return scorer, threshold


def quotients(numerator_C: np.ndarray, denominator_C: np.ndarray) -> np.ndarray:
    """Return the quotients, 0 where the denominator is 0; (C,), float64."""
    return np.divide(numerator_C, denominator_C, out=np.zeros(len(numerator_C)), where=denominator_C > 0)


def matthews(right: Sequence[int], rows: Sequence[int], predicted: Sequence[int]) -> float:
    """Return the Matthews correlation of several classes, 0 if labels or predictions are all of one class.

    Gorodkin 2004 (https://doi.org/10.1016/j.compbiolchem.2004.09.006), equation 8, in integers.
    """
    total = sum(rows)
    both = sum(right) * total - sum(r * p for r, p in zip(rows, predicted, strict=True))
    each = (total**2 - sum(r**2 for r in rows)) * (total**2 - sum(p**2 for p in predicted))
    return both / math.sqrt(each) if each else 0.0


def areas(value_N: np.ndarray, is_positive_N: np.ndarray) -> tuple[float, float]:
    """Return the area under the ROC curve and the average precision of a value that ranks positive examples.

    Both are NaN without positive or without other examples, and if a value is not finite. The first is the share of
    pairs of a positive and another example in which the positive one has the higher value, ties counting half. The
    second is the sum over thresholds of the precision times the increase of recall.
    """
    positive = int(is_positive_N.sum())
    if not 0 < positive < len(is_positive_N) or not np.isfinite(value_N).all():
        return math.nan, math.nan
    found_V, rows_V = _by_threshold(value_N, is_positive_N)
    gained_V = np.diff(found_V, prepend=0)
    others_V = np.diff(rows_V, prepend=0) - gained_V
    below_V = (len(value_N) - positive) - np.cumsum(others_V)
    # Twice the number of pairs, so that ties stay integers.
    won = int((gained_V * (2 * below_V + others_V)).sum())
    auc = won / (2 * positive * (len(value_N) - positive))
    return auc, average_precision(value_N, is_positive_N)


def average_precision(value_N: np.ndarray, is_positive_N: np.ndarray) -> float:
    """Return the sum over thresholds of precision times the increase of recall; at least one example is positive."""
    found_V, rows_V = _by_threshold(value_N, is_positive_N)
    gained_V = np.diff(found_V, prepend=0)
    return math.fsum((gained_V * (found_V / rows_V)).tolist()) / int(found_V[-1])


def _by_threshold(value_N: np.ndarray, is_positive_N: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return how many positive examples, and how many examples, reach each distinct value, from the highest; (V,)."""
    order_N = np.argsort(-value_N, kind="stable")
    value_N = value_N[order_N]
    ends_V = np.flatnonzero(np.append(value_N[1:] != value_N[:-1], True))
    return np.cumsum(is_positive_N[order_N].astype(np.int64))[ends_V], ends_V + 1


def most_accurate_cut(similarity_N: np.ndarray, label_N: np.ndarray) -> float:
    """Return the most accurate threshold, midway between two values that occur; of several the highest."""
    order_N = np.argsort(-similarity_N, kind="stable")
    similarity_N, label_N = similarity_N[order_N], label_N[order_N]
    # If the first k are predicted as positive, those with label 1 among them and with label 0 after them are right.
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
