"""The parts of one run, which `nlu.training.build` makes and the loop uses."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np

from nlu.config.durations import Clock
from nlu.config.schema import Trainer
from nlu.data.examples import Examples, sampled
from nlu.data.opening import Store
from nlu.display.progress_bars import Progress
from nlu.models.task_model import model_of
from nlu.optim.schedules import Schedule
from nlu.runs.checkpoint import Checkpoints, OrderKey
from nlu.runs.records import Table
from nlu.runs.state import Best, State
from nlu.tasks.composite import task_of
from nlu.tasks.task import Task
from nlu.training.due import Due
from nlu.training.evaluation import Evaluator, Scored, decisive
from nlu.training.journal import Inspector, Journal
from nlu.training.ordering import AnyOrder
from nlu.training.step import Stepper


class Trial(Protocol):
    """The trial of a search, as seen by its run; only called on rank 0."""

    def report(self, examples: int, value: float) -> bool:
        """Report the value of an evaluation after `examples` examples; returns whether the run should be pruned."""

    def pauses(self, examples: int) -> bool:
        """Return whether the run should save its state after `examples` examples and end, to be continued later."""

    @property
    def quantities(self) -> Sequence[str]:
        """What is to be measured at the end of the run (`nlu.search.goals.QUANTITIES`)."""


@dataclass
class Training:
    """The parts of a run, built and loaded."""

    trainer: Trainer
    seed: int
    task: Task
    scheduler: Schedule
    stepper: Stepper
    store: Store
    order: AnyOrder
    state: State
    clock: Clock
    order_key: OrderKey
    """everything that determines the order of examples, stored with the state"""
    checkpoints: Checkpoints
    run_dir: Path
    progress: Progress
    journal: Journal
    """gets every row of the tables, on all ranks"""
    is_trial: bool = False
    """whether this is a run of a search's trial"""
    trial: Trial | None = None
    """that trial, on rank 0"""
    after_save: Callable[[], None] = lambda: None
    """called on rank 0 each time the last state was saved"""
    inspector: Inspector | None = None
    """looks into the steps that write a row of train.tsv; on all ranks or on none"""
    settled: int = 0
    """the last step after which the loop has done all that was due"""
    tables: dict[str, Table] = field(default_factory=dict)
    """train.tsv and valid.tsv on rank 0, none elsewhere; opened when the run begins to write"""
    unsaved: dict[str, Scored] = field(default_factory=dict)
    """by set: the records of the best evaluation if it is newer than the saved state; the next save writes them"""

    def __post_init__(self) -> None:
        self.due = Due(self.trainer, self.clock, has_floor=not self.is_trial)
        sets = self.store.of_role("dev")
        self.eval_sets = {name: sampled(part, self.trainer.eval_rows, self.seed) for name, part in sets.items()}
        """what is scored while training, by set; at the end of the run the whole sets are"""
        self.sampled_rows = {name: len(part) for name, part in self.eval_sets.items() if len(part) < len(sets[name])}
        """the size of each sample, without sets that are scored as a whole"""
        self.decisive = decisive(self.task, self.trainer.major_metric, self.store)
        self.metric = self.decisive.metric
        self.higher_is_better = self.metric not in self.task.lower_is_better
        self._train_sets = {part.member: part for part in self.store.of_role("train").values()}

    @property
    def is_complete(self) -> bool:
        """Whether the last step is done, the search has pruned the run, or patience has ended it."""
        return self.state.step >= self.due.total_steps or self.state.pruned or self.is_out_of_patience

    @property
    def is_out_of_patience(self) -> bool:
        """Whether the evaluations have not improved for `trainer.patience`; can become true only at an evaluation."""
        return self.due.is_out_of_patience(self.state.evaluated_at, self.state.improved_at)

    def rows(self, number: int) -> tuple[Examples, list[np.ndarray], int]:
        """Return what step `number`, from 1, is taken from: the set, this rank's share of each micro-batch, and the
        epoch, from 0."""
        step = number - 1
        micro_batches = self.order.step(step)
        return self._train_sets[self.order.member_of(step)], micro_batches, self.order.epoch_of(step)

    def train_set(self, step: int) -> Examples:
        """Return the set that the step with this number, counted from 0, is taken from."""
        return self._train_sets[self.order.member_of(step)]

    def evaluator(self, member: str) -> Evaluator:
        """Return what scores sets with this name of a mixture's set."""
        stepper, trainer = self.stepper, self.trainer
        return Evaluator(
            model_of(stepper.model, member),
            task_of(self.task, member),
            stepper.ranks,
            stepper.precision,
            trainer.rows_to_score,
            self.run_dir / "predictions",
            stepper.compiled,
        )

    def value_of(self, metrics: dict[str, dict[str, float]]) -> float:
        """Return the value that decides which evaluation is best."""
        return metrics[self.decisive.set_name][self.metric]

    def ranked(self, evaluations: list[Best]) -> list[Best]:
        """Return the evaluations that the run keeps, the best first, of equal ones the older first, without NaN."""
        sign = -1 if self.higher_is_better else 1
        # NaN compares as neither greater nor smaller, so the order would depend on the list.
        known = [entry for entry in evaluations if not math.isnan(entry.value)]
        return sorted(known, key=lambda entry: (sign * entry.value, entry.step))[: self.trainer.keep_best]

    def global_batches(self, step: int) -> list[np.ndarray]:
        """Return the examples, over all ranks, of each micro-batch of the step with this number, counted from 0."""
        return self.order.global_step(step)
