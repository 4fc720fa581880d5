"""Distillation by soft predictions of trained runs.

    (1 - alpha) * task loss + alpha * T^2 * divergence from the teachers at temperature T

(Hinton et al. 2015, https://arxiv.org/abs/1503.02531, section 2.) T^2 keeps the size of the soft gradient about the
same for every T. `nlu.distillation.soft_targets` has the divergence for each kind of task.
"""

import hashlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from nlu.config.errors import CheckpointError, UserError
from nlu.config.keys import takes
from nlu.config.sentences import counted
from nlu.data.collate import Batch
from nlu.data.mixture import MixedStore
from nlu.distillation import keys as schemas
from nlu.distillation.soft_targets import SoftTargets, form_of
from nlu.distillation.teacher import KEY, LOGITS_KEY, Teacher, computed, from_file, load_teachers
from nlu.methods.method import Autocast, Context
from nlu.methods.plain import Plain
from nlu.models.task_model import TaskModel
from nlu.tasks.regress import Regress
from nlu.tasks.task import Task

TERM = "distil"


@takes(schemas.Distil)
class Distil(Plain):
    """The task's loss, and the divergence of the predictions from those of teachers."""

    compiles = False

    def __init__(self, keys: schemas.Distil):
        self.teacher, self.files = keys.teacher, keys.logits
        self.alpha, self.temperature = keys.alpha, keys.temperature
        self._soft: SoftTargets | None = None
        self._squared = keys.temperature**2

    def prepare(self, model: TaskModel, context: Context) -> nn.Module | None:
        """Compute or read the teachers' predictions for all training examples, and forget the teachers.

        Raises UserError for a teacher that does not fit the run, and DataError for rows or files that cannot be used.
        """
        require_one_task(context)
        teachers = load_teachers(self.teacher, context.device)
        self.learn_predictions(teachers, context)
        return Known(teachers)

    def learn_predictions(self, teachers: Sequence[Teacher], context: Context) -> None:
        """Compute or read the predictions of teachers for all training examples."""
        store, part = context.store, context.store.sets["train"]
        # What can be refused at once comes before the passes, which take long.
        form_of(context.task, teachers)
        for teacher in teachers:
            teacher.require_fields(store.layout)
            if store.target.names:
                teacher.order_of(store.target.names)
        files = [self.files] if isinstance(self.files, str) else self.files
        if files is not None and len(files) != len(teachers):
            raise UserError(
                f"{LOGITS_KEY} names {counted(len(files), 'file')} for {counted(len(teachers), 'teacher')}; name one "
                "for each, in their order"
            )
        if files is not None:
            logits = [from_file(path, one, part, store) for path, one in zip(files, teachers, strict=True)]
        else:
            logits = [computed(one, part, context) for one in teachers]
        self._learn(SoftTargets.of(context.task, store.target, teachers, logits, self.temperature), context.task)

    def _learn(self, soft: SoftTargets, task: Task) -> None:
        self._soft = soft
        # The error of a number is not divided by T.
        self._squared = 1.0 if isinstance(task, Regress) else self.temperature**2

    def weights(self, task: Task) -> dict[str, float]:
        own = {name: weight * (1 - self.alpha) for name, weight in task.term_weights.items()}
        return {**own, TERM: self.alpha * self._squared}

    def counts(self, task: Task, batch: Batch) -> dict[str, int]:
        assert self._soft is not None, "prepare was called"
        return {**task.counts(batch), TERM: int(self._soft.counts_of(batch).sum())}

    def terms(
        self, task: Task, model: TaskModel, batch: Batch, autocast: Autocast, x_TD: Tensor | None = None
    ) -> dict[str, Tensor]:
        assert self._soft is not None, "prepare was called"
        with autocast():
            outputs = task.forward(model, batch, x_TD)
        return {**task.terms(model, batch, outputs), TERM: self._soft.divergence(model, batch, outputs["logits"])}


def require_one_task(context: Context) -> None:
    """Raise UserError for a run over several sets, each with its own task."""
    if isinstance(context.store, MixedStore):
        raise UserError(
            f"data is mixture, but {KEY} teaches one task; distil each set in a separate run, or set method=plain"
        )


class Known(nn.Module):
    """The digest of the teachers, kept with the state of a run so that a continuation has the same ones."""

    digest: Tensor

    def __init__(self, teachers: Sequence[Teacher]):
        super().__init__()
        self._names = ", ".join(teacher.name for teacher in teachers)
        digest = hashlib.sha256("".join(teacher.digest for teacher in teachers).encode()).digest()
        self.register_buffer("digest", torch.tensor(list(digest), dtype=torch.uint8))

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *arguments: Any) -> None:
        """Raise CheckpointError if the state was saved with other teachers."""
        if not torch.equal(state_dict[f"{prefix}digest"].cpu(), self.digest.cpu()):
            raise CheckpointError(
                f"{KEY} is {self._names}, a run that has changed since this run began, so this run cannot continue to "
                "the same weights; restore the teacher, or start again in another hydra.run.dir"
            )
        super()._load_from_state_dict(state_dict, prefix, *arguments)
