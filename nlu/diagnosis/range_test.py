"""The learning-rate range test: a rate that rises at every step, the loss that it leads to, and which rate to take.

Smith 2017, "Cyclical Learning Rates for Training Neural Networks" (https://arxiv.org/abs/1506.01186), section 3.3. The
rate rises geometrically, since the rates that work span several powers of ten.

Axes: N steps.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nlu.config.errors import UserError
from nlu.config.scan import Scan
from nlu.config.words import counted
from nlu.diagnosis.steps import take_step
from nlu.optim.update import set_learning_rate
from nlu.training.meter import size_of_step
from nlu.training.nonfinite import NonFinite
from nlu.training.parts import Training

DIVERGED = 2.0
"""times the loss at the start at which the test ends"""
PART = 10
"""one part in PART of the rates makes the loss at the start, and is the width of the window of slopes"""
BELOW_LOWEST = 10.0
"""how many times lower than the rate with the lowest loss the recommended one is at least"""
STANDARD_ERRORS = 3.0
"""by how many of them the smoothed loss must fall, or it may be chance"""
SOME_FALL = 0.1
"""share of the whole fall that comes before the rate at which the loss can fall fastest"""
MEDIAN_TO_DEVIATION = 1.4826
"""the standard deviation of normal values by the median of their distance from 0"""


@dataclass
class RangeTest:
    """The losses of a range test, and what follows from them."""

    lr_N: np.ndarray
    """the rate of the update of each step, as optimizer.lr"""
    loss_N: np.ndarray
    """the loss of each step, before its update; NaN for a step that was skipped or not finite"""
    smoothed_N: np.ndarray
    start: float
    """the mean loss of the first tenth of the rates"""
    fastest: int | None
    """the step at which the smoothed loss falls fastest; None if it never falls"""
    lowest: int
    """the step with the lowest smoothed loss"""
    standard_error: float
    """of the fall, by the differences of neighboring steps"""
    diverged_lr: float | None
    """the rate at which the loss was not finite, or above DIVERGED times that at the start; None: it was at no rate"""
    notes: list[str] = field(default_factory=list)
    """what else a reader should know, in sentences"""

    @property
    def fall(self) -> float:
        """By how much the smoothed loss falls below that at the start."""
        return self.start - float(self.smoothed_N[self.lowest])

    @property
    def recommended(self) -> float | None:
        """The smaller of the rate at which the loss falls fastest and a tenth of that with the lowest loss, rounded
        down to two digits; None if the loss does not fall by more than chance."""
        if self.fastest is None or self.fall <= STANDARD_ERRORS * self.standard_error:
            return None
        return rounded_down(min(float(self.lr_N[self.fastest]), float(self.lr_N[self.lowest]) / BELOW_LOWEST))

    def to_json(self) -> dict[str, Any]:
        """Return the facts, without the curve."""
        return {
            "of": "lr",
            "recommended": self.recommended,
            "fastest_lr": None if self.fastest is None else float(self.lr_N[self.fastest]),
            "lowest_lr": float(self.lr_N[self.lowest]),
            "diverged_lr": self.diverged_lr,
            "loss_at_start": self.start,
            "lowest_loss": float(self.smoothed_N[self.lowest]),
            "standard_error": self.standard_error,
            "steps": len(self.lr_N),
            "notes": self.notes,
        }


def rates(low: float, high: float, steps: int) -> np.ndarray:
    """Return `steps` rates from `low` to `high`, each the same multiple of the one before; (N,)."""
    return low * (high / low) ** (np.arange(steps) / (steps - 1))


def rounded_down(value: float, digits: int = 2) -> float:
    """Return the largest number with so many significant digits that is not above a positive value."""
    exponent = math.floor(math.log10(value)) - digits + 1
    # The power in decimal notation, so that 3.2e-05 is not 3.2000000000000005e-05.
    return float(f"{math.floor(value / 10.0**exponent * (1 + 1e-12))}e{exponent}")


class Average:
    """An exponential moving average without the bias towards 0 of its first values (Kingma & Ba 2015, section 3)."""

    def __init__(self, decay: float):
        self._decay, self._sum, self._weight = decay, 0.0, 0.0

    def add(self, value: float) -> float:
        """Add a value and return the average."""
        self._sum = self._decay * self._sum + (1 - self._decay) * value
        self._weight = self._decay * self._weight + (1 - self._decay)
        return self._sum / self._weight


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


def slopes(values_N: np.ndarray, window: int) -> np.ndarray:
    """Return the slope per step of the least-squares line through the `window` (odd) values around each one; NaN near
    both ends; (N,)."""
    half = window // 2
    slope_N = np.full(len(values_N), np.nan)
    if len(values_N) >= window:
        offsets = np.arange(-half, half + 1)
        windows = np.lib.stride_tricks.sliding_window_view(values_N, window)
        slope_N[half : len(values_N) - half] = windows @ offsets / (offsets**2).sum()
    return slope_N


def analyzed(lr_N: np.ndarray, loss_N: np.ndarray, decay: float, planned: int, diverged: bool) -> RangeTest:
    """Return what follows from the losses of the rates that were tried, `planned` of which the test would have had.

    `diverged` tells whether the last of them ended the test. Raises UserError if fewer than three losses are known.
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
    # Of neighboring steps, whose rates are nearly the same; the median, since losses that explode would dominate.
    deviation = MEDIAN_TO_DEVIATION * float(np.median(np.abs(np.diff(known_K)))) / math.sqrt(2)
    # Losses that explode must not pull the mean of the steps before them up.
    smoothed_K, factor_K = smoothed(np.minimum(known_K, start + STANDARD_ERRORS * deviation), decay)
    lowest = int(smoothed_K.argmin())
    has_fallen_K = smoothed_K[: lowest + 1] < start - SOME_FALL * (start - smoothed_K[lowest])
    # From the last step on at which the loss is still about that at the start: slopes before are chance.
    begin = 0 if has_fallen_K.all() else int(np.flatnonzero(~has_fallen_K)[-1])
    slope_K = slopes(smoothed_K, max(3, planned // PART // 2 * 2 + 1))[begin : lowest + 1]
    falls = bool(np.isfinite(slope_K).any()) and float(np.nanmin(slope_K)) < 0
    smoothed_N = np.full(len(loss_N), np.nan)
    smoothed_N[steps_K] = smoothed_K
    return RangeTest(
        lr_N,
        loss_N,
        smoothed_N,
        start,
        int(steps_K[begin + np.nanargmin(slope_K)]) if falls else None,
        int(steps_K[lowest]),
        deviation * math.sqrt(1 / first + float(factor_K[lowest]) ** 2),
        float(lr_N[-1]) if diverged else None,
    )


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
    lr_N = rates(config.min_lr, config.max_lr, config.num_steps)
    losses: list[float] = []
    examples, average, has_diverged = 0, Average(config.smoothing), False
    run.stepper.model.train()
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
        examples += size_of_step(run, number)[0]
        losses.append(math.nan if result.skipped else result.loss)
        advance()
        if result.skipped:
            continue
        known = [loss for loss in losses if math.isfinite(loss)]
        first = max(1, config.num_steps // PART)
        has_diverged = average.add(result.loss) > DIVERGED * float(np.mean(known[:first])) and len(known) > first
        if has_diverged:
            break
    found = analyzed(lr_N[: len(losses)], np.array(losses), config.smoothing, config.num_steps, has_diverged)
    found.notes = _notes(run, config, found, examples, with_own)
    return found


def _notes(run: Training, config: Scan, found: RangeTest, examples: int, with_own: list[dict[str, Any]]) -> list[str]:
    notes = []
    rows = sum(map(len, run.store.of_role("train").values()))
    if examples > rows:
        notes.append(
            f"the {counted(len(found.loss_N), 'step')} took the {rows:,} training rows {examples / rows:.1f} times, so "
            "the loss also falls because rows repeat; set steps lower"
        )
    if with_own:
        count = sum(parameter.numel() for group in with_own for parameter in group["params"])
        notes.append(
            f"{count:,} parameters have rates that do not depend on optimizer.lr; those stayed the same, as in a run"
        )
    if found.recommended is None:
        return notes
    if found.lowest == len(found.lr_N) - 1 and found.diverged_lr is None:
        notes.append(f"the loss still falls at the highest rate; set max_lr above {config.max_lr:.1e}")
    if found.recommended < config.min_lr:
        notes.append(f"the recommended rate was not tried; set min_lr to {found.recommended / 100:.0e}")
    return notes
