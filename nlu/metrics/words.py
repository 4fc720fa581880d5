"""Scores of predicted masked words."""

import math
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

    def result(self) -> Scores:
        if not self._masked:
            return Scores(dict.fromkeys(("loss", "perplexity", "accuracy"), math.nan))
        loss = self._loss.value / self._masked
        # The exponential of a large loss does not fit a float.
        perplexity = math.exp(loss) if loss < 700 else math.inf
        return Scores({"loss": loss, "perplexity": perplexity, "accuracy": self._right / self._masked})
