"""Rows of texts to predictions, in memory. Axes: B rows of a batch, N rows handed over."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from nlu.config.targets import build
from nlu.data.collate import Batch, collate
from nlu.data.encoding import Encoded
from nlu.data.examples import Examples
from nlu.data.layouts import Values
from nlu.data.order import evaluation_batches
from nlu.data.store import Origin, StoredSet, record_batch
from nlu.data.targets import NoTarget
from nlu.inference.trained import Trained
from nlu.models.heads.pairs import unit_vectors
from nlu.tasks.task import Outputs, to_host
from nlu.training.precision import Precision

LOGITS = "logits"


class Predictor:
    """Predicts as the run did when it was scored: what is said of a row hangs on nothing but that row."""

    def __init__(self, trained: Trained, device: torch.device, *, batch_size: int = 64):
        self.trained, self.device, self.batch_size = trained, device, batch_size
        self.precision: Precision = build(trained.config.precision, trusted=trained.config.trusted_packages)
        trained.model.to(device)

    def problem(self, values: Values) -> tuple[str, str] | None:
        """Return the field of a row that cannot be predicted, and the rule that its value breaks, or None."""
        return self.trained.layout.problem(values)

    def encode(self, rows: Sequence[dict[str, Any]]) -> Encoded:
        """Return the tokens of rows that have no problem."""
        return self.trained.layout.encode(
            self.trained.tokenizer, list(rows), self.trained.config.data["max_len"]
        )  # fmt: skip

    def predict(
        self, encoded: Encoded, *, with_logits: bool = False, advance: Callable[[int], None] = lambda rows: None
    ) -> list[dict[str, Any]]:
        """Return for each row what its task predicts, in order, as records of predictions/ have it, less what is right.

        With `with_logits` also its `logits`: a list, or one for each unit of a tagged row.
        """
        part = _in_memory(encoded, self.trained)
        found: list[dict[str, Any]] = [{}] * len(part)
        for examples_B in evaluation_batches(part.lengths_N, batch_size=self.batch_size, rank=0, world_size=1):
            batch = collate(part, examples_B)
            for example, one in zip(batch.examples_B.tolist(), self._of_batch(batch, with_logits), strict=True):
                found[example] = one
            advance(len(batch))
        return found

    @torch.inference_mode()
    def cosines(self, rows: Sequence[dict[str, Any]]) -> list[float]:
        """Return the cosine of the vectors of both texts of each row, which the run encodes apart."""
        part = _in_memory(self.encode(rows), self.trained)
        batch = collate(part, np.arange(len(part)))
        with self.precision.autocast(self.device):
            encoded = self.trained.model.encode(batch.to(self.device))
        first_BD, second_BD = unit_vectors(encoded, batch.to(self.device))
        found = dict(zip(batch.examples_B.tolist(), to_host((first_BD * second_BD).sum(1)).tolist(), strict=True))
        return [found[row] for row in range(len(rows))]

    @torch.inference_mode()
    def _of_batch(self, batch: Batch, with_logits: bool) -> list[dict[str, Any]]:
        task, model = self.trained.task, self.trained.model
        with self.precision.autocast(self.device):
            outputs = task.forward(model, batch.to(self.device))
        found = [task.finished(one, self.trained.decided) for one in task.predictions(batch, model, outputs)]
        if with_logits:
            for one, logits in zip(found, _logits(batch, outputs), strict=True):
                one[LOGITS] = logits
        return found


def _in_memory(encoded: Encoded, trained: Trained) -> Examples:
    count = len(encoded.lengths_N)
    nowhere = Origin(*(np.zeros(count, np.int64) for _ in range(4)))
    stored = StoredSet([record_batch(encoded, [], None, nowhere)])
    return Examples("rows", stored, np.arange(count), NoTarget.from_meta({}), trained.layout)


def _logits(batch: Batch, outputs: Outputs) -> list[Any]:
    logits = to_host(outputs["logits"])
    if batch.unit_counts_B is None:
        return list(logits.tolist())
    ends_B = np.cumsum(batch.unit_counts_B)
    return [piece.tolist() for piece in np.split(logits, ends_B[:-1])]
