"""A trained run as a teacher: loaded, checked against the student, and its logits for rows of texts.

Axes: N rows, U units of a row, C labels.
"""

import hashlib
import json
import logging
from collections.abc import Sequence
from functools import cached_property

import numpy as np
import torch

from nlu.config.errors import DataError, UserError, keys_called
from nlu.config.sentences import listed
from nlu.data.layouts import Layout, Values
from nlu.distillation.rules import with_head
from nlu.inference.locate import locate_all
from nlu.inference.prediction import USED
from nlu.inference.predictor import Predictor
from nlu.inference.source import either
from nlu.inference.trained import Trained, load_trained
from nlu.storage.cache import file_digest

log = logging.getLogger(__name__)

KEY = "method.teacher"
SAID_OF_TEACHERS = {
    "run is ": f"{KEY} is ",
    "; set checkpoint": f"; write {KEY}=RUN/NAME, with checkpoint",
    "head_name is null": f"{KEY} names no task",
    "; set head_name to one of": f"; write {KEY}=RUN#TASK, with one of",
    "head_name is ": f"the task that {KEY} names is ",
    "; leave out head_name": "; leave out # and what follows",
}
"""words of errors about a run, and those about a teacher"""


class Teacher:
    """A run that predicts the rows that a student learns from. Its weights are frozen and never drop anything."""

    def __init__(self, trained: Trained, device: torch.device):
        self.trained = trained
        self._predictor = Predictor(trained, device)

    @property
    def name(self) -> str:
        return str(self.trained.located.checkpoint)

    @cached_property
    def digest(self) -> str:
        """The sha256 of all that its logits depend on besides the machine, in hex."""
        checkpoint, config = self.trained.located.checkpoint, self.trained.config
        files = [file_digest(path) for path in sorted(checkpoint.iterdir()) if path.name in USED]
        shaped_by = [files, config.precision, config.data["max_len"], self.trained.layout.settings()]
        if (head := self.trained.located.head_name) is not None:
            shaped_by.append(head)
        if (lengths := self.trained.lengths).long != "cut":
            shaped_by.append(lengths.settings())
        return hashlib.sha256(json.dumps(shaped_by, sort_keys=True).encode()).hexdigest()

    def require_fields(self, layout: Layout) -> None:
        """Raise UserError unless the rows of a student with this layout have the texts that this run reads."""
        needed = self.trained.layout.alternatives
        if not any(set(roles) <= set(present) for roles in needed for present in layout.alternatives):
            raise UserError(
                f"{KEY} is {self.name}, which reads {either(needed)}, but this run reads {either(layout.alternatives)}"
                "; name a teacher of such rows"
            )

    def order_of(self, names: Sequence[str]) -> list[int]:
        """Return the number that each label of the student has in this run.

        Raises UserError, with the labels, unless both have the same ones; their order may differ.
        """
        own = self.trained.labels
        unknown, missing = [name for name in names if name not in own], [name for name in own if name not in names]
        if unknown or missing:
            parts = [f"it lacks {listed(unknown)}"] if unknown else []
            parts += [f"this run lacks {listed(missing)}"] if missing else []
            raise UserError(
                f"{KEY} is {self.name}, whose labels are not those of this run: {', and '.join(parts)}; name a teacher "
                "that was trained with the same labels, in any order"
            )
        return [own.index(name) for name in names]

    def logits(self, rows: Sequence[Values], numbers: Sequence[int]) -> list[np.ndarray]:
        """Return the logits of each row, float32: (C,), or (U, C) where units are labelled.

        They depend on the row only. `numbers` of the rows in their file name them in errors. Raises DataError for a row
        that this run cannot read.
        """
        for row, number in zip(rows, numbers, strict=True):
            if (problem := self.trained.layout.problem(row)) is not None:
                raise DataError(f"row {number} of train: {problem[0]} {problem[1]}, so {self.name} cannot read it")
        return self._predictor.logits(self._predictor.encode(rows))


def load_teachers(references: str | Sequence[str], device: torch.device) -> list[Teacher]:
    """Load the runs that `method.teacher` names; a run over several seeds or folds is several teachers.

    RUN#TASK is the head of a task of a run with several. Raises UserError for a reference without a checkpoint.
    """
    given = [references] if isinstance(references, str) else list(references)
    with keys_called(SAID_OF_TEACHERS):
        found = [
            Teacher(load_trained(located.of_head(head)), device)
            for run, head in map(with_head, given)
            for located in locate_all(run)
        ]
    for teacher in found:
        model = teacher.trained.model
        count = sum(parameter.numel() for parameter in model.parameters())
        log.info("teacher: %s, %s with %s parameters", teacher.name, type(model.backbone).__name__, f"{count:,}")
    return found
