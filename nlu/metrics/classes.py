"""Scores of a classifier, also of one that decides by a threshold on a cosine. Axes: N examples, C classes."""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Self

import numpy as np

from nlu.metrics.scores import Columns, Record, Scores, by_label, micro, precision_recall_f1


def log_probabilities(logits_NC: np.ndarray) -> np.ndarray:
    """Return log softmax over the last axis, in float64."""
    shifted = logits_NC.astype(np.float64)
    # The largest exponent is 0, so exp cannot overflow.
    shifted -= shifted.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


class ClassScorer(Columns):
    """Scores of any classifier and, with two classes, those that count the second class as positive.

    A record holds `label`, `prediction`, `loss` (negative log likelihood in nats) and, with two classes, `margin`,
    any number that grows with the probability of the second class. Averages are over the classes that occur as label or
    prediction. Scores that need both classes among the labels (auc, average_precision) are NaN if one is absent.
    `chosen_classes` adds micro averages over these. Memory: 9 bytes an example with two classes, else none.
    """

    def __init__(self, names: list[str], *, chosen_classes: Sequence[str] | None = None):
        # Areas under curves depend on the rank of every example; no other score needs more than counts.
        ranked = {"margin": "d", "label": "b"} if len(names) == 2 else {}
        super().__init__(names, sums=["loss"], **ranked)
        self.counts_3C = np.zeros((3, len(names) + 1), np.int64)
        """how often each class was predicted rightly, was predicted, and was right; the last one is that of units
        without prediction"""
        self.chosen = [self.number[name] for name in chosen_classes or ()]
        self.of_all: np.ndarray | None = None

    def add(self, record: Record) -> None:
        label, prediction = self.number[record["label"]], self.number[record["prediction"]]
        self.counts_3C[0, label] += label == prediction
        self.counts_3C[1, prediction] += 1
        self.counts_3C[2, label] += 1
        self.keep({**record, "label": label})

    def count(self, label_N: np.ndarray, prediction_N: np.ndarray) -> None:
        """Count the numbers of classes."""
        each = label_N[label_N == prediction_N], prediction_N, label_N
        for count_C, number_N in zip(self.counts_3C, each, strict=True):
            count_C += np.bincount(number_N, minlength=len(count_C))

    def merge(self, other: Self) -> None:
        super().merge(other)
        self.counts_3C += other.counts_3C

    def known(self) -> np.ndarray:
        """Return precision, recall and F1 of each class, NaN where a denominator is 0; (3, C).

        In a resample that is the score in all examples, so that averages are over the same classes in every resample.
        """
        scores_3C = precision_recall_f1(*self.counts_3C[:, :-1])
        return scores_3C if self.of_all is None else np.where(np.isnan(scores_3C), self.of_all, scores_3C)

    def drawn_from(self, known: np.ndarray) -> None:
        self.of_all = known

    def result(self) -> Scores:
        right_C, predicted_C, wanted_C = self.counts_3C[:, :-1]
        found_3C = self.known()
        occurs_C = ~np.isnan(found_3C[2])
        precision_C, recall_C, f1_C = np.nan_to_num(found_3C)
        scores = {
            "accuracy": right_C.sum() / wanted_C.sum(),
            "f1_macro": np.average(f1_C[occurs_C]),
            "f1_weighted": np.average(f1_C[occurs_C], weights=wanted_C[occurs_C]),
            "precision_macro": np.average(precision_C[occurs_C]),
            "recall_macro": np.average(recall_C[occurs_C]),
            "mcc": matthews(right_C.tolist(), predicted_C.tolist(), wanted_C.tolist()),
            "loss": self.mean("loss"),
        }
        if self.columns:
            scores |= {"f1": f1_C[1], "precision": precision_C[1], "recall": recall_C[1]}
            margin_N, label_N = self.arrays("margin", "label")
            scores |= areas(margin_N, label_N == 1)
        if self.chosen:
            of_chosen = micro(right_C[self.chosen], predicted_C[self.chosen], wanted_C[self.chosen])
            scores |= dict(zip(("precision_chosen", "recall_chosen", "f1_chosen"), of_chosen, strict=True))
        table = by_label(self.names, wanted_C, right_C, found_3C)
        return Scores({name: float(value) for name, value in scores.items()}, table)


class UnitScorer(ClassScorer):
    """Accuracy and macro F1 of the classes of units, each of which counts once.

    A record holds `label`, a list of classes, `prediction`, which may be shorter, and `loss`, the sum over predicted
    units. A unit without prediction, since max_len cut it off, is wrong.
    """

    def __init__(self, names: list[str]):
        super().__init__(names)
        # The area under the curve is that of examples, not of units.
        self.columns = {}

    def add(self, record: Record) -> None:
        found = [self.number[name] for name in record["prediction"] if name in self.number]
        missing = [len(self.names)] * (len(record["label"]) - len(found))
        wanted = [self.number[name] for name in record["label"]]
        self.count(np.array(wanted, np.int64), np.array([*found, *missing], np.int64))
        self.keep(record)

    def result(self) -> Scores:
        scores = super().result()
        units = int(self.counts_3C[1, :-1].sum())
        loss = self.total("loss") / units if units else math.nan
        scores.metrics = {name: scores.metrics[name] for name in ("accuracy", "f1_macro")} | {"loss": loss}
        return scores


class Decided(Columns):
    """The base of scorers whose predictions follow from a threshold, which may be chosen on the same set."""

    of_all: np.ndarray | None = None

    def decided(self) -> tuple[ClassScorer, dict[str, float]]:
        """Return a scorer of the predictions, and the thresholds as metrics."""
        raise NotImplementedError

    def known(self) -> np.ndarray:
        return self.decided()[0].known()

    def drawn_from(self, known: np.ndarray) -> None:
        self.of_all = known

    def result(self) -> Scores:
        scorer, thresholds = self.decided()
        scorer.of_all = self.of_all
        scores = scorer.result()
        scores.metrics |= thresholds
        return scores


class SimilarityScorer(Decided):
    """The scores of a classifier that predicts the second class if a similarity reaches a threshold.

    A record holds `label` and `similarity`. With `threshold` None the `prediction` of the records counts if they have
    one, as those of folds that each had its own threshold; else the threshold with the highest accuracy on the same set
    is used, and the metric `threshold` is its value. Memory: 10 bytes an example.
    """

    def __init__(self, names: list[str], threshold: float | None = None):
        super().__init__(names, label="b", prediction="b", similarity="d")
        self.threshold = threshold

    def add(self, record: Record) -> None:
        given = self.number[record["prediction"]] if self.threshold is None and "prediction" in record else -1
        self.keep({**record, "label": self.number[record["label"]], "prediction": given})

    def decided(self) -> tuple[ClassScorer, dict[str, float]]:
        label_N, prediction_N, similarity_N = self.arrays("label", "prediction", "similarity")
        chosen = {}
        if (prediction_N < 0).any():
            # In a resample the threshold is set, so that an interval does not contain the choice of another one.
            threshold = most_accurate_cut(similarity_N, label_N) if self.threshold is None else self.threshold
            prediction_N, chosen = (similarity_N >= threshold).astype(int), {"threshold": threshold}
        scorer = ClassScorer(self.names)
        scorer.count(label_N, prediction_N)
        scorer.examples = self.examples
        scorer.columns = {"margin": self.columns["similarity"], "label": self.columns["label"]}
        return scorer, chosen

    def result(self) -> Scores:
        scores = super().result()
        # No likelihood follows from a cosine.
        del scores.metrics["loss"]
        return scores


class ConfusionScorer:
    """How often each class was predicted for rows of each class. A record holds `label` and `prediction`."""

    def __init__(self, names: Sequence[str]):
        self.names = list(names)
        self.pairs: Counter[tuple[str, str]] = Counter()

    def add(self, record: Record) -> None:
        self.pairs[record["label"], record["prediction"]] += 1

    def merge(self, other: Self) -> None:
        self.pairs.update(other.pairs)

    def matrix(self) -> list[list[int]]:
        """Return the rows of each class (lines) that each class was predicted for (columns)."""
        return [[self.pairs[right, predicted] for predicted in self.names] for right in self.names]


def matthews(right: Sequence[int], predicted: Sequence[int], wanted: Sequence[int]) -> float:
    """Return the Matthews correlation of several classes, 0 if labels or predictions are all of one class.

    Gorodkin 2004 (https://doi.org/10.1016/j.compbiolchem.2004.09.006), equation 8, in integers. That of scikit-learn
    takes longer than all other scores of a resample together.
    """
    count = sum(wanted)
    both = sum(right) * count - sum(w * p for w, p in zip(wanted, predicted, strict=True))
    each = (count**2 - sum(w**2 for w in wanted)) * (count**2 - sum(p**2 for p in predicted))
    return both / math.sqrt(each) if each else 0.0


def areas(value: np.ndarray, is_positive: np.ndarray) -> dict[str, float]:
    """Return the area under the ROC curve and the average precision of values that rank positive examples.

    Both are (N,) or (N, C), and the areas then means over C. They are NaN without positive or without other examples,
    and if a value is not finite.
    """
    from sklearn.metrics import average_precision_score, roc_auc_score

    if not is_positive.any() or is_positive.all() or not np.isfinite(value).all():
        return {"auc": math.nan, "average_precision": math.nan}
    if value.ndim == 1:
        # Each of the two sorts the values, which takes half as long if they are sorted.
        order_N = np.argsort(value, kind="stable")
        value, is_positive = value[order_N], is_positive[order_N]
    return {
        "auc": roc_auc_score(is_positive, value),
        "average_precision": average_precision_score(is_positive, value),
    }


def most_accurate_cut(similarity_N: np.ndarray, label_N: np.ndarray) -> float:
    """Return the most accurate threshold, midway between two values that occur; of several the highest."""
    value_V, number_N = np.unique(-similarity_N, return_inverse=True)
    # How many more are right if the rows of a value are predicted as positive than if they are not.
    gained_V = np.bincount(number_N, weights=2 * label_N - 1)
    # argmax takes the first of equal values, which belongs to the highest threshold.
    best = int(np.append(0, np.cumsum(gained_V)).argmax())
    cut_V = -np.concatenate([value_V[:1] - 1.0, value_V, value_V[-1:] + 1.0])
    above, below = cut_V[best], cut_V[best + 1]
    return float((above + below) / 2)
