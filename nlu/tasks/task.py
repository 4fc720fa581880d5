"""What a task is: where its examples' targets come from, which terms its loss has, and how it is scored.

The one loop knows nothing else of it. Axes: B examples, S sequences, U units, N rows of logits (examples or units),
C labels, T tokens, D width.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar, Protocol

import numpy as np
import torch.nn.functional as F
from torch import Tensor

from nlu.config.schema import Node
from nlu.data.collate import Batch
from nlu.data.examples import Examples
from nlu.data.targets import Target
from nlu.losses.loss import Loss
from nlu.metrics.scores import Scorer
from nlu.models.task_model import TaskModel

Outputs = dict[str, Tensor]
"""what a forward pass gives, by name; `logits` is always among them"""


class Task(Protocol):
    """Class constants are literals, read from source before anything heavy is imported."""

    layouts: ClassVar[tuple[str, ...]]
    """how the texts of a row may become sequences; the first whose fields are there is taken"""
    target: ClassVar[str]
    """dotted name of its nlu.data.targets.Target"""
    heads: ClassVar[tuple[str, ...]]
    """dotted names of the heads that fit"""
    reads: ClassVar[tuple[str, ...]]
    """what a loss that fits may read: logits, cosine, similarities; it must know the target's kind as well"""
    scores: ClassVar[str]
    """dotted name of its nlu.metrics.scores.Scorer"""
    kind: str
    """dotted name of the nlu.metrics.kinds.Kind of its records; the constructor may replace it where it depends on the
    loss"""
    metrics: ClassVar[tuple[str, ...]]
    binary_metrics: ClassVar[tuple[str, ...]]
    """only with two classes"""
    default_metric: ClassVar[str]
    lower_is_better: ClassVar[tuple[str, ...]]

    def own_head(self) -> Node:
        """Return the choice that head=auto stands for."""

    @property
    def term_weights(self) -> Mapping[str, float]:
        """The terms of the loss, in their order, and what multiplies the mean of each in it."""

    def counts(self, batch: Batch) -> dict[str, int]:
        """Return how many rows each term of the loss sums over; the batch is on the host."""

    def forward(self, model: TaskModel, batch: Batch, x_TD: Tensor | None = None) -> Outputs:
        """Run the model; `x_TD` stands in for the vectors that it would look up."""

    def terms(self, model: TaskModel, batch: Batch, outputs: Outputs) -> dict[str, Tensor]:
        """Return the sum of each term over this batch, float32 scalars; never a mean."""

    def divergence(self, batch: Batch, first: Outputs, second: Outputs) -> Tensor:
        """Return how much two predictions for the same rows differ, summed over rows, symmetric; for R-Drop."""

    def rows(self, batch: Batch) -> int:
        """Return how many rows `divergence` sums over; the batch is on the host."""

    def predictions(self, batch: Batch, model: TaskModel, outputs: Outputs) -> list[dict[str, Any]]:
        """Return what is predicted for each example of the batch, in its order, without a look at its targets.

        `batch` is on the host, `outputs` where the model is. What hangs on a threshold is added by `finished`.
        """

    def records(self, part: Examples, batch: Batch, model: TaskModel, outputs: Outputs) -> list[dict[str, Any]]:
        """Return a record for each example of the batch, in its order: the prediction beside what is right, and its
        loss. Arrays in it are only for the scorer; `batch` and `outputs` lie as for `predictions`.
        """

    def scorer(self, decided: Mapping[str, float]) -> Scorer:
        """Return a scorer for one set; `decided` are the metrics of the run's first set, {} while that is scored."""

    def finished(self, record: dict[str, Any], metrics: Mapping[str, float]) -> dict[str, Any]:
        """Return a record, or only a prediction, as predictions/ holds it, once the metrics of its set are known."""


class RowsOfLogits:
    """What tasks share whose loss is one term over rows of logits."""

    heads: ClassVar[tuple[str, ...]]
    own_loss: ClassVar[str] = "nlu.losses.cross_entropy.CrossEntropy"
    """dotted name of the loss that it has as one of several tasks, where none is chosen"""
    reads: ClassVar[tuple[str, ...]] = ("logits",)
    term_weights: Mapping[str, float] = MappingProxyType({"labels": 1.0})

    def __init__(self, loss: Loss, target: Target):
        self.loss, self.known = loss, target

    def own_head(self) -> Node:
        return {"_target_": self.heads[0]}

    def counts(self, batch: Batch) -> dict[str, int]:
        return {"labels": self.rows(batch)}

    def forward(self, model: TaskModel, batch: Batch, x_TD: Tensor | None = None) -> Outputs:
        return {"logits": model(batch, x_TD)}

    def terms(self, model: TaskModel, batch: Batch, outputs: Outputs) -> dict[str, Tensor]:
        return {"labels": self.loss(outputs["logits"], batch.targets["labels"])}

    def divergence(self, batch: Batch, first: Outputs, second: Outputs) -> Tensor:
        return symmetric_kl(first["logits"], second["logits"])

    def rows(self, batch: Batch) -> int:
        return len(batch.targets["labels"])

    def finished(self, record: dict[str, Any], metrics: Mapping[str, float]) -> dict[str, Any]:
        return record


def symmetric_kl(first_NC: Tensor, second_NC: Tensor) -> Tensor:
    """Return half of KL(p || q) + KL(q || p) of two softmax distributions, summed over rows; nats."""
    p_NC, q_NC = F.log_softmax(first_NC, -1), F.log_softmax(second_NC, -1)
    # KL(p || q) + KL(q || p) = sum (p - q) (log p - log q): one expression, symmetric to the bit.
    return 0.5 * ((p_NC.exp() - q_NC.exp()) * (p_NC - q_NC)).sum()


def to_host(values: Tensor) -> np.ndarray:
    """Return a tensor of any device as an array."""
    return values.detach().float().cpu().numpy() if values.is_floating_point() else values.cpu().numpy()
