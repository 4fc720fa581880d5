"""Find spans by a tag for each unit (word or character), or classify units. Axes: B examples, U units, C tags."""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from nlu.config.keys import takes
from nlu.data.arrays import starts_of
from nlu.data.collate import Batch
from nlu.data.examples import Examples
from nlu.data.targets import Tags
from nlu.losses.loss import Loss
from nlu.metrics.classes import UnitScorer, log_probabilities
from nlu.metrics.scores import Scorer
from nlu.metrics.spans import Span, SpanScorer, in_characters, legal_steps, spans_of
from nlu.models.heads.crf import CrfHead, best_tags
from nlu.models.task_model import TaskModel
from nlu.tasks import keys as schemas
from nlu.tasks.task import Outputs, RowsOfLogits, to_host

OF_SPANS = ("span_f1", "span_precision", "span_recall", "tag_accuracy")
OF_CLASSES = ("accuracy", "f1_macro")


@takes(schemas.Tag)
class Tag(RowsOfLogits):
    """Find typed spans in a text. Scores count exact spans, micro-averaged over types.

    If the tags of the training rows fit no scheme of spans, they are classes of units, scored unit by unit.
    """

    known: Tags

    def __init__(self, loss: Loss, target: Tags, keys: schemas.Tag):
        super().__init__(loss, target)
        self.decode = keys.decode
        self.metrics = (*(OF_CLASSES if target.is_classes else OF_SPANS), "loss")
        if target.is_classes:
            self.default_metric, self.kind = "accuracy", "nlu.metrics.kinds.UnitClassesKind"

    def terms(self, model: TaskModel, batch: Batch, outputs: Outputs) -> dict[str, Tensor]:
        """Return the loss over units. With head=crf it is the negative log likelihood of whole tag sequences instead;
        its count is still the number of units."""
        if not isinstance(model.head, CrfHead):
            return super().terms(model, batch, outputs)
        assert batch.unit_counts_B is not None
        nll_B = model.head.negative_log_likelihood(outputs["logits"], batch.targets["labels"], batch.unit_counts_B)
        return {"labels": nll_B.sum()}

    def predictions(self, batch: Batch, model: TaskModel, outputs: Outputs) -> list[dict[str, object]]:
        """Return the spans of each example, in characters if it is a text; units that max_len cut off are tagged O.

        Of classes of units, return those of the units that fit.
        """
        if self.known.is_classes:
            return [{"prediction": self._names(tags_U)} for tags_U in self._decode(model, batch, outputs)]
        found = zip(_pieces(batch), self._decode(model, batch, outputs), strict=True)
        return [{"spans": _placed(self._spans(tags_U), batch, piece)} for piece, tags_U in found]

    def records(self, part: Examples, batch: Batch, model: TaskModel, outputs: Outputs) -> list[dict[str, object]]:
        """Return the predicted and the gold spans of each example.

        A gold span among the units that max_len cut off counts as missed. The loss is the sum over the units that fit.
        """
        rows_B = part.rows_N[batch.examples_B]
        gold_of = _rows_of(*self.known.unit_tags(part.stored, rows_B))
        found_of, loss_of = self._decode(model, batch, outputs), self._loss(model, batch, outputs).tolist()
        if self.known.is_classes:
            return [
                {"label": self._names(gold_U), "prediction": self._names(found_U), "loss": loss}
                for gold_U, found_U, loss in zip(gold_of, found_of, loss_of, strict=True)
            ]
        # Gold spans are those of the file, in characters for a text: a span may begin or end within a word, which the
        # tags of units cannot express.
        written_of = _rows_of(*self.known.tags(part.stored, rows_B))
        records = []
        for gold_U, written, piece, found_U, loss in zip(
            gold_of, written_of, _pieces(batch), found_of, loss_of, strict=True
        ):
            count = len(found_U)
            # Units that max_len cut off count as tagged O, as in `predictions`.
            right = int((found_U == gold_U[:count]).sum()) + int((gold_U[count:] == 0).sum())
            records.append(
                {
                    "label": self._spans(written),
                    "spans": _placed(self._spans(found_U), batch, piece),
                    "units": len(gold_U),
                    "units_scored": count,
                    "units_right": right,
                    "loss": loss,
                }
            )
        return records

    def _names(self, tags_U: np.ndarray) -> list[str]:
        names = self.known.names
        return [names[tag] for tag in tags_U]

    def _spans(self, tags_U: np.ndarray) -> list[Span]:
        return spans_of(self._names(tags_U))

    def _decode(self, model: TaskModel, batch: Batch, outputs: Outputs) -> list[np.ndarray]:
        """Return the tags of the units of each example that fit in max_len."""
        pieces = _pieces(batch)
        if isinstance(model.head, CrfHead):
            best_U = to_host(model.head.decode(outputs["logits"], batch.unit_counts_B))
            return [best_U[piece] for piece in pieces]
        # On the host in float64, since decoding is a loop over units, which an accelerator would run a kernel at a
        # time.
        log_probs_UC = log_probabilities(to_host(outputs["logits"]))
        if self.decode == "greedy" or self.known.is_classes:
            return [log_probs_UC[piece].argmax(1) for piece in pieces]
        assert batch.unit_counts_B is not None, "a batch of tagged units"
        scores_UC, legal = torch.from_numpy(log_probs_UC), legal_steps(self.known.names)
        after_CC, start_C = (torch.from_numpy(np.where(one, 0.0, -np.inf)) for one in legal)
        best_U = best_tags(scores_UC, batch.unit_counts_B, after_CC, start_C, torch.zeros_like(start_C)).numpy()
        return [best_U[piece] for piece in pieces]

    def _loss(self, model: TaskModel, batch: Batch, outputs: Outputs) -> np.ndarray:
        """Return the negative log likelihood of the tags of each example, (B,), float64."""
        if isinstance(model.head, CrfHead):
            logits_UC = outputs["logits"]
            labels_U = batch.targets["labels"].to(logits_UC.device)
            nll_B = model.head.negative_log_likelihood(logits_UC, labels_U, batch.unit_counts_B)
            return to_host(nll_B).astype(np.float64)
        log_probs_UC = log_probabilities(to_host(outputs["logits"]))
        labels_U = batch.targets["labels"].numpy()
        nll_U = -log_probs_UC[np.arange(len(labels_U)), labels_U]
        return np.array([nll_U[piece].sum() for piece in _pieces(batch)])

    def scorer(self, decided: Mapping[str, float]) -> Scorer:
        return (UnitScorer if self.known.is_classes else SpanScorer)(self.known.names)


def _rows_of(flat: np.ndarray, counts_B: np.ndarray) -> list[np.ndarray]:
    """Return the values of each row."""
    return [flat[start : start + count] for start, count in zip(starts_of(counts_B), counts_B, strict=True)]


def _placed(spans: list[Span], batch: Batch, piece: slice) -> list[Span]:
    """Return spans of units, in characters if the example is a text; `piece`: the units of the example."""
    return in_characters(spans, None if batch.unit_ends_U is None else batch.unit_ends_U[piece].tolist())


def _pieces(batch: Batch) -> list[slice]:
    """Return the slice of each example's units in U."""
    counts_B = batch.unit_counts_B
    assert counts_B is not None, "a batch of tagged units"
    return [slice(start, start + count) for start, count in zip(starts_of(counts_B), counts_B, strict=True)]
