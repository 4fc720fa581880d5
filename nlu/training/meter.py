"""Count finished steps, and write the rows of train.tsv."""

import logging
import time

from nlu.data.mixture import MixedStore
from nlu.runs.records import PEAK_COLUMN, TIME_COLUMNS, Cell
from nlu.runs.state import Window
from nlu.training.memory import peak_mb
from nlu.training.parts import Training
from nlu.training.passes import StepResult

log = logging.getLogger(__name__)

UNTIMED_STEPS = 3
"""the first steps of each process, which do not count for throughput"""


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
        """Note that a step is done: add it to the window and, unless it is one of the first of this process, to the
        throughput."""
        run, now_s = self.run, time.perf_counter()
        elapsed_s, self._began_s = now_s - self._began_s, now_s
        self._steps += 1
        run.state.step = result.number
        window, throughput = run.state.window, run.state.throughput
        examples, tokens = size_of_step(run, result.number - 1)
        window.steps += 1
        # The loss of a skipped step is not finite and would spoil the means.
        if result.skipped:
            window.skipped += 1
            run.state.skipped += 1
        else:
            for name, value in result.sums.items():
                window.sums[name] = window.sums.get(name, 0.0) + value
                window.counts[name] = window.counts.get(name, 0) + result.counts[name]
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
        run.progress.advance(result.number, result.loss, window.examples / window.steps_s)


def size_of_step(run: Training, step: int) -> tuple[int, int]:
    """Return the examples and the tokens of the step with this number, counted from 0."""
    lengths_N = run.train_set(step).lengths_N
    # Each rank knows the examples of all ranks from the order.
    lengths = [lengths_N[examples_B] for examples_B in run.global_batches(step)]
    return sum(map(len, lengths)), int(sum(part.sum() for part in lengths))


def log_window(run: Training, lr: float, loss_scale: float | None) -> None:
    """Add a row to train.tsv: means over the steps since the last row."""
    state, window = run.state, run.state.window
    # A collective, so before the branch that only rank 0 takes.
    run.journal.gather(window)
    count_costs(run)
    inside = run.inspector.rows() if run.inspector is not None else []
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
            **{column: window.seconds.get(column.removesuffix("_s"), 0.0) for column in TIME_COLUMNS},
            PEAK_COLUMN: window.peak_mb,
        }
        if window.skipped:
            log.info(
                "step %d: %d of the last %d steps were skipped, since a gradient overflowed; the loss scale was %g",
                state.step,
                window.skipped,
                window.steps,
                loss_scale,
            )
        run.tables["train"].append(**row)
        run.journal.window(row, window)
        run.journal.inside(row, inside)
    state.window = Window()


def count_costs(run: Training) -> None:
    """Add the time and the memory since the last call to the window."""
    stepper = run.stepper
    run.state.window.add_costs(stepper.phases.take(), peak_mb(stepper.device))
