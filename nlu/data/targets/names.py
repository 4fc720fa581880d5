"""The names that targets are learned by, in the order of their numbers: open while the training set is read.

What the training set cannot mean is refused when it has been read: a single label, numbers that were taken for labels,
texts that were.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Any

from nlu.config.errors import DataError
from nlu.data.encoding import unusable

WHOLE = re.compile(r"[+-]?\d+")
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
MOST_FRACTIONS = 20
"""different labels with decimal points that may still be classes, such as 0.5, 1.0, ... 5.0"""
FEWEST_ROWS = 20
"""rows below which nothing is said of how many labels are too many"""
LENGTH_OF_TEXT = 10
"""characters of a label, on average, from which labels that hardly ever come twice look like texts"""
ABSENT = "is not a label"


class Names:
    """Labels and their numbers."""

    def __init__(self, given: Sequence[str] | None, max_rows: int | None, *, is_trained: bool = False):
        """`given` null: those of the training set, of which `data.max_rows` may have kept only the first rows.

        `is_trained`: weights were trained for them, so that there can be no others.
        """
        self.is_open = given is None
        self._is_trained = is_trained
        self._cut_to = max_rows if given is None else None
        self._numbers = numbered(given or [])
        self._rows = [0] * len(self._numbers)
        self._check_at = 10_000

    @property
    def names(self) -> list[str]:
        return list(self._numbers)

    def number(self, value: Any) -> tuple[int | None, str | None]:
        """Return (number, None), or (None, the rule that the value breaks). Unknown labels are added while open."""
        if no_label(value):
            return None, ABSENT
        name = str(value).strip()
        number = self._numbers.get(name)
        if number is None:
            if not name:
                return None, "is an empty label"
            if rule := unusable(name):
                return None, rule
            if not self.is_open:
                return None, f"is not in the label map {self.outside()}"
            number = self._numbers[name] = len(self._numbers)
            self._rows.append(0)
        self._rows[number] += 1
        if len(self._rows) == self._check_at:
            self._check_at *= 10
            self._require_labels()
        return number, None

    def close(self, fewest: int) -> list[int]:
        """Fix the order (numbers by value, else by name) once the training set is read.

        Returns for each number handed out so far the final one. Raises DataError where there are fewer than `fewest`
        labels, or what was read cannot be labels.
        """
        before = list(self._numbers)
        names = before
        self._require_labels()
        if self.is_open:
            numeric = all(WHOLE.fullmatch(name) for name in before)
            names = sorted(before, key=lambda name: (int(name), name) if numeric else (0, name))
        # Where there are fewer rows, data.max_rows has cut no file.
        was_cut = self._cut_to is not None and sum(self._rows) >= self._cut_to
        require_names(names, fewest, self._cut_to if was_cut else None)
        final = numbered(names)
        remap = [final[name] for name in before]
        self.is_open, self._numbers = False, final
        return remap

    def outside(self) -> str:
        """The label map, and what to do about a label that it lacks."""
        return outside(self._numbers, self._cut_to, is_trained=self._is_trained)

    def _require_labels(self) -> None:
        """Raise DataError where the labels found look like numbers to be learned, or like texts."""
        if not self.is_open:
            return
        found, rows = list(self._numbers), sum(self._rows)
        fractions = [name for name in found if NUMBER.fullmatch(name) and not WHOLE.fullmatch(name)]
        if len(fractions) > MOST_FRACTIONS:
            raise DataError(
                f"the training set has {len(found):,} different labels in {rows:,} rows, of which {len(fractions):,} "
                f"are numbers such as {', '.join(fractions[:3])}; learn numbers with task=regress, or set data.labels "
                "to the list of them where each is a class of its own"
            )
        is_unique = rows >= FEWEST_ROWS and len(found) > rows / 2
        if is_unique and sum(map(len, found)) >= LENGTH_OF_TEXT * len(found):
            raise DataError(
                f"the training set has {len(found):,} different labels in {rows:,} rows, such as "
                f"{_short(found[0])!r}, so the field label seems to hold texts; swap the columns in data.fields, or "
                "set data.labels where these are classes"
            )


def no_label(value: Any) -> bool:
    """Whether a value, whatever it says, cannot be the name of a label."""
    return value is None or isinstance(value, (dict, list)) or value != value


def require_names(names: Sequence[str], fewest: int, cut_to: int | None) -> None:
    """Raise DataError where the training set has fewer labels than a task can be learned from.

    `cut_to`: the rows of each file that data.max_rows kept, null where the labels do not depend on it.
    """
    if len(names) >= fewest:
        return
    remedy = "check data.fields and data.train"
    if cut_to is not None:
        remedy = (
            f"data.max_rows={cut_to} keeps only the first rows of each file, which seems to be sorted by label: set "
            "data.max_rows higher, or shuffle the rows of the file"
        )
    raise DataError(f"the training set has the labels {list(names)}, but at least {fewest} are needed; {remedy}")


def numbered(names: Iterable[str]) -> dict[str, int]:
    """Return the number of each name. Raises DataError for one that is given twice."""
    listed = list(names)
    numbers = {name: number for number, name in enumerate(listed)}
    if len(numbers) < len(listed):
        twice = [name for place, name in enumerate(listed) if numbers[name] != place]
        raise DataError(f"data.labels names {', '.join(dict.fromkeys(twice))} more than once; name each label once")
    return numbers


def outside(names: Iterable[str], cut_to: int | None, *, is_trained: bool = False) -> str:
    """Return a label map as far as it is shown, and what to do about a label that it lacks."""
    if is_trained:
        return f"{shown(names)} that the run was trained for"
    if cut_to is None:
        return f"{shown(names)}; if it is one, set data.labels to all labels"
    return (
        f"{shown(names)}, the labels of those training rows that data.max_rows={cut_to} keeps; set data.max_rows "
        "higher, or data.labels to all labels"
    )


def shown(names: Iterable[str]) -> str:
    listed = list(names)
    return str(listed if len(listed) <= 12 else [*listed[:12], "..."])


def _short(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:37]}..."
