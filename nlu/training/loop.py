"""The training loop, one for all tasks: step, log, evaluate, save, stop.

Every decision of the loop is a function of the step number, so a run that continues from any checkpoint makes the same
decisions as an uninterrupted one.
"""

import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from nlu.config import stopping
from nlu.config.durations import Clock, parse_duration, parse_interval
from nlu.config.schema import Trainer
from nlu.data.building import gc_frozen
from nlu.data.examples import Examples
from nlu.data.mixture import MixedOrder, MixedStore
from nlu.data.opening import Store
from nlu.data.order import Order
from nlu.display.progress import Progress
from nlu.models.composite import model_of
from nlu.optim.adamw import set_learning_rate
from nlu.optim.schedules import Schedule
from nlu.runs.checkpoint import Checkpoints, OrderKey
from nlu.runs.records import Cell, Table
from nlu.runs.state import Best, State, Window
from nlu.tasks.composite import task_of
from nlu.tasks.task import Task
from nlu.training.evaluation import Evaluator, Scored, decided_for, decisive, keep_predictions, score, with_summary
from nlu.training.journal import Journal
from nlu.training.step import PendingStep, Stepper, StepResult


class Trial(Protocol):
    """The trial of a search, as seen by its run; only called on rank 0."""

    def report(self, examples: int, value: float) -> bool:
        """Report the value of an evaluation after `examples` examples; returns whether the run should be pruned."""

    def require_newest(self) -> None:
        """Raise UserError if another job has taken the trial. Called before each save."""


UNTIMED_STEPS = 3
"""the first steps of each process, which do not count for throughput"""


@dataclass
class Training:
    """The parts of a run, built and loaded."""

    trainer: Trainer
    seed: int
    task: Task
    scheduler: Schedule
    stepper: Stepper
    store: Store
    order: Order | MixedOrder
    state: State
    clock: Clock
    order_key: OrderKey
    """everything that determines the order of examples, stored with the state"""
    checkpoints: Checkpoints
    run_dir: Path
    progress: Progress
    journal: Journal
    """gets every row of the tables, on all ranks"""
    trial: Trial | None = None
    """set on all ranks or on none"""
    after_save: Callable[[], None] = lambda: None
    """called on rank 0 after each save of the last state"""
    tables: dict[str, Table] = field(default_factory=dict)
    """train.tsv and valid.tsv on rank 0, none elsewhere; opened when the run begins to write"""
    unsaved: dict[str, Scored] = field(default_factory=dict)
    """by set: the records of the best evaluation if it is newer than the saved state; the next save writes them"""

    def __post_init__(self) -> None:
        self.total_steps = self.clock.steps(parse_duration(self.trainer.max_duration))
        self.eval_sets = list(self.store.of_role("dev"))
        self.decisive = decisive(self.task, self.trainer.major_metric, self.store)
        self.metric = self.decisive.metric
        self.higher_is_better = self.metric not in self.task.lower_is_better
        self._train_sets = {part.member: part for part in self.store.of_role("train").values()}

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
            trainer.eval_batch_size or 2 * trainer.batch_size,
            self.run_dir / "predictions",
        )

    def value_of(self, metrics: dict[str, dict[str, float]]) -> float:
        """Return the value that decides which evaluation is best."""
        return metrics[self.decisive.set_name][self.metric]

    def ranked(self, evaluations: list[Best]) -> list[Best]:
        """Return the evaluations that the run keeps, the best first, of equal ones the older first, without NaN."""
        sign = -1 if self.higher_is_better else 1
        known = [entry for entry in evaluations if not math.isnan(entry.value)]
        return sorted(known, key=lambda entry: (sign * entry.value, entry.step))[: self.trainer.keep_best]

    def global_batches(self, step: int) -> list[np.ndarray]:
        """Return the examples, over all ranks, of each micro-batch of the step with this number, counted from 0."""
        return self.order.global_step(step)

    def rank_batches(self, step: int) -> list[np.ndarray]:
        """Return the share of this rank of `global_batches`."""
        return self.order.step(step)


@gc_frozen()
def train(run: Training) -> bool:
    """Train until the run is complete, patience ends it, or a signal arrives; returns whether it was a signal.

    Call it inside `stopping.polled`. On return the last state is saved and, unless a signal ended the run, every
    evaluation set is scored at the last step. A pruned run has `state.pruned` set and counts as complete.
    """
    trainer, state, clock = run.trainer, run.state, run.clock
    log_interval = parse_duration(trainer.log_interval)
    eval_interval, save_interval = parse_interval(trainer.eval_interval), parse_interval(trainer.save_interval)
    began_s = time.perf_counter() - state.train_s
    pending: deque[PendingStep] = deque()
    is_stopping = False
    run.stepper.model.train()
    run.progress.start(run.total_steps, state.step)
    meter = Meter(run)
    while state.step < run.total_steps and not state.pruned and not out_of_patience(run):
        number = state.step + 1
        lr = set_learning_rate(run.stepper.optimizer, run.scheduler.factor(number, run.total_steps, clock))
        part, epoch = run.train_set(state.step), run.order.epoch_of(state.step)
        with run.journal.listening():
            step = run.stepper.step(part, run.rank_batches(state.step), number, stopping.asked(), epoch)
        pending.append(step)
        is_stopping |= step.stop
        state.step = number

        last_step = number == run.total_steps
        logging = clock.is_time(log_interval, number) or last_step
        evaluating = clock.is_time(eval_interval, number) or last_step
        saving = evaluating if save_interval is None else clock.is_time(save_interval, number)
        # An accelerator runs one step ahead of the host, unless the numbers of this step are needed now.
        ahead = 1 if run.stepper.is_asynchronous and not (logging or evaluating or saving) else 0
        while len(pending) > (0 if is_stopping else ahead):
            meter.count(pending.popleft().result())
        if logging:
            log_window(run, lr, meter.loss_scale)
        if evaluating:
            evaluate(run)
            state.pruned = is_to_be_pruned(run) and not last_step
        state.train_s = time.perf_counter() - began_s
        ending = last_step or state.pruned or (evaluating and out_of_patience(run))
        if saving or is_stopping or ending:
            save_last(run)
        if saving or is_stopping or ending or evaluating:
            meter.restart()
        if is_stopping:
            return True
    # Check for a signal since the last step: the ranks must agree, and the end of a run may take long.
    return run.stepper.ranks.from_first(stopping.asked())


class Meter:
    """Counts the examples, losses and times of finished steps."""

    def __init__(self, run: Training):
        self.run = run
        self.loss_scale: float | None = None
        """the loss scale of the last step"""
        self._steps = 0
        self.restart()

    def restart(self) -> None:
        """Start the clock again: the time of evaluations and saves does not belong to a step."""
        self._began_s = time.perf_counter()

    def count(self, result: StepResult) -> None:
        """Add a step to the window and, unless it is one of the first of this process, to the throughput."""
        run, now_s = self.run, time.perf_counter()
        elapsed_s, self._began_s = now_s - self._began_s, now_s
        self._steps += 1
        window, throughput = run.state.window, run.state.throughput
        lengths_N = run.train_set(result.number - 1).lengths_N
        lengths = [lengths_N[examples_B] for examples_B in run.global_batches(result.number - 1)]
        examples, tokens = sum(map(len, lengths)), int(sum(part.sum() for part in lengths))
        window.steps += 1
        if result.skipped:
            window.skipped += 1
            run.state.skipped += 1
        else:
            window.add_terms(result.sums, result.counts)
            window.loss_sum += result.loss
            window.gnorm_sum += result.gnorm
            window.clipped += result.clipped
        self.loss_scale = result.loss_scale
        window.examples += examples
        window.real_tokens += tokens
        window.steps_s += elapsed_s
        if self._steps > UNTIMED_STEPS:
            throughput.steps_s += elapsed_s
            throughput.examples += examples
            throughput.real_tokens += tokens
            pads = run.stepper.model.backbone.pads
            throughput.computed_tokens += int(sum(part.max() * len(part) for part in lengths)) if pads else tokens
        run.progress.advance(result.number, result.loss, window.examples_per_s)


def log_window(run: Training, lr: float, loss_scale: float | None) -> None:
    """Add a row to train.tsv: means over the steps since the last row."""
    state, window = run.state, run.state.window
    run.journal.gather(window)
    if "train" in run.tables:
        means, updates = window.means(), window.updates
        loss = sum(run.stepper.weights[name] * mean for name, mean in means.items())
        if isinstance(run.store, MixedStore):
            # A step has terms of one set only.
            means = {name: mean for name, mean in means.items() if window.counts[name]}
            loss = window.loss_sum / max(1, updates)
        row: dict[str, Cell] = {
            "step": state.step,
            "epoch": run.clock.epoch(state.step),
            "examples": run.clock.examples(state.step),
            # If every step was skipped, cells stay empty.
            "loss": loss if updates else None,
            "gnorm": window.gnorm_sum / updates if updates else None,
            "clipped": window.clipped / updates if updates else None,
            "lr": lr,
            "examples_per_s": window.examples_per_s,
            "real_tokens_per_s": window.real_tokens_per_s,
            **({f"loss_{name}": mean for name, mean in means.items()} if len(run.stepper.weights) > 1 else {}),
            **({} if loss_scale is None else {"grad_scale": loss_scale, "skipped": window.skipped}),
        }
        run.tables["train"].append(**row)
        run.journal.window(row, window)
    state.window = Window()


def evaluate(run: Training) -> None:
    """Score every evaluation set, record it, and keep the weights if they are among the best."""
    state, ranks = run.state, run.stepper.ranks
    state.evaluated_at = state.step
    with averaged_weights(run.stepper):
        scored: dict[str, Scored] = {}
        for name in run.eval_sets:
            known = {other: one.scores.metrics for other, one in scored.items()}
            scored[name] = score_set(run, name, decided=decided_for(run.store, name, known))
        metrics = with_summary(run.task, run.store, {name: one.scores.metrics for name, one in scored.items()})
        entry = Best(
            step=state.step,
            examples=run.clock.examples(state.step),
            epoch=run.clock.epoch(state.step),
            value=run.value_of(metrics),
            metrics=metrics,
        )
        state.last_metrics = metrics
        run.progress.metric(f"{run.decisive.set_name} {run.metric}", entry.value)
        log_evaluation(run, entry)
        if enters_best(run, entry):
            if ranks.is_first:
                require_newest(run)
            # Every rank must call it, since each may hold only a part of every tensor.
            weights = run.stepper.parallel.state_dict(run.stepper.model)
            if ranks.is_first:
                run.checkpoints.save_best(weights, state.best)
    replaced = scored
    if state.best and state.best[0] is entry:
        replaced, run.unsaved = run.unsaved, scored
    for one in replaced.values():
        one.spool.close()


def require_newest(run: Training) -> None:
    """Raise UserError if another job has taken the trial of this run."""
    if run.trial is not None:
        run.trial.require_newest()


def is_to_be_pruned(run: Training) -> bool:
    """Report the last evaluation to the trial of this run, if any, on rank 0; returns the answer on all ranks."""
    if run.trial is None:
        return False
    ranks = run.stepper.ranks
    value = run.value_of(run.state.last_metrics)
    return ranks.from_first(run.trial.report(run.clock.examples(run.state.step), value) if ranks.is_first else None)


def log_evaluation(run: Training, entry: Best) -> None:
    """Add a row to valid.tsv for every metric of every set."""
    if "valid" in run.tables:
        for name, values in entry.metrics.items():
            for metric, value in values.items():
                row: dict[str, Cell] = {
                    "step": entry.step,
                    "epoch": entry.epoch,
                    "examples": entry.examples,
                    "set": name,
                    "metric": metric,
                    "value": value,
                }
                run.tables["valid"].append(**row)
                run.journal.evaluation(row)


def score_set(run: Training, name: str, decided: Mapping[str, float]) -> Scored:
    """Score one set with the current weights; `decided` are the metrics of the first set, for later ones."""
    part = run.store.sets[name]
    with run.progress.task(f"scoring {name}", len(part)) as bar:
        return score(run.evaluator(part.member), part, decided, bar.advance)


def enters_best(run: Training, entry: Best) -> bool:
    """Insert an evaluation into the list of the best; returns whether it is one of them."""
    state = run.state
    best = run.ranked([*(old for old in state.best if old.step != entry.step), entry])
    if best and best[0] is entry:
        state.improved_at = entry.step
    state.best = best
    return entry in best


def out_of_patience(run: Training) -> bool:
    """Whether the evaluations have not improved for `trainer.patience`; can become true only at an evaluation."""
    if run.trainer.patience is None:
        return False
    return run.state.evaluated_at - run.state.improved_at >= run.clock.steps(parse_duration(run.trainer.patience))


def save_last(run: Training) -> None:
    """Replace checkpoints/last.

    Every rank must call it, since each may hold only a part of every tensor. Rank 0 writes, and the others wait, so
    that no rank runs ahead of the saved state.

    The predictions of the best evaluation are also replaced here, so that they match the best evaluation in the state.
    Best checkpoints that the new state no longer names are removed last: if the run is killed before, it continues from
    the old state, which still names them.
    """
    run.journal.gather(run.state.window)
    if run.stepper.ranks.is_first:
        require_newest(run)
    for name, one in run.unsaved.items():
        task = task_of(run.task, one.part.member)
        keep_predictions(run.run_dir, name, one, task, run.stepper.ranks, step=run.state.best[0].step)
        one.spool.close()
    run.unsaved = {}
    tensors = run.stepper.saved.gather()
    run.state.precision = run.stepper.precision.state()
    if run.stepper.ranks.is_first:
        # A run that continues from this state does not write earlier rows again, so they must be on the disk.
        for table in run.tables.values():
            table.sync()
        run.journal.sync()
        run.checkpoints.save_last(tensors, run.state, run.order_key)
        run.checkpoints.arrange(run.state.best)
        run.after_save()
    run.stepper.ranks.barrier()


@contextmanager
def averaged_weights(stepper: Stepper) -> Iterator[None]:
    """Replace the weights by their moving average, if any, within the block."""
    if stepper.average is None:
        yield
        return
    own: dict[str, Tensor] = {}
    with torch.no_grad():
        for name, parameter in stepper.model.named_parameters():
            if name in stepper.average:
                own[name] = parameter.detach().clone()
                parameter.copy_(stepper.average[name])
    try:
        yield
    finally:
        with torch.no_grad():
            for name, parameter in stepper.model.named_parameters():
                if name in own:
                    parameter.copy_(own[name])
