"""Masked words, and a class for each text or pair: pretraining with two terms of the loss.

Axes: B examples, U predicted tokens, V words of the vocabulary, C classes.
"""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from nlu.config.keys import takes
from nlu.data.arrays import starts_of
from nlu.data.collate import Batch
from nlu.data.examples import Examples
from nlu.data.targets import LabelledWords, SentenceOrder
from nlu.losses.loss import Loss
from nlu.metrics.classes import log_probabilities
from nlu.metrics.scores import Scorer
from nlu.metrics.words import WordsAndClassScorer
from nlu.models.heads.words import WordsAndClassHead
from nlu.models.task_model import TaskModel
from nlu.tasks import keys as schemas
from nlu.tasks.mlm import PredictsWords
from nlu.tasks.task import Outputs, symmetric_kl, to_host

WORDS, CLASSES = "words", "classes"


@takes(schemas.WordsAndClass)
class WordsAndClass(PredictsWords):
    """The base of tasks that predict masked words and the class of each example.

    A step's loss is the mean over its predicted words and the mean over its examples, each times its weight.
    """

    class_accuracy: str
    """the metric of classes"""

    known: SentenceOrder | LabelledWords

    def counts(self, batch: Batch) -> dict[str, int]:
        return {WORDS: len(batch.targets["labels"]), CLASSES: len(batch)}

    def forward(self, model: TaskModel, batch: Batch, x_TD: Tensor | None = None) -> Outputs:
        """Return `logits` of words, (U, V), and of `classes`, (B, C)."""
        head = model.head
        assert isinstance(head, WordsAndClassHead)
        encoded = model.encode(batch, x_TD)
        # In fp32, as `TaskModel.forward` says.
        with torch.autocast(batch.tokens_T.device.type, enabled=False):
            return {"logits": head(encoded, batch), CLASSES: head.of_classes(encoded, batch)}

    def terms(self, model: TaskModel, batch: Batch, outputs: Outputs) -> dict[str, Tensor]:
        return {
            WORDS: self.loss(outputs["logits"], batch.targets["labels"]),
            CLASSES: self.loss(outputs[CLASSES], batch.targets[CLASSES]),
        }

    def divergence(self, batch: Batch, first: Outputs, second: Outputs) -> Tensor:
        return symmetric_kl(first["logits"], second["logits"]) + symmetric_kl(first[CLASSES], second[CLASSES])

    def rows(self, batch: Batch) -> int:
        return sum(self.counts(batch).values())

    def records(self, part: Examples, batch: Batch, model: TaskModel, outputs: Outputs) -> list[dict[str, object]]:
        """Return the records of `PredictsWords`, without words that were shuffled, and the fields that
        `WordsAndClassScorer` adds."""
        labels_U, loss_U, best_U = self.of_words(batch, outputs)
        is_shuffled_U = np.zeros(len(labels_U), bool)
        if "is_shuffled" in batch.targets:
            is_shuffled_U = batch.targets["is_shuffled"].cpu().numpy()
        log_BC, class_B = log_probabilities(to_host(outputs[CLASSES])), batch.targets[CLASSES].cpu().numpy()
        names, counts_B = self.known.class_names, batch.unit_counts_B
        assert counts_B is not None, "the target masks tokens"
        found: list[dict[str, object]] = []
        for row, (start, count) in enumerate(zip(starts_of(counts_B), counts_B, strict=True)):
            own = np.arange(start, start + count)
            masked, shuffled = own[~is_shuffled_U[own]], own[is_shuffled_U[own]]
            found.append(
                self.record_of(labels_U[masked], loss_U[masked], best_U[masked])
                | {
                    "shuffled": len(shuffled),
                    "shuffled_loss": float(loss_U[shuffled].sum()),
                    "class": names[class_B[row]],
                    "predicted_class": names[int(log_BC[row].argmax())],
                    "class_loss": -float(log_BC[row, class_B[row]]),
                }
            )
        return found

    def scorer(self, decided: Mapping[str, float]) -> Scorer:
        return WordsAndClassScorer(self.class_accuracy, self.term_weights)


@takes(schemas.Structbert)
class Structbert(WordsAndClass):
    """Predict masked and shuffled words, and the order of the two halves of a block.

    Wang et al. 2019 (https://arxiv.org/abs/1908.04577).
    """

    class_accuracy = "order_accuracy"

    def __init__(self, loss: Loss, target: SentenceOrder, keys: schemas.Structbert):
        super().__init__(loss, target, keys, shuffle_fraction=keys.shuffle_fraction)
        self.term_weights = {WORDS: keys.words_weight, CLASSES: keys.order_weight}


@takes(schemas.MlmPairs)
class MlmPairs(WordsAndClass):
    """Predict masked words of a pair of texts, and its label, which may be wrong now and then."""

    class_accuracy = "label_accuracy"

    def __init__(self, loss: Loss, target: LabelledWords, keys: schemas.MlmPairs):
        super().__init__(loss, target, keys)
        self.term_weights = {WORDS: keys.words_weight, CLASSES: keys.label_weight}
