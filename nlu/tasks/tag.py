"""Find spans: a tag for each unit (word or character). Axes: B examples, U units, C tags."""

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from torch import Tensor

from nlu.data.collate import Batch
from nlu.data.examples import Examples
from nlu.data.ragged import starts_of
from nlu.data.targets import Tags
from nlu.losses.loss import Loss
from nlu.metrics.classes import log_probabilities
from nlu.metrics.spans import legal_tags, spans_of
from nlu.metrics.tagging import SpanScorer
from nlu.models.heads.crf import CrfHead
from nlu.models.task_model import TaskModel
from nlu.tasks.task import Outputs, RowsOfLogits, to_host


class Tag(RowsOfLogits):
    """Find typed spans in a text; scored by exact spans, micro-averaged over types."""

    layouts = ("units",)
    target = "nlu.data.targets.Tags"
    heads = ("nlu.models.heads.linear.LinearHead", "nlu.models.heads.crf.CrfHead")
    scores = "nlu.metrics.tagging.SpanScorer"
    metrics = ("span_f1", "span_precision", "span_recall", "tag_accuracy", "loss")
    binary_metrics = ()
    default_metric = "span_f1"
    lower_is_better = ("loss",)

    known: Tags

    def __init__(self, loss: Loss, target: Tags, *, decode: Literal["legal", "greedy"] = "legal"):
        """`decode`: the best legal BIO sequence, or the best tag of each unit by itself; head=crf decodes by itself."""
        super().__init__(loss, target)
        self.decode = decode

    def terms(self, model: TaskModel, batch: Batch, outputs: Outputs) -> dict[str, Tensor]:
        """Return the loss over units; with head=crf the negative log likelihood of whole tag sequences, which takes
        the place of the loss. Its count is units all the same."""
        if not isinstance(model.head, CrfHead):
            return super().terms(model, batch, outputs)
        assert batch.unit_counts_B is not None
        nll_B = model.head.negative_log_likelihood(outputs["logits"], batch.targets["labels"], batch.unit_counts_B)
        return {"labels": nll_B.sum()}

    def records(self, part: Examples, batch: Batch, model: TaskModel, outputs: Outputs) -> list[dict[str, Any]]:
        """Return the spans found in each example and the right ones.

        Units that max_len cut off count as tagged O: a span among them is missed, not forgotten. The loss is the sum
        over the units that fitted.
        """
        assert batch.unit_counts_B is not None
        names, counts_B = self.known.names, batch.unit_counts_B
        gold, units_B = self.known.tags(part.stored, part.rows_N[batch.examples_B])
        found, loss_B = self._decode(model, batch, outputs)
        records = []
        for gold_start, units, start, count, loss in zip(
            starts_of(units_B), units_B, starts_of(counts_B), counts_B, loss_B, strict=True
        ):
            gold_U = gold[gold_start : gold_start + units]
            found_U = np.zeros(units, np.int64)
            found_U[:count] = found[start : start + count]
            records.append(
                {
                    "label": spans_of([names[tag] for tag in gold_U]),
                    "spans": spans_of([names[tag] for tag in found_U]),
                    "units": int(units), "units_scored": int(count), "units_right": int((found_U == gold_U).sum()),
                    "loss": float(loss),
                }
            )  # fmt: skip
        return records

    def _decode(self, model: TaskModel, batch: Batch, outputs: Outputs) -> tuple[np.ndarray, np.ndarray]:
        """Return the tag of each unit that fitted, (U,), and the negative log likelihood of each example, (B,)."""
        counts_B = batch.unit_counts_B
        assert counts_B is not None
        if isinstance(model.head, CrfHead):
            logits_UC = outputs["logits"]
            nll_B = model.head.negative_log_likelihood(
                logits_UC, batch.targets["labels"].to(logits_UC.device), counts_B
            )
            return to_host(model.head.decode(logits_UC, counts_B)), to_host(nll_B).astype(np.float64)
        log_probs_UC = log_probabilities(to_host(outputs["logits"]))
        labels_U = batch.targets["labels"].numpy()
        nll_U = -log_probs_UC[np.arange(len(labels_U)), labels_U]
        starts = starts_of(counts_B)
        pieces = [slice(start, start + count) for start, count in zip(starts, counts_B, strict=True)]
        loss_B = np.array([nll_U[piece].sum() for piece in pieces])
        if self.decode == "greedy":
            return log_probs_UC.argmax(1), loss_B
        best = [legal_tags(log_probs_UC[piece], self.known.names) for piece in pieces if piece.stop > piece.start]
        return np.concatenate([np.zeros(0, np.int64), *best]), loss_B

    def scorer(self, decided: Mapping[str, float]) -> SpanScorer:
        return SpanScorer(self.known.names)
