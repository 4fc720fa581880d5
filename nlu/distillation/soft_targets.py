"""Predictions of teachers as targets, and how far a student's predictions are from them, for each kind of task.

    classes       KL(p || q), p = softmax(teacher / T), q = softmax(student / T)
    tags          the same at each unit; with a CRF, p or q is the marginal of the unit over all tag sequences
    label sets    the mean over labels of KL(p || q) of p = sigmoid(teacher / T), q = sigmoid(student / T)
    numbers       (teacher - student)^2 of standardized numbers

(Hinton et al. 2015, https://arxiv.org/abs/1503.02531, section 2; marginals: Wang et al. 2020,
https://arxiv.org/abs/2004.03846, section 3.3.) The divergence is the cross-entropy with soft targets minus the entropy
of the targets, a constant. Several teachers: the mean of their p at temperature T (the arithmetic mean of section 1 of
Hinton et al.), or of their numbers.

Axes: N examples, R rows of logits (examples or units), B examples of a batch, C labels.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from scipy.special import expit
from torch import Tensor

from nlu.config.errors import UserError
from nlu.data.arrays import ranges, starts_of
from nlu.data.collate import Batch, to_device
from nlu.data.targets import Target
from nlu.data.targets.number import Number
from nlu.distillation.teacher import CHUNK_ROWS, KEY, Logits, Teacher
from nlu.metrics.classes import log_probabilities
from nlu.models.heads.crf import CrfHead
from nlu.models.task_model import TaskModel
from nlu.tasks.classify import Classify, Deciding
from nlu.tasks.multilabel import Multilabel
from nlu.tasks.regress import Regress
from nlu.tasks.tag import Tag
from nlu.tasks.task import Task, to_host


class Form(Protocol):
    """What is learned from a teacher in one kind of task."""

    def target(self, teacher: Teacher, logits: Logits, temperature: float) -> np.ndarray:
        """Return what the student should yield, in the order of the teacher's outputs; (R, C), float64."""

    def found(self, model: TaskModel, logits_RC: Tensor, batch: Batch, temperature: float) -> Tensor:
        """Return what the student yields, as `divergence` compares it; (R, C), float32."""

    def divergence(self, wanted_RC: Tensor, found_RC: Tensor) -> Tensor:
        """Return how far results of `found` are from targets, summed over rows; a scalar."""


class OfClasses:
    """One class for each row."""

    def target(self, teacher: Teacher, logits: Logits, temperature: float) -> np.ndarray:
        return np.exp(log_probabilities(logits.rows_RC.astype(np.float64) / temperature))

    def found(self, model: TaskModel, logits_RC: Tensor, batch: Batch, temperature: float) -> Tensor:
        return (logits_RC.float() / temperature).log_softmax(1)

    def divergence(self, wanted_RC: Tensor, found_RC: Tensor) -> Tensor:
        return (torch.xlogy(wanted_RC, wanted_RC) - wanted_RC * found_RC).sum()


class OfTags(OfClasses):
    """A tag for each unit. With a CRF, of the teacher or the student, its marginals; their scores are divided by T."""

    def target(self, teacher: Teacher, logits: Logits, temperature: float) -> np.ndarray:
        head = teacher.trained.model.head
        if not isinstance(head, CrfHead):
            return super().target(teacher, logits, temperature)
        device = head.start_C.device
        found_RC, start = np.empty(logits.rows_RC.shape), 0
        for counts_B in np.split(logits.counts_N, range(CHUNK_ROWS, len(logits.counts_N), CHUNK_ROWS)):
            rows = slice(start, start := start + int(counts_B.sum()))
            with torch.no_grad():
                logits_UC = torch.from_numpy(np.array(logits.rows_RC[rows])).to(device)
                found_RC[rows] = to_host(head.log_marginals(logits_UC, counts_B, temperature).exp())
        return found_RC

    def found(self, model: TaskModel, logits_RC: Tensor, batch: Batch, temperature: float) -> Tensor:
        if not isinstance(model.head, CrfHead):
            return super().found(model, logits_RC, batch, temperature)
        assert batch.unit_counts_B is not None
        return model.head.log_marginals(logits_RC, batch.unit_counts_B, temperature)

    def divergence(self, wanted_RC: Tensor, found_RC: Tensor) -> Tensor:
        # A tag that the student's CRF forbids at a unit has no probability; a teacher without a CRF gives it some,
        # which goes to the other tags.
        is_allowed_RC = ~torch.isneginf(found_RC)
        wanted_RC = wanted_RC * is_allowed_RC
        wanted_RC = wanted_RC / wanted_RC.sum(1, keepdim=True).clamp_min(torch.finfo(wanted_RC.dtype).tiny)
        return super().divergence(wanted_RC, found_RC.masked_fill(~is_allowed_RC, 0.0))


class OfLabelSets:
    """Any number of labels, each independent of the others."""

    def target(self, teacher: Teacher, logits: Logits, temperature: float) -> np.ndarray:
        return expit(logits.rows_RC.astype(np.float64) / temperature)

    def found(self, model: TaskModel, logits_RC: Tensor, batch: Batch, temperature: float) -> Tensor:
        return logits_RC.float() / temperature

    def divergence(self, wanted_RC: Tensor, found_RC: Tensor) -> Tensor:
        entropy_RC = torch.xlogy(wanted_RC, wanted_RC) + torch.xlogy(1 - wanted_RC, 1 - wanted_RC)
        cross_RC = F.binary_cross_entropy_with_logits(found_RC, wanted_RC, reduction="none")
        return (cross_RC + entropy_RC).mean(1).sum()


class OfNumbers:
    """A number. The teacher's is standardized as those of the student are; there is no temperature."""

    def __init__(self, known: Number):
        self._known = known

    def target(self, teacher: Teacher, logits: Logits, temperature: float) -> np.ndarray:
        own = teacher.trained.target
        assert isinstance(own, Number), "the teacher predicts numbers too"
        return self._known.scaled(own.unscaled(logits.rows_RC.astype(np.float64)))

    def found(self, model: TaskModel, logits_RC: Tensor, batch: Batch, temperature: float) -> Tensor:
        return logits_RC.float()

    def divergence(self, wanted_RC: Tensor, found_RC: Tensor) -> Tensor:
        return (found_RC - wanted_RC).square().sum()


OWN = "this run"
PREDICTED: dict[type[Any], str] = {Classify: "classes", Tag: "tags", Multilabel: "label sets", Regress: "numbers"}
"""what each kind of task predicts, also for derived tasks"""


def _predicted(task: Task, whose: str) -> str:
    """Return what a task predicts. Raises UserError for a task whose outputs are not compared here."""
    named = next((words for kind, words in PREDICTED.items() if isinstance(task, kind)), None)
    if named is None or getattr(task, "over_cosines", False):
        remedy = "choose another task or loss, or method=plain" if whose == OWN else "name a teacher with such a task"
        raise UserError(
            f"{whose} has the task {type(task).__name__}, but the predictions of teachers are learned for "
            f"{', '.join(PREDICTED.values())} as logits; {remedy}"
        )
    loss = getattr(task, "loss", None)
    if isinstance(loss, Deciding):
        raise UserError(
            f"{whose} has loss={type(loss).__name__.lower()}, whose outputs are no distribution over classes; "
            "use loss=cross_entropy there"
        )
    return named


@dataclass(frozen=True)
class SoftTargets:
    """The mean predictions of teachers for every example of a training set."""

    form: Form
    temperature: float
    rows_RC: np.ndarray
    """float32, in the order of the student's outputs"""
    counts_N: np.ndarray
    """the rows of each example: 1, or the units that all teachers have seen"""
    starts_N: np.ndarray

    @classmethod
    def of(
        cls, task: Task, target: Target, teachers: Sequence[Teacher], logits: Sequence[Logits], temperature: float
    ) -> "SoftTargets":
        """Average the predictions of teachers. Raises UserError if one of them predicts something else."""
        form = form_of(task, teachers)
        counts_N = np.min([one.counts_N for one in logits], axis=0)
        sum_RC: np.ndarray | float = 0.0
        for teacher, own in zip(teachers, logits, strict=True):
            order = teacher.order_of(target.names) if target.names else slice(None)
            wanted_RC = form.target(teacher, own, temperature)[:, order]
            # Teachers with different tokenizers may cut a row after different numbers of units.
            sum_RC = sum_RC + wanted_RC[ranges(starts_of(own.counts_N), counts_N)]
        assert isinstance(sum_RC, np.ndarray), "there is a teacher"
        return cls(form, temperature, (sum_RC / len(teachers)).astype(np.float32), counts_N, starts_of(counts_N))

    def counts_of(self, batch: Batch) -> np.ndarray:
        """Return how many rows of each example of a batch are compared; (B,)."""
        counts_B = self.counts_N[batch.examples_B]
        # Units that max_len cut off, here or for the teacher, have no logits.
        return counts_B if batch.unit_counts_B is None else np.minimum(counts_B, batch.unit_counts_B)

    def divergence(self, model: TaskModel, batch: Batch, logits_RC: Tensor) -> Tensor:
        """Return how far the student's logits are from the targets, summed over rows; a scalar."""
        counts_B = self.counts_of(batch)
        wanted = self.rows_RC[ranges(self.starts_N[batch.examples_B], counts_B)]
        found_RC = self.form.found(model, logits_RC, batch, self.temperature)
        if batch.unit_counts_B is not None:
            kept_R = torch.from_numpy(ranges(starts_of(batch.unit_counts_B), counts_B))
            found_RC = found_RC.index_select(0, to_device(kept_R, found_RC.device))
        return self.form.divergence(to_device(torch.from_numpy(wanted), found_RC.device), found_RC)


def form_of(task: Task, teachers: Sequence[Teacher]) -> Form:
    """Return what a student learns from teachers. Raises UserError unless all predict the same kind of thing."""
    own = _predicted(task, OWN)
    for teacher in teachers:
        theirs = _predicted(teacher.trained.task, f"{KEY}, {teacher.name},")
        if theirs != own:
            raise UserError(
                f"{KEY} is {teacher.name}, which predicts {theirs}, but this run predicts {own}; name a teacher that "
                f"predicts {own}"
            )
    if isinstance(task, Regress):
        return OfNumbers(task.known)
    return OfTags() if isinstance(task, Tag) else OfLabelSets() if isinstance(task, Multilabel) else OfClasses()
