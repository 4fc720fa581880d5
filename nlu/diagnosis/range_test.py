"""The learning-rate range test: a rate that rises at every step, the loss that it leads to, and which rate to take.

Smith 2017, "Cyclical Learning Rates for Training Neural Networks" (https://arxiv.org/abs/1506.01186), section 3.3. The
rate rises geometrically, since the rates that work span several powers of ten. The suggestion is fastai's `minimum`
(https://docs.fast.ai/callback.schedule.html): a tenth of the rate with the lowest loss.

Axes: N steps.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from rich.console import RenderableType

from nlu.config.command_keys import Scan
from nlu.config.errors import UserError
from nlu.config.sentences import counted
from nlu.diagnosis.few_steps import take_step
from nlu.display.console_tables import numbers, table_of
from nlu.optim.optimizer import set_learning_rate
from nlu.runs.records import Cell
from nlu.training.nonfinite import NonFinite
from nlu.training.parts import Training

DIVERGED = 4.0
"""times the lowest smoothed loss at which the test ends, as in fastai and in Lightning"""
BELOW_LOWEST = 10.0
"""how many times lower than the rate with the lowest loss the suggested one is, as in fastai"""
STANDARD_ERRORS = 3.0
"""by how many of them the smoothed loss must fall: a test of 100 steps without any fall then suggests none in 99 %"""
PART = 10
"""one part in PART of the steps makes the loss at the start"""
SHOWN = 12
"""rows of the table on the console"""


@dataclass
class RangeTest:
    """The losses of a range test, and what follows from them."""

    lr_N: np.ndarray
    """the rate of the update of each step, as optimizer.lr"""
    loss_N: np.ndarray
    """the loss of each step, before its update; NaN for a step that was skipped or not finite"""
    smoothed_N: np.ndarray
    start: float
    """the mean loss of the first tenth of the steps"""
    lowest: int
    """the step with the lowest smoothed loss"""
    standard_error: float
    """of the fall, by the differences of neighboring steps"""
    has_diverged: bool
    """whether the last step ended the test"""

    @property
    def recommended(self) -> float | None:
        """A tenth of the rate with the lowest smoothed loss; None if the loss does not fall by more than chance."""
        if self.start - self.smoothed_N[self.lowest] <= STANDARD_ERRORS * self.standard_error:
            return None
        return float(f"{self.lr_N[self.lowest] / BELOW_LOWEST:.1e}")

    def to_json(self) -> dict[str, object]:
        """Return the facts, without the curve."""
        return {
            "of": "lr",
            "recommended": self.recommended,
            "lowest_lr": float(self.lr_N[self.lowest]),
            "diverged_lr": float(self.lr_N[-1]) if self.has_diverged else None,
            "loss_at_start": self.start,
            "lowest_loss": float(self.smoothed_N[self.lowest]),
        }

    def rows(self) -> Iterator[dict[str, Cell]]:
        """Yield the curve as a table."""
        for at, values in enumerate(zip(self.lr_N, self.loss_N, self.smoothed_N, strict=True)):
            lr, loss, smoothed = (float(value) if math.isfinite(value) else None for value in values)
            yield {"step": at + 1, "lr": lr, "loss": loss, "smoothed": smoothed}

    def said(self) -> Iterator[RenderableType]:
        """Yield what to print: some rows, the loss at the start and at its lowest, and the suggestion."""
        last = len(self.lr_N) - 1
        shown = np.unique(np.linspace(0, last, min(SHOWN, last + 1)).round().astype(int))
        rows = [[f"{self.lr_N[at]:.2e}", f"{self.loss_N[at]:.4f}", f"{self.smoothed_N[at]:.4f}"] for at in shown]
        yield f"range test: {counted(last + 1, 'step')}, each at a higher rate"
        yield ""
        yield table_of(numbers("optimizer.lr", "loss", "smoothed"), rows)
        yield ""
        lowest = f"{self.smoothed_N[self.lowest]:.4g} at {self.lr_N[self.lowest]:.1e}"
        ends = f"; it diverges at {self.lr_N[-1]:.1e}" if self.has_diverged else ""
        yield f"the smoothed loss is {self.start:.4g} at the start, and lowest, {lowest}{ends}"
        if self.recommended is None:
            yield (
                f"no rate can be recommended: the fall may be chance, up to {STANDARD_ERRORS:g} standard errors of "
                f"{self.standard_error:.2g}"
            )
            yield "set max_lr, steps or trainer.batch_size higher; debug=overfit shows whether the model can learn"
            return
        yield f"recommended: optimizer.lr={self.recommended:.1e}"
        yield f"This is 1/{BELOW_LOWEST:g} of the rate with the lowest loss, as the peak of the schedule."
        if self.lowest == last and not self.has_diverged:
            yield f"note: the loss still falls at the highest rate; set max_lr above {self.lr_N[last]:.1e}"


def rates(low: float, high: float, steps: int) -> np.ndarray:
    """Return `steps` rates from `low` to `high`, each the same multiple of the one before; (N,)."""
    return low * (high / low) ** (np.arange(steps) / (steps - 1))


def smoothed(loss_N: np.ndarray, decay: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean around each step, where a step n steps away has the weight decay ** n, and the factor by which
    its standard deviation is smaller than that of a loss; (N,) and (N,).

    It is the moving average without bias of both directions. That of one direction lags behind by decay / (1 - decay)
    steps, which is a factor of 3 in the rate with 100 steps from 1e-7 to 1e-2 and a decay of 0.9.
    """
    steps_N = np.arange(len(loss_N))
    weight_NN = decay ** np.abs(steps_N[:, None] - steps_N[None, :])
    total_N = weight_NN.sum(1)
    return weight_NN @ loss_N / total_N, np.sqrt((weight_NN**2).sum(1)) / total_N


def analyzed(lr_N: np.ndarray, loss_N: np.ndarray, decay: float, planned: int, has_diverged: bool) -> RangeTest:
    """Return what follows from the losses of the rates that were tried, `planned` of which the test would have had.

    `has_diverged` tells whether the last of them ended the test. Raises UserError if fewer than three losses are known.
    """
    steps_K = np.flatnonzero(np.isfinite(loss_N))
    if len(steps_K) < 3:
        raise UserError(
            f"only {counted(len(steps_K), 'step')} of the range test had a finite loss, up to a rate of "
            f"{lr_N[-1]:.1e}; set min_lr lower"
        )
    known_K = loss_N[steps_K]
    first = min(max(1, planned // PART), len(known_K))
    start = float(known_K[:first].mean())
    # Of neighboring steps, whose rates are nearly the same; by the median, since losses that explode would dominate.
    # 1.4826 is the standard deviation of normal values by the median of their distance from 0.
    deviation = 1.4826 * float(np.median(np.abs(np.diff(known_K)))) / math.sqrt(2)
    # Losses that explode must not pull the mean of the steps before them up.
    smoothed_K, factor_K = smoothed(np.minimum(known_K, start + STANDARD_ERRORS * deviation), decay)
    lowest = int(smoothed_K.argmin())
    smoothed_N = np.full(len(loss_N), np.nan)
    smoothed_N[steps_K] = smoothed_K
    standard_error = deviation * math.sqrt(1 / first + float(factor_K[lowest]) ** 2)
    return RangeTest(lr_N, loss_N, smoothed_N, start, int(steps_K[lowest]), standard_error, has_diverged)


def run_range_test(run: Training, config: Scan, advance: Callable[[], None]) -> RangeTest:
    """Train from the initial weights at rising rates until the loss diverges, and analyze the losses."""
    optimizer, peak = run.stepper.optimizer, float(config.optimizer["lr"])
    # Computed before the first step gives each group its base rate.
    with_own = [group for group in optimizer.param_groups if group.get("has_own_lr")]
    if len(with_own) == len(optimizer.param_groups):
        raise UserError(
            "of=lr changes optimizer.lr, but the rates of all parameters are set elsewhere (optimizer.lr_by_name); "
            "leave that out, or try its values in a search"
        )
    lr_N = rates(config.min_lr, config.max_lr, config.steps)
    losses: list[float] = []
    known: list[float] = []
    best, has_diverged = math.inf, False
    for number, lr in enumerate(lr_N):
        set_learning_rate(optimizer, lr / peak)
        for group in with_own:
            # As in a run with another optimizer.lr.
            group["lr"] = group["base_lr"]
        try:
            result = run.stepper.read(take_step(run, number))
        except NonFinite:
            losses.append(math.nan)
            has_diverged = True
            break
        losses.append(math.nan if result.skipped else result.loss)
        advance()
        if result.skipped:
            continue
        known.append(result.loss)
        average = float(np.average(known, weights=config.smoothing ** np.arange(len(known))[::-1]))
        best = min(best, average)
        if has_diverged := average > DIVERGED * best:
            break
    return analyzed(lr_N[: len(losses)], np.array(losses), config.smoothing, config.steps, has_diverged)
