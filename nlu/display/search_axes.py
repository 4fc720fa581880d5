"""The axes of searched parameters: where a value lies between the ends of its range, and the marks."""

import math
import re
from collections.abc import Sequence
from typing import Any

from matplotlib.ticker import MaxNLocator

from nlu.config.words import shortened
from nlu.display.trials import SearchedKey

MAX_CHOICE_LETTERS = 18
MARK_GAP = 0.05
"""marks closer than this to an end of an axis would overlap its text"""


def place_of(param: SearchedKey, params: dict[str, Any]) -> float:
    """Return the place of a trial's value on the axis of a parameter, 0 to 1; -0.1 without a value."""
    if param.name not in params:
        return -0.1
    value = params[param.name]
    if param.scale == "choice":
        return (param.choices.index(param.text(value)) + 0.5) / len(param.choices)
    low, high, value = _scaled(param, param.low), _scaled(param, param.high), _scaled(param, float(value))
    return 0.5 if high == low else (value - low) / (high - low)


def _scaled(param: SearchedKey, value: float) -> float:
    return math.log10(value) if param.scale == "log" else value


def ticks_of(param: SearchedKey) -> list[tuple[float, str]]:
    """Return (place, text) of the marks on the axis of a parameter."""
    if param.scale == "choice":
        return [
            ((place + 0.5) / len(param.choices), shortened(text, MAX_CHOICE_LETTERS))
            for place, text in enumerate(param.choices)
        ]
    if param.low == param.high:
        return [(0.5, f"{param.low:g}")]
    if param.scale == "log":
        first, last = math.floor(math.log10(param.low)), math.ceil(math.log10(param.high))
        digits = (1,) if last - first > 3 else (1, 2, 5)
        marks = [digit * 10.0**power for power in range(first, last + 1) for digit in digits]
    else:
        marks = list(MaxNLocator(6).tick_values(param.low, param.high))
    ends = [(0.0, param.low), (1.0, param.high)]
    inside = [(place_of(param, {param.name: mark}), mark) for mark in marks if param.low < mark < param.high]
    free = [(place, mark) for place, mark in inside if MARK_GAP < place < 1 - MARK_GAP]
    marks_shown = [ends[0], *free, ends[1]]
    return list(zip((place for place, _ in marks_shown), _alike([mark for _, mark in marks_shown]), strict=True))


def _alike(values: Sequence[float]) -> list[str]:
    """Return the numbers of one axis in one form, with powers of ten if any of them needs it."""
    texts = [f"{value:.4g}" for value in values]
    if not any(value and abs(value) < 1e-3 or abs(value) >= 1e6 for value in values):
        return texts
    return [
        re.sub(r"\.?0*e(.*)", lambda found: f"e{int(found[1])}", f"{value:.3e}") if value else "0" for value in values
    ]
