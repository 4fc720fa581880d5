"""Scores of predicted masked words, and of the classes of their examples."""

import math
from collections.abc import Mapping
from typing import ClassVar

from nlu.metrics.scores import Columns, Record, Scores


class WordScorer(Columns):
    """`loss` of a masked token in nats, its exponential `perplexity`, and the share `accuracy` that is right.

    A record holds the sums of an example: `loss`, `masked` tokens, and how many of them are `right`. All masked tokens
    of a set weigh alike. Without any, the scores are NaN.
    """

    kept: ClassVar[list[str]] = ["loss", "masked", "right"]

    def __init__(self) -> None:
        super().__init__(sums=self.kept)

    def result(self) -> Scores:
        masked = self.total("masked")
        if not masked:
            return Scores(dict.fromkeys(("loss", "perplexity", "accuracy"), math.nan))
        loss = self.total("loss") / masked
        # The exponential of a large loss does not fit a float.
        perplexity = math.exp(loss) if loss < 700 else math.inf
        return Scores({"loss": loss, "perplexity": perplexity, "accuracy": self.total("right") / masked})


class WordsAndClassScorer(WordScorer):
    """`loss`, `perplexity` and `accuracy` of words, and the accuracy of the class of each example, under its own name.

    A record also has the sums over predicted words that are not masked, but shuffled (`shuffled`, `shuffled_loss`), the
    `class` of its example, the predicted one and its `class_loss`. `loss` is that of training: the mean over all
    predicted words and the mean over examples, in nats, each times its weight. Perplexity and accuracy are those of
    masked words.
    """

    kept: ClassVar[list[str]] = [*WordScorer.kept, "shuffled", "shuffled_loss", "class_loss", "right_class"]

    def __init__(self, accuracy: str, weights: Mapping[str, float]):
        """`accuracy`: the name of the metric of classes; `weights` of the terms `words` and `classes`."""
        super().__init__()
        self.accuracy, self.weights = accuracy, dict(weights)

    def add(self, record: Record) -> None:
        super().add({**record, "right_class": record["predicted_class"] == record["class"]})

    def result(self) -> Scores:
        words = self.total("masked") + self.total("shuffled")
        of_words = (self.total("loss") + self.total("shuffled_loss")) / words if words else math.nan
        loss = self.weights["words"] * of_words + self.weights["classes"] * self.mean("class_loss")
        accuracy = self.mean("right_class")
        return Scores({**super().result().metrics, "loss": loss, self.accuracy: accuracy})
