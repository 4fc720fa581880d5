"""Rows of texts to predictions and vectors, in memory.

Axes: B rows of a batch, N rows handed over, S sequences of a batch, D width.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import astuple
from typing import Any

import numpy as np
import torch

from nlu.config.errors import keys_called
from nlu.config.targets import build
from nlu.data.collate import Batch
from nlu.data.examples import Examples, in_memory
from nlu.data.layouts import Layout, Values
from nlu.data.store import EncodedRows
from nlu.data.windows import Lengths
from nlu.inference.cells import LOGITS, require_predicting
from nlu.inference.compiling import choose_shapes, compiled_for
from nlu.inference.in_batches import InBatches
from nlu.inference.int8.precision import Int8
from nlu.inference.locate import digests_of
from nlu.inference.ranking import problem_of
from nlu.inference.self_check import warn_of_batches
from nlu.inference.text_vectors import TextVectors, VectorForm, prompts_of_run
from nlu.inference.trained import Trained
from nlu.models.encoders.bert import Bert
from nlu.models.layers.exact_linear import Linear
from nlu.tasks.task import Outputs, to_host
from nlu.training.compiled import outputs_of
from nlu.training.precision import NumberFormat
from nlu.training.ranks import Ranks

log = logging.getLogger(__name__)


class Predictor:
    """Predicts as the run does when it is scored: the prediction for a row depends only on that row."""

    def __init__(
        self, trained: Trained, device: torch.device, *, batch_size: int = 64, owns: bool = False, compile: bool = False
    ):
        """`owns`: nothing else computes with the model or writes its weights, so it may hold them rounded; `compile`:
        by torch.compile, as the key of the commands says. Raises UserError where that is refused."""
        self.trained, self.device, self.batch_size = trained, device, batch_size
        self.precision: NumberFormat = build(trained.config.precision)
        if isinstance(self.precision, Int8):
            self.precision.require(device)
        # Explanations need gradients of vectors, never of weights, whose gradients would take as much memory again.
        trained.model.to(device).requires_grad_(False)
        backbone, is_bf16 = trained.model.backbone, getattr(self.precision, "dtype", None) == "bfloat16"
        if owns and is_bf16 and isinstance(backbone, Bert):
            # The same bits; autocast would round the weights again in each batch.
            for each in backbone.encoder.modules():
                if type(each) is Linear:
                    each.bfloat16()
        self.compiled = None
        if compile:
            with keys_called({"trainer.": ""}):
                self.compiled = compiled_for(trained.model, trained.task, trained.config.data, self.precision, device)
        self._batches = InBatches(device, batch_size)
        cosines = bool(getattr(trained.task, "over_cosines", False))
        self.text_vectors = TextVectors(
            trained.model, trained.tokenizer, trained.lengths, self.precision, self._batches,
            prompts_of_run(trained.lengths.prompts), normalizes=cosines,
        )  # fmt: skip
        warn_of_batches(trained.model, self.precision, device)

    @property
    def lengths(self) -> Lengths:
        """What becomes of rows that are longer than its sequences."""
        return self.trained.lengths

    @property
    def can_window(self) -> bool:
        """Whether a row is one text, which can be read in windows."""
        return self.trained.can_window

    @property
    def shown(self) -> str:
        """What predicts, in words."""
        return f"run {self.trained.located.run_dir}, checkpoint {self.trained.located.checkpoint.name}"

    def settings(self) -> dict[str, object]:
        """Return everything that determines predictions of rows, as JSON."""
        trained, shapes = self.trained, [] if self.compiled is None else self.compiled.scored.shapes
        return {
            # Weights, their moving average, labels and tokenizer.
            "checkpoint": digests_of(trained.located.checkpoint),
            "decided": trained.decided,
            # Another device rounds differently, and its pieces would not join to the bytes of an uninterrupted command.
            "device": self.device.type,
            "max_len": trained.lengths.max_len,
            **({"long": settings} if (settings := trained.lengths.settings()) else {}),
            "precision": trained.config.precision,
            **({} if self.compiled is None else {"compile": [list(astuple(shape)) for shape in shapes]}),
        }

    def problem(self, values: Values) -> tuple[str, str] | None:
        """Return the field of a row that cannot be predicted, and the rule that its value breaks, or None."""
        return problem_of(self.trained, values)

    def encode(self, rows: Sequence[Values]) -> EncodedRows:
        """Return the tokens of rows, which must be valid."""
        values = [dict(row) for row in rows]
        return self.trained.lengths.encode(self.trained.layout, self.trained.tokenizer, values)

    def try_out(self) -> None:
        """Predict a simple row, eagerly, so that an error of the model appears early; with compile=true, choose the
        shapes of all batches by it.

        Raises UserError for a run that cannot predict rows.
        """
        require_predicting(self.trained)
        row = self.encode([self.simple_row()])
        self.plan(in_memory(row, self.trained.layout))
        compiled, self.compiled = self.compiled, None
        try:
            self.predict(row)
        finally:
            self.compiled = compiled

    def simple_row(self) -> Values:
        """Return a row that any run can read."""
        return dict.fromkeys(self.trained.layout.alternatives[-1], "a")

    def plan(self, part: Examples) -> None:
        """With compile=true, choose the shapes of all batches that will come, by those of the first rows."""
        if self.compiled is not None and not self.compiled.scored.shapes:
            ranks = Ranks(0, 1, self.device)
            choose_shapes(self.compiled, [part], self.batch_size, self.trained.lengths.max_len, ranks)

    def predict(
        self, encoded: EncodedRows, *, with_logits: bool = False, form: VectorForm | None = None,
        advance: Callable[[int], None] = lambda rows: None,
    ) -> list[dict[str, Any]]:  # fmt: skip
        """Return the prediction for each row, in order, like the records in predictions/ without their labels.

        With `with_logits` each also has its `logits`: a list, or for a tagged row one for each unit; with `form`, the
        `vector` that the head reads.
        """
        part = in_memory(encoded, self.trained.layout)
        self.plan(part)
        # Batches are in the order of lengths. Each result goes to the place of its row, so no row keeps the shared
        # empty one.
        found: list[dict[str, Any]] = [{}] * len(part)
        bad = 0
        for batch, (records, not_finite) in self._batches.of(part, lambda batch: self._of_batch(batch, with_logits)):
            bad += not_finite
            for example, one in zip(batch.examples_B.tolist(), records, strict=True):
                found[example] = one
            advance(len(batch))
        for one, sign in zip(found, self.trained.lengths.signs(encoded), strict=True):
            one |= sign
        warn_of_not_finite(bad, len(part))
        if form is not None:
            for one, vector in zip(found, form.of(self.text_vectors, encoded, self.trained.layout), strict=True):
                one |= vector
        return found

    def vectors(self, encoded: EncodedRows, layout: Layout | None = None) -> np.ndarray:
        """Return the vector of each row that the head of the run reads, (N, D), float32; see `TextVectors.of`.

        `layout` is how the rows were encoded, by default the layout of the run.
        """
        return self.text_vectors.of(encoded, layout or self.trained.layout)

    @torch.inference_mode()
    def logits(self, encoded: EncodedRows) -> list[np.ndarray]:
        """Return the logits of each row, in order, float32: (C,), or (U, C) for a row whose units are labelled."""
        part = in_memory(encoded, self.trained.layout)
        found = [np.zeros(0, np.float32)] * len(part)
        for batch, logits_B in self._batches.of(part, self._logits_of):
            for example, logits in zip(batch.examples_B.tolist(), logits_B, strict=True):
                found[example] = logits
        return found

    def _logits_of(self, batch: Batch) -> list[np.ndarray]:
        with self.precision.autocast(self.device):
            outputs = self.trained.task.forward(self.trained.model, batch.to(self.device))
        return _logits(batch, outputs)

    @torch.inference_mode()
    def _of_batch(self, batch: Batch, with_logits: bool) -> tuple[list[dict[str, Any]], int]:
        """Return the prediction of each example, and for how many the logits are not finite."""
        task, model = self.trained.task, self.trained.model
        outputs = outputs_of(self.compiled, task, model, batch, self.precision, self.device)
        return self.results(batch, outputs, with_logits)

    def results(self, batch: Batch, outputs: Outputs, with_logits: bool) -> tuple[list[dict[str, Any]], int]:
        """Return the prediction of each example by the outputs of the model for its batch, which is on the host, and
        for how many the logits are not finite."""
        task, model = self.trained.task, self.trained.model
        found = [task.finished(one, self.trained.decided) for one in task.predictions(batch, model, outputs)]
        if with_logits:
            for one, logits in zip(found, _logits(batch, outputs), strict=True):
                one[LOGITS] = logits.tolist()
        # A class may be excluded by minus infinity.
        if np.isfinite(to_host(outputs["logits"]).max(-1)).all():
            return found, 0
        return found, sum(not np.isfinite(logits.max(-1)).all() for logits in _logits(batch, outputs))


def warn_of_not_finite(bad: int, rows: int) -> None:
    """Warn if the logits of `bad` of the rows are not finite."""
    if bad:
        log.warning(
            "the model computes numbers that are not finite for %d of %d rows, whose predictions mean nothing; "
            "predict with precision=bf16 or fp32 if this is fp16, else with another checkpoint",
            bad,
            rows,
        )


def _logits(batch: Batch, outputs: Outputs) -> list[np.ndarray]:
    """Return the logits of each example of a batch."""
    logits = to_host(outputs["logits"])
    if batch.unit_counts_B is None:
        return list(logits)
    ends_B = np.cumsum(batch.unit_counts_B)
    return np.split(logits, ends_B[:-1])
