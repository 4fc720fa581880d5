"""Learning-rate schedules: the factor of the base rate as a function of (step, total), without state."""

import math
from typing import Protocol

from nlu.config.durations import Clock, Duration, parse_duration, parse_warmup
from nlu.config.keys import takes
from nlu.optim import keys as schemas


class Schedule(Protocol):
    """A learning rate that depends only on the step."""

    def factor(self, step: int, total: int, clock: Clock) -> float:
        """Return the factor of the base rate for the update at the end of step `step`, counted from 1."""


def warmup_steps(warmup: str | float, total: int, clock: Clock) -> int:
    """Return the number of steps of a warm-up, which is a ratio or a duration; 0 = none."""
    parsed = parse_warmup(warmup)
    return clock.steps(parsed) if isinstance(parsed, Duration) else round(parsed * total)


@takes(schemas.OneCycle)
class OneCycle:
    """From lr / div_factor up to lr, then down to lr / div_factor at the last step."""

    def __init__(self, keys: schemas.OneCycle):
        self.warmup, self.anneal, self.power, self.div_factor = keys.warmup, keys.anneal, keys.power, keys.div_factor

    def factor(self, step: int, total: int, clock: Clock) -> float:
        # The peak is at the last step of the warm-up, without one at the first step of the run.
        low, peak = 1 / self.div_factor, max(1, warmup_steps(self.warmup, total, clock))
        if step < peak:
            return self._between(low, 1.0, step / peak)
        # `max` for a warm-up as long as the run; `min` for steps after the planned end.
        return self._between(1.0, low, min(1.0, (step - peak) / max(1, total - peak)))

    def _between(self, start: float, end: float, progress: float) -> float:
        if self.anneal == "cosine":
            return end + (start - end) / 2 * (1 + math.cos(math.pi * progress))
        power = self.power if self.anneal == "polynomial" else 1.0
        return end + (start - end) * (1 - progress) ** power


@takes(schemas.Constant)
class Constant:
    """The base rate, after a linear warm-up from lr / div_factor."""

    def __init__(self, keys: schemas.Constant):
        self.warmup, self.div_factor = keys.warmup, keys.div_factor

    def factor(self, step: int, total: int, clock: Clock) -> float:
        warm = warmup_steps(self.warmup, total, clock)
        return 1.0 if step >= warm else 1 / self.div_factor + (1 - 1 / self.div_factor) * step / warm


@takes(schemas.Exponential)
class Exponential(Constant):
    """After the warm-up, the rate is multiplied by `decay_rate` every `decay_every`."""

    def __init__(self, keys: schemas.Exponential):
        super().__init__(keys)
        self.decay_rate, self.decay_every = keys.decay_rate, parse_duration(keys.decay_every)

    def factor(self, step: int, total: int, clock: Clock) -> float:
        warm = warmup_steps(self.warmup, total, clock)
        if step < warm:
            return super().factor(step, total, clock)
        # In whole steps, as a staircase: the rate changes only at multiples of `decay_every` after the warm-up.
        return self.decay_rate ** ((step - warm) // clock.steps(self.decay_every))
