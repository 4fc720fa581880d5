"""Masked language modeling: predict words that are hidden in a text, to pretrain an encoder.

Devlin et al. 2019 (https://arxiv.org/abs/1810.04805), section 3.1. `nlu.data.targets.masked` chooses the words.

Axes: B examples, U masked tokens, V words of the vocabulary.
"""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from nlu.config.errors import UserError
from nlu.config.keys import takes
from nlu.data.arrays import starts_of
from nlu.data.collate import Batch
from nlu.data.examples import Examples
from nlu.data.targets import MaskedWords
from nlu.data.targets.masked import Masking
from nlu.losses.loss import Loss
from nlu.metrics.words import WordScorer
from nlu.models.task_model import TaskModel
from nlu.tasks import keys as schemas
from nlu.tasks.task import Outputs, RowsOfLogits

CHUNK_ROWS = 64
"""masked tokens whose scores of all words are in memory twice"""


@takes(schemas.PredictsWords)
class PredictsWords(RowsOfLogits):
    """The base of tasks that predict words which are hidden in a text."""

    known: MaskedWords

    def __init__(self, loss: Loss, target: MaskedWords, keys: schemas.PredictsWords, shuffle_fraction: float = 0.0):
        super().__init__(loss, target)
        target.choose(
            Masking(
                keys.mask_fraction,
                keys.whole_words,
                keys.max_ngram,
                keys.keep,
                keys.replace,
                keys.frequency_power,
                shuffle_fraction,
            )
        )

    def predictions(self, batch: Batch, model: TaskModel, outputs: Outputs) -> list[dict[str, object]]:
        """Raise UserError: rows to be predicted have no masked words."""
        raise UserError("this run predicts only words that it masks itself; fine-tune it with model.pretrained=RUN")

    def of_words(self, batch: Batch, outputs: Outputs) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the numbers of the words that were there, their losses in nats, and the predicted words; (U,) each."""
        return batch.targets["labels"].cpu().numpy(), *_losses(outputs["logits"], batch.targets["labels"])

    def record_of(self, labels_U: np.ndarray, loss_U: np.ndarray, best_U: np.ndarray) -> dict[str, object]:
        """Return, of one example, the numbers of its masked tokens (`label`) and of the predicted ones, how many are
        `masked` and predicted `right`, and their summed `loss` in nats."""
        return {
            "label": labels_U.tolist(),
            "prediction": best_U.tolist(),
            "masked": len(labels_U),
            "right": int((labels_U == best_U).sum()),
            "loss": float(loss_U.sum()),
        }


@takes(schemas.Mlm)
class Mlm(PredictsWords):
    """Predict masked words from the words around them."""

    def records(self, part: Examples, batch: Batch, model: TaskModel, outputs: Outputs) -> list[dict[str, object]]:
        """Return `record_of` each example."""
        counts_B = batch.unit_counts_B
        assert counts_B is not None, "the target masks tokens"
        labels_U, loss_U, best_U = self.of_words(batch, outputs)
        return [
            self.record_of(labels_U[piece], loss_U[piece], best_U[piece])
            for piece in map(slice, starts_of(counts_B), np.cumsum(counts_B))
        ]

    def scorer(self, decided: Mapping[str, float]) -> WordScorer:
        return WordScorer()


def _losses(logits_UV: Tensor, labels_U: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Return the cross-entropy of each row in nats, (U,), float64, and the word with the highest score.

    A row's result does not depend on other rows.
    """
    losses, words = [np.zeros(0)], [np.zeros(0, np.int64)]
    labels_U = labels_U.to(logits_UV.device)
    for start in range(0, len(labels_U), CHUNK_ROWS):
        labels_N = labels_U[start : start + CHUNK_ROWS]
        scores_NV = logits_UV[start : start + CHUNK_ROWS].detach().float()
        own_N = scores_NV.gather(1, labels_N[:, None])[:, 0]
        highest_N, best_N = scores_NV.max(1)
        if scores_NV.device.type == "cpu":
            # numpy adds the terms of a row in the same order for any number of rows.
            terms_NV = np.exp(scores_NV.numpy() - highest_N.numpy()[:, None])
            total_N = torch.from_numpy(terms_NV.astype(np.float64).sum(1))
        else:
            total_N = (scores_NV - highest_N[:, None]).double().exp().sum(1)
        losses.append((total_N.log() + highest_N.double() - own_N.double()).cpu().numpy())
        words.append(best_N.cpu().numpy())
    return np.concatenate(losses), np.concatenate(words)
