"""Durations and the clock of a run, counted in epochs, optimizer steps or examples seen.

Everything is a pure function of the step, so a continued run gets the same answers.
"""

import re
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, floor
from typing import Literal, TypeGuard

from nlu.config.errors import UserError

# At most 18 digits, since a longer number is a mistake.
_WRITTEN = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,18})?)(ep|st|ex)")
_UNITS: dict[str, Literal["ep", "st", "ex"]] = {"ep": "ep", "st": "st", "ex": "ex"}
_EXAMPLES = "3ep (epochs), 500st (steps) or 32000ex (examples seen)"
_RULES = {
    "duration": f"a duration above 0 such as {_EXAMPLES}; st and ex take whole numbers",
    "interval": f"0 or a duration such as {_EXAMPLES}; st and ex take whole numbers",
    "warmup": f"a ratio of the run from 0 to 1 or a duration such as {_EXAMPLES}; st and ex take whole numbers",
}


@dataclass(frozen=True)
class Duration:
    """A length of training above 0; `ep` = epochs (may be a fraction), `st` = optimizer steps, `ex` = examples."""

    amount: int | float
    unit: Literal["ep", "st", "ex"]

    def __str__(self) -> str:
        return f"{self.amount}{self.unit}"

    @property
    def exact(self) -> Fraction:
        """The exact amount as written: 0.1 is one tenth, not the nearest binary number."""
        return Fraction(str(self.amount))


def parse_duration(text: object) -> Duration:
    """Return the duration written as `3ep`, `0.5ep`, `500st` or `32000ex`. Raises UserError for anything else."""
    duration = _read(text)
    if duration is None:
        raise UserError(f"{text!r} must be {duration_rule('duration', text)}")
    return duration


def parse_interval(value: object) -> Duration | None:
    """Return None for 0 and a duration otherwise. Raises UserError for anything else."""
    if not is_interval(value):
        raise UserError(f"{value!r} must be {duration_rule('interval', value)}")
    return _read(value)


def parse_warmup(value: object) -> float | Duration:
    """Return a ratio of the whole run in [0, 1], or a duration. Raises UserError for anything else."""
    if _is_number(value) and 0 <= value <= 1:
        return float(value)
    duration = _read(value)
    if duration is None:
        raise UserError(f"{value!r} must be {duration_rule('warmup', value)}")
    return duration


def duration_rule(kind: str, value: object) -> str:
    """Return what a `duration`, `interval` or `warmup` must be, with a remedy if `value` lacks its unit."""
    text = str(value)
    is_plain = re.fullmatch(r"[0-9]{1,18}", text) is not None and int(text) > 0
    return f"{_RULES[kind].partition(';')[0]}; write {_with_units(text)}" if is_plain else _RULES[kind]


def _with_units(text: str) -> str:
    return f"{text}st (steps), {text}ep (epochs) or {text}ex (examples)"


def is_duration(value: object) -> bool:
    """Return whether a value is a duration above 0."""
    return _read(value) is not None


def is_interval(value: object) -> bool:
    """Return whether a value is 0 or a duration."""
    return value == "0" or (_is_number(value) and value == 0) or is_duration(value)


def is_warmup(value: object) -> bool:
    """Return whether a value is a ratio from 0 to 1 or a duration."""
    return (_is_number(value) and 0 <= value <= 1) or is_duration(value)


def _is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _read(value: object) -> Duration | None:
    match = _WRITTEN.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        return None
    written, unit = match.groups()
    amount = Fraction(written)
    is_whole = amount.denominator == 1
    if amount == 0 or (unit != "ep" and not is_whole):
        return None
    return Duration(int(amount) if is_whole else float(amount), _UNITS[unit])


@dataclass(frozen=True)
class Clock:
    """Converts steps to examples and epochs.

    Each epoch sees each of `num_examples` once; its last step may see fewer than `examples_per_step`.
    """

    num_examples: int
    examples_per_step: int

    def __post_init__(self) -> None:
        assert self.num_examples >= 1 and self.examples_per_step >= 1

    @property
    def steps_per_epoch(self) -> int:
        """Optimizer steps of one epoch."""
        # A fraction, because a quotient of floats is not exact for large numbers.
        return ceil(Fraction(self.num_examples, self.examples_per_step))

    def examples(self, step: int) -> int:
        """Return the examples seen after `step` steps."""
        epochs, rest = divmod(step, self.steps_per_epoch)
        return epochs * self.num_examples + rest * self.examples_per_step

    def epoch(self, step: int) -> float:
        """Return the epochs completed after `step` steps, with the fraction of the current one."""
        return self.examples(step) / self.num_examples

    def steps(self, duration: Duration) -> int:
        """Return the smallest step, at least 1, at which `duration` is reached."""
        if duration.unit == "st":
            return int(duration.amount)
        # Whole epochs are counted separately, because the last step of each may be short.
        epochs, rest = divmod(self._in_examples(duration), self.num_examples)
        return max(1, int(epochs) * self.steps_per_epoch + ceil(rest / self.examples_per_step))

    def least_examples(self, duration: Duration, times: int = 1) -> int:
        """Return a number of examples, at least 1, that are seen once `times` durations are reached.

        Once k times as many durations are reached, k times as many examples are seen. A step counts as its share of an
        epoch, since the last one may be short.
        """
        if duration.unit == "st":
            return max(1, times * int(duration.amount) * self.num_examples // self.steps_per_epoch)
        return max(1, floor(times * self._in_examples(duration)))

    def is_time(self, interval: Duration | None, step: int, times: int = 1) -> bool:
        """Return whether the step from `step - 1` to `step` reaches a multiple of `times` intervals; never for None."""
        if interval is None or step < 1:
            return False
        if interval.unit == "st":
            return step % (times * int(interval.amount)) == 0
        # The step counts if it passes a multiple, since a multiple may lie within the step.
        length = times * self._in_examples(interval)
        return floor(self.examples(step) / length) > floor(self.examples(step - 1) / length)

    def _in_examples(self, duration: Duration) -> Fraction:
        return duration.exact * (self.num_examples if duration.unit == "ep" else 1)
