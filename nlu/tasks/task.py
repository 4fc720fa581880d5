"""The contract of tasks: the target of examples, the terms of the loss, predictions and scores.

The training loop uses a task only through this contract. `undefined` finds metrics that are no number whatever a model
predicts, since the rows of the set decide it.

Axes: B examples, S sequences, U units, N rows of logits (examples or units), C labels, T tokens, D width.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar, Protocol, TypeGuard

import numpy as np
import torch.nn.functional as F
from torch import Tensor

from nlu.config.schema import Node
from nlu.config.sentences import counted
from nlu.data.collate import Batch
from nlu.data.examples import Examples
from nlu.data.targets import Classes, LabelSet, Number, Relevance, SoftClasses, Target
from nlu.losses.loss import Loss, loss_of
from nlu.metrics.scores import Scorer
from nlu.metrics.soft import BINARY, OF_LABELS
from nlu.models.layers.pooling import of_windows
from nlu.models.task_model import TaskModel
from nlu.tasks.keys import Facts

Outputs = dict[str, Tensor]
"""the results of a forward pass by name, always including `logits`"""

OF_NUMBERS = ("pearson", "spearman", "r2")
OF_TWO_CLASSES = ("auc", "average_precision")


class Task(Facts, Protocol):
    """What training uses. A class of nlu has its facts in `nlu.tasks.keys`, another one as constants of the class."""

    def own_head(self) -> Node:
        """Return the node of the head that head=auto selects."""

    @property
    def term_weights(self) -> Mapping[str, float]:
        """The weight of each term's mean in the loss, by name and in order."""

    def counts(self, batch: Batch) -> dict[str, int]:
        """Return the number of rows of each term's sum; the batch is on the host."""

    def forward(self, model: TaskModel, batch: Batch, x_TD: Tensor | None = None) -> Outputs:
        """Run the model; `x_TD` replaces the word vectors."""

    def terms(self, model: TaskModel, batch: Batch, outputs: Outputs) -> dict[str, Tensor]:
        """Return the sum (not the mean) of each term over the batch, as float32 scalars."""

    def divergence(self, batch: Batch, first: Outputs, second: Outputs) -> Tensor:
        """Return a symmetric divergence of two predictions for the same rows, summed over rows; for R-Drop."""

    def rows(self, batch: Batch) -> int:
        """Return the number of rows that `divergence` sums over; the batch is on the host."""

    def predictions(self, batch: Batch, model: TaskModel, outputs: Outputs) -> list[dict[str, object]]:
        """Return the prediction for each example of the batch, in order, without using its targets.

        `batch` is on the host, `outputs` on the model's device. `finished` adds what depends on a threshold.
        """

    def records(self, part: Examples, batch: Batch, model: TaskModel, outputs: Outputs) -> list[dict[str, object]]:
        """Return a record for each example of the batch, in order: label, prediction and loss.

        Arrays in a record are only for the scorer. `batch` and `outputs` are on the same devices as for `predictions`.
        """

    def scorer(self, decided: Mapping[str, float]) -> Scorer:
        """Return a scorer for one set. `decided` has the metrics of the run's first set, and is empty for that set."""

    def finished(self, record: dict[str, object], metrics: Mapping[str, float]) -> dict[str, object]:
        """Return a record or a prediction as it is written to predictions/, given the metrics of its set."""


class Comparing(Task, Protocol):
    """A task whose terms can be computed from the outputs of several micro-batches together."""

    loss: Loss
    compares_steps: bool
    """whether a loss that compares rows does so over the whole step; the run sets it, by its method"""

    def facts_of(self, batch: Batch) -> dict[str, Tensor]:
        """Return what `compare` needs of each row beside its outputs, such as labels; rows are the first axis."""

    def compare(self, outputs: Outputs, facts: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the terms of `terms` for rows of one micro-batch or of several, one after another."""


class RowsOfLogits(Facts):
    """The base of tasks whose loss is one term over rows of logits."""

    term_weights: Mapping[str, float] = MappingProxyType({"labels": 1.0})
    compares_steps = False
    compared_by: str | None = None
    """the method, if it compares the rows of a micro-batch in place of the loss"""
    over_windows: ClassVar[str] = "mean"
    """how the logits of the windows of a long text become those of the text: mean or max"""

    def __init__(self, loss: Loss, target: Target):
        self.loss, self.known = loss, target

    def own_head(self) -> Node:
        return {"_target_": self.heads[0]}

    def counts(self, batch: Batch) -> dict[str, int]:
        return {"labels": self.rows(batch)}

    def forward(self, model: TaskModel, batch: Batch, x_TD: Tensor | None = None) -> Outputs:
        logits = model(batch, x_TD)
        # Units are each in one window.
        return {
            "logits": logits if batch.units_U is not None else of_windows(logits, batch.windows_B, self.over_windows)
        }

    def terms(self, model: TaskModel, batch: Batch, outputs: Outputs) -> dict[str, Tensor]:
        return {"labels": self.loss_of_rows(batch, outputs["logits"], batch.targets["labels"])}

    def facts_of(self, batch: Batch) -> dict[str, Tensor]:
        return {"labels": batch.targets["labels"]}

    def compare(self, outputs: Outputs, facts: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {"labels": self.loss(outputs["logits"], facts["labels"])}

    def loss_of_rows(self, batch: Batch, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of the rows of a batch without its filling."""
        return loss_of(self.loss, logits, labels, None if batch.filling is None else batch.filling.is_real_N)

    def divergence(self, batch: Batch, first: Outputs, second: Outputs) -> Tensor:
        return symmetric_kl(first["logits"], second["logits"])

    def rows(self, batch: Batch) -> int:
        return len(batch.targets["labels"])

    def finished(self, record: dict[str, object], metrics: Mapping[str, float]) -> dict[str, object]:
        return record


def comparing_loss(task: Task, *, over_steps: bool = False) -> str | None:
    """Return the name of a loss of the task whose value for a row depends on other rows of the micro-batch, or None.

    It is the method's where that has a loss of its own. One that compares the rows of whole steps does not depend on
    their division; `over_steps` names it too.
    """
    if (method := getattr(task, "compared_by", None)) is not None:
        return str(method)
    of_members = getattr(task, "members", None)
    for one in [task] if of_members is None else of_members.values():
        loss = getattr(one, "loss", None)
        if loss is not None and not loss.by_row and (over_steps or not compares_steps(one)):
            return type(loss).__name__
    return None


def compares_steps(task: Task) -> TypeGuard[Comparing]:
    """Return whether the loss of a task, which is not composite, compares all rows of a step."""
    loss: Loss | None = getattr(task, "loss", None)
    return bool(getattr(task, "compares_steps", False)) and loss is not None and not loss.by_row


def symmetric_kl(first_NC: Tensor, second_NC: Tensor) -> Tensor:
    """Return half of KL(p || q) + KL(q || p) of two softmax distributions, summed over rows; nats."""
    # From logarithms, because the logarithm of a probability that underflowed is minus infinity.
    p_NC, q_NC = F.log_softmax(first_NC, -1), F.log_softmax(second_NC, -1)
    # KL(p || q) + KL(q || p) = sum (p - q) (log p - log q), which is symmetric to the last bit.
    return 0.5 * ((p_NC.exp() - q_NC.exp()) * (p_NC - q_NC)).sum()


def to_host(values: Tensor) -> np.ndarray:
    """Return a tensor of any device as an array; floats become float32."""
    return values.detach().float().cpu().numpy() if values.is_floating_point() else values.cpu().numpy()


def undefined(metric: str, part: Examples) -> str | None:
    """Return which rows of a set make a metric NaN for every model, None if it can be a number.

    The clause follows "but": "dev has rows of neg only (35)".
    """
    target, stored, rows_N = part.target, part.stored, part.rows_N
    count, name = len(part), part.name
    if isinstance(target, Number) and metric in OF_NUMBERS:
        values_N = target.values(stored, rows_N)
        equal = f"all {count:,} rows of {name} have" if count > 1 else f"the only row of {name} has"
        return f"{equal} the number {values_N[0]:g}" if np.ptp(values_N) == 0 else None
    if isinstance(target, Relevance):
        is_relevant_N = target.numbers(stored, rows_N) > 0
        return None if is_relevant_N.any() else f"none of {counted(count, 'row')} of {name} is relevant"
    if isinstance(target, LabelSet):
        is_known = metric != "average_precision" or target.sets(stored, rows_N)[1].any()
        return None if is_known else f"none of {counted(count, 'row')} of {name} has a label"
    classes_N = None
    if isinstance(target, SoftClasses):
        label_N, is_soft_N, _ = target.rows(stored, rows_N)
        if metric == "agreement":
            return None if is_soft_N.any() else f"no row of {name} has logits or probabilities"
        classes_N = label_N[label_N >= 0]
        if metric in (*OF_LABELS, *BINARY) and not len(classes_N):
            return f"none of {counted(count, 'row')} of {name} has a label"
    elif isinstance(target, Classes):
        classes_N = target.numbers(stored, rows_N)
    if classes_N is not None and metric in OF_TWO_CLASSES and len(found := np.unique(classes_N)) == 1:
        return f"{name} has rows of {target.names[found[0]]} only ({len(classes_N):,})"
    return None
