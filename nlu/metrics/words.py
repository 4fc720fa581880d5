"""Scores of predicted masked words, and of the classes of their examples."""

import math
from collections.abc import Mapping
from typing import Self

from nlu.metrics.scores import ExactSum, Record, Scores


class WordScorer:
    """`loss` of a masked token in nats, its exponential `perplexity`, and the share `accuracy` that is right.

    A record holds the sums of an example: `loss`, `masked` tokens, and how many of them are `right`. All masked tokens
    of a set weigh alike. Without any, the scores are NaN. Memory: a few bytes for a set of any size.
    """

    def __init__(self) -> None:
        self._loss, self._masked, self._right = ExactSum(), 0, 0

    def add(self, record: Record) -> None:
        self._loss.add(record["loss"])
        self._masked += record["masked"]
        self._right += record["right"]

    def merge(self, other: Self) -> None:
        self._loss.merge(other._loss)
        self._masked += other._masked
        self._right += other._right

    @property
    def masked(self) -> int:
        """The number of masked tokens so far."""
        return self._masked

    @property
    def loss(self) -> float:
        """The sum of their losses."""
        return self._loss.value

    def result(self) -> Scores:
        if not self._masked:
            return Scores(dict.fromkeys(("loss", "perplexity", "accuracy"), math.nan))
        loss = self._loss.value / self._masked
        # The exponential of a large loss does not fit a float.
        perplexity = math.exp(loss) if loss < 700 else math.inf
        return Scores({"loss": loss, "perplexity": perplexity, "accuracy": self._right / self._masked})


class WordsAndClassScorer:
    """`loss`, `perplexity` and `accuracy` of words, and the accuracy of the class of each example, under its own name.

    A record also has the sums over predicted words that are not masked, but shuffled (`shuffled`, `shuffled_loss`), the
    `class` of its example, the predicted one and its `class_loss`. `loss` is that of training: the mean over all
    predicted words and the mean over examples, in nats, each times its weight. Perplexity and accuracy are those of
    masked words.
    """

    def __init__(self, accuracy: str, weights: Mapping[str, float]):
        """`accuracy`: the name of the metric of classes; `weights` of the terms `words` and `classes`."""
        self._accuracy, self._weights = accuracy, dict(weights)
        self._masked, self._shuffled_loss, self._class_loss = WordScorer(), ExactSum(), ExactSum()
        self._shuffled = self._examples = self._right = 0

    def add(self, record: Record) -> None:
        self._masked.add(record)
        self._shuffled += record["shuffled"]
        self._shuffled_loss.add(record["shuffled_loss"])
        self._examples += 1
        self._right += record["predicted_class"] == record["class"]
        self._class_loss.add(record["class_loss"])

    def merge(self, other: Self) -> None:
        self._masked.merge(other._masked)
        self._shuffled_loss.merge(other._shuffled_loss)
        self._class_loss.merge(other._class_loss)
        self._shuffled += other._shuffled
        self._examples += other._examples
        self._right += other._right

    def result(self) -> Scores:
        found, words = self._masked.result().metrics, self._masked.masked + self._shuffled
        of_words = (self._masked.loss + self._shuffled_loss.value) / words if words else math.nan
        of_classes = self._class_loss.value / self._examples
        loss = self._weights["words"] * of_words + self._weights["classes"] * of_classes
        return Scores({**found, "loss": loss, self._accuracy: self._right / self._examples})
