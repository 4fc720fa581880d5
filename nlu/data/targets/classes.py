"""Targets of a whole example: one class, several labels, none; and the names of labels in the order of their numbers.

Axes: N rows of a set, B rows of a batch, C names.
"""

import math
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Self

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from nlu.config.errors import DataError
from nlu.config.keys import takes
from nlu.config.sentences import counted, shortened
from nlu.data import keys as schemas
from nlu.data.arrays import starts_of
from nlu.data.dataset import Files
from nlu.data.layouts import unusable
from nlu.data.lists_in_cells import FLAGS, labels_of
from nlu.data.seeds import bytes_hash
from nlu.data.store import StoredSet, chunks_of
from nlu.data.targets.base import Gathered, Problem, Target, Values, named_counts

WHOLE = re.compile(r"[+-]?\d+")
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
MOST_FRACTIONS = 20
"""distinct labels with decimal points that may still be classes, such as 0.5, 1.0, ... 5.0"""
FEWEST_ROWS = 20
"""with fewer rows, any number of labels is accepted"""
LENGTH_OF_TEXT = 10
"""mean number of characters from which labels that are mostly distinct look like texts"""
ABSENT = "is not a label"


class Names:
    """Labels and their numbers. The names are open while the training set is read.

    Training sets are refused if they have a single label, or labels that look like numbers or texts.
    """

    def __init__(self, given: Sequence[str] | None, *, is_trained: bool = False):
        """`given`: the labels; None: those of the training set.

        `is_trained`: weights were trained for these labels, so that other ones are refused.
        """
        self.is_open = given is None
        self._is_trained = is_trained
        # Labels of rows are read without blanks around them.
        self._numbers = numbered(name.strip() for name in given or [])
        # A number in a row stands for the name at this place of data.labels.
        self._may_be_place = given is not None and not is_trained and not any(map(WHOLE.fullmatch, given))
        self._rows = [0] * len(self._numbers)
        self._check_at = 10_000

    @property
    def names(self) -> list[str]:
        return list(self._numbers)

    def number(self, value: object) -> tuple[int | None, str | None]:
        """Return (number, None), or (None, the rule that the value breaks). Unknown labels are added while open."""
        if no_label(value):
            return None, ABSENT
        name = str(value).strip()
        number = self._numbers.get(name)
        if number is None and self._may_be_place and name.isdecimal() and int(name) < len(self._numbers):
            number = int(name)
        if number is None:
            if not name:
                return None, "is an empty label"
            if rule := unusable(name):
                return None, rule
            if not self.is_open:
                return None, f"is not one of the labels {outside(self._numbers, self._is_trained)}"
            number = self._numbers[name] = len(self._numbers)
            self._rows.append(0)
        self._rows[number] += 1
        # A column of texts makes a label for each row. This is noticed after 10,000, not after all rows.
        if len(self._rows) == self._check_at:
            self._check_at *= 10
            self._require_labels()
        return number, None

    def number_places(self, count: int) -> list[str]:
        """Return the names of labels that a list of `count` zeros and ones gives; while open, those are its places."""
        if self.is_open and not self._numbers:
            self._numbers, self._rows = numbered(map(str, range(count))), [0] * count
        return self.names

    def close(self, fewest: int) -> list[int]:
        """Fix the order (integers by value, else by name) after the training set was read.

        Returns the final number for each number that was assigned. Raises DataError for fewer than `fewest` labels, and
        for labels that look like numbers or texts.
        """
        before = names = list(self._numbers)
        self._require_labels()
        if self.is_open:
            # By value, so that 10 comes after 9.
            numeric = all(WHOLE.fullmatch(name) for name in before)
            names = sorted(before, key=lambda name: (int(name), name) if numeric else (0, name))
        require_names(names, fewest)
        self.is_open, self._numbers = False, numbered(names)
        return [self._numbers[name] for name in before]

    def _require_labels(self) -> None:
        """Raise DataError if the labels look like numbers or like texts."""
        if not self.is_open:
            return
        found, rows = list(self._numbers), sum(self._rows)
        fractions = [name for name in found if NUMBER.fullmatch(name) and not WHOLE.fullmatch(name)]
        if len(fractions) > MOST_FRACTIONS:
            raise DataError(
                f"the training set has {len(found):,} different labels in {rows:,} rows, of which {len(fractions):,} "
                f"are numbers such as {', '.join(fractions[:3])}; learn numbers with task=regress, or set data.labels "
                "to the list of them if each is a class"
            )
        is_unique = rows >= FEWEST_ROWS and len(found) > rows / 2
        if is_unique and sum(map(len, found)) >= LENGTH_OF_TEXT * len(found):
            raise DataError(
                f"the training set has {len(found):,} different labels in {rows:,} rows, such as "
                f"{shortened(found[0])!r}, so the field label seems to hold texts; swap the columns in data.fields, or "
                "set data.labels if these are classes"
            )


def no_label(value: object) -> bool:
    """Return whether the type of a value is not that of a label: None, an object, a list, or NaN."""
    return value is None or isinstance(value, (dict, list)) or value != value


def require_names(names: Sequence[str], fewest: int) -> None:
    """Raise DataError if the training set has fewer than `fewest` labels."""
    if len(names) < fewest:
        raise DataError(
            f"the training set has the labels {list(names)}, but at least {fewest} are needed; check data.fields and "
            "data.train and, with data.max_rows, whether the rows are sorted by label"
        )


def numbered(names: Iterable[str]) -> dict[str, int]:
    """Return the number of each name. Raises DataError for a name that occurs twice."""
    listed = list(names)
    numbers = {name: number for number, name in enumerate(listed)}
    if len(numbers) < len(listed):
        twice = [name for place, name in enumerate(listed) if numbers[name] != place]
        raise DataError(f"data.labels names {', '.join(dict.fromkeys(twice))} more than once; name each label once")
    return numbers


def outside(names: Iterable[str], is_trained: bool) -> str:
    """Return labels, shortened, and what to do about one that is not among them."""
    first = list(names)
    shown = first if len(first) <= 12 else [*first[:12], "..."]
    if is_trained:
        return f"{shown} that the run was trained for"
    return f"{shown}; if it should be one, set data.labels to all labels"


@takes(schemas.Classes)
class Classes(Target):
    """One of several classes. Stored as its number; `names` has the class of each number."""

    fewest = 2

    def __init__(self, files: Files):
        # The order of several columns is that of their labels, also of one that no row has.
        columns = files.fields.get("label")
        labels = list(map(str, columns)) if isinstance(columns, list) and files.labels is None else files.labels
        self._names = Names(labels)
        self.remap = None

    def read(self, values: Values) -> tuple[object, Problem | None]:
        """Read a label, or a list of one."""
        written = values.get("label")
        if isinstance(written, list):
            if len(written) != 1:
                several = "is a list of several labels, which task=multilabel reads"
                return None, ("label", several if written else "is an empty list, which is not a label")
            written = written[0]
        number, rule = self._names.number(written)
        return number, None if rule is None else ("label", rule)

    def column(self) -> pa.DataType | None:
        return pa.int32()

    def close(self) -> None:
        self.remap = self._names.close(self.fewest)

    def meta(self) -> dict[str, object]:
        return {"names": self.names, "remap": self.remap}

    @classmethod
    def from_meta(cls, meta: dict[str, Any]) -> Self:
        target = cls.__new__(cls)
        target._names, target.remap = Names(meta["names"], is_trained=True), meta["remap"]
        return target

    @property
    def names(self) -> list[str]:
        return self._names.names

    def numbers(self, stored: StoredSet, rows_B: np.ndarray) -> np.ndarray:
        """Return the number of each row's class; (B,), int64."""
        return stored.scalars("target", rows_B).astype(np.int64)

    def collate(self, rows: Gathered) -> dict[str, Tensor]:
        """Return `labels`, (B,), int64."""
        return {"labels": torch.from_numpy(self.numbers(rows.stored, rows.rows_B))}

    def identities(self, stored: StoredSet, rows_B: np.ndarray) -> np.ndarray:
        return self.numbers(stored, rows_B)

    def strata(self, stored: StoredSet, rows_N: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return self.numbers(stored, rows_N), np.ones(len(rows_N), np.int64)

    def facts(self, stored: StoredSet, rows_N: np.ndarray) -> dict[str, Any]:
        counts_C = np.bincount(stored.scalars("target", rows_N), minlength=len(self.names))
        return {"labels": named_counts(self.names, counts_C)}


@takes(schemas.Relevance)
class Relevance(Classes):
    """How well the second text of a row answers the first: a number, relevant above 0; 1 without a label."""

    NAMES = ("irrelevant", "relevant")
    WRITTEN = {"false": 0, "no": 0, "irrelevant": 0, "true": 1, "yes": 1, "relevant": 1}

    def __init__(self, files: Files):
        self._names = Names(list(self.NAMES))
        self.remap = None

    def read(self, values: Values) -> tuple[object, Problem | None]:
        written = values.get("label")
        if written is None:
            return 1.0, None
        text = str(written).strip().lower()
        if NUMBER.fullmatch(text) and math.isfinite(number := float(text)):
            return number, None
        if text in self.WRITTEN:
            return self.WRITTEN[text], None
        return None, ("label", f"is neither a number nor one of {', '.join(self.WRITTEN)}")

    def column(self) -> pa.DataType | None:
        return pa.float32()

    def close(self) -> None:
        """The names are fixed from the start."""

    def relevances(self, stored: StoredSet, rows_B: np.ndarray) -> np.ndarray:
        """Return the label of each row as a number; (B,), float32."""
        return stored.scalars("target", rows_B).astype(np.float32)

    def numbers(self, stored: StoredSet, rows_B: np.ndarray) -> np.ndarray:
        """Return 1 for each relevant row, else 0; (B,), int64."""
        return (self.relevances(stored, rows_B) > 0).astype(np.int64)

    def collate(self, rows: Gathered) -> dict[str, Tensor]:
        """Return `labels`, (B,), float32, and `queries`, (B,), int64, equal for rows with the same first text."""
        relevances_B = self.relevances(rows.stored, rows.rows_B)
        return {
            "labels": torch.from_numpy(relevances_B),
            "queries": torch.from_numpy(rows.stored.first_N[rows.rows_B].astype(np.int64)),
        }

    def identities(self, stored: StoredSet, rows_B: np.ndarray) -> np.ndarray:
        # Adding 0 turns -0.0 into 0.0, whose bits differ.
        return (self.relevances(stored, rows_B) + np.float32(0)).view(np.int32).astype(np.int64)

    def facts(self, stored: StoredSet, rows_N: np.ndarray) -> dict[str, Any]:
        """Leave out the count of irrelevant pairs if it is 0, because a set need not have any."""
        counts = named_counts(list(self.NAMES), np.bincount(self.numbers(stored, rows_N), minlength=2))
        return {"labels": {name: count for name, count in counts.items() if count or name == "relevant"}}


@takes(schemas.Grade)
class Grade(Relevance):
    """A relevance that a model predicts as one number, in any unit."""

    @property
    def names(self) -> list[str]:
        return []

    @property
    def num_outputs(self) -> int:
        return 1

    def meta(self) -> dict[str, object]:
        return {"names": list(self.NAMES), "remap": None}


@takes(schemas.LabelSet)
class LabelSet(Classes):
    """Any number of labels, each of which applies or does not."""

    fewest = 1

    def __init__(self, files: Files):
        super().__init__(files)
        self.read_as(files)

    def read_as(self, files: Files) -> None:
        self._separator = files.label_separator

    def read(self, values: Values) -> tuple[object, Problem | None]:
        """Read a list of labels or of a 0 or 1 for each label, or a text with such a list or with
        `data.label_separator` between labels; an empty one means none."""
        written = values.get("label")
        if isinstance(written, str):
            written = labels_of(written, self._separator)
        if not isinstance(written, list):
            return None, ("label", "is neither a list of labels nor a text of them")
        written = self._of_flags(written)
        if isinstance(written, str):
            return None, ("label", written)
        # All values are checked before the first is added, so that a bad row adds no label.
        if wrong := [value for value in written if no_label(value) or not str(value).strip() or unusable(str(value))]:
            return None, ("label", f"holds {wrong[0]!r}, which is not a label")
        numbers = set()
        for value in written:
            number, rule = self._names.number(value)
            if rule is not None:
                return None, ("label", rule if len(written) == 1 else f"holds {value!r}, which {rule}")
            assert number is not None, "there is a number or a broken rule"
            numbers.add(number)
        return sorted(numbers), None

    def _of_flags(self, written: list[object]) -> list[object] | str:
        """Return the labels of a list of a 0 or 1 for each label, any other list unchanged; or the broken rule.

        A list of 0 and 1 is one of flags if a value stands in it twice, which no set has, or if it has one for each
        label and these are not called 0 and 1.
        """
        flags = [str(value).lower() for value in written]
        if not written or not {*flags} <= FLAGS:
            return written
        names, is_twice = self._names.names, len({*flags}) < len(flags)
        is_sure = is_twice or isinstance(written[0], bool)
        if not is_sure and ({"0", "1"} <= {*names} or len(names) != len(flags)):
            return written
        if self._names.is_open and len(flags) == 2 and not isinstance(written[0], bool):
            return "may be the labels 0 and 1, or a 0 or 1 for each of two labels; set data.labels to these two"
        names = self._names.number_places(len(flags))
        if len(names) != len(flags):
            return (
                f"has {len(flags)} zeros and ones, but there are {counted(len(names), 'label')}; set data.labels to all"
            )
        return [name for name, flag in zip(names, flags, strict=True) if flag in ("1", "1.0", "true")]

    def column(self) -> pa.DataType | None:
        return pa.list_(pa.int32())

    def sets(self, stored: StoredSet, rows_B: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the numbers of each row's labels in ascending order, one row after another, and their counts (B,)."""
        flat, counts_B = stored.lists("target", rows_B)
        row_of = np.repeat(np.arange(len(rows_B)), counts_B)
        # Sorted within each row, because numbers may have been reordered by `remap`.
        return flat[np.lexsort((flat, row_of))].astype(np.int64), counts_B

    def collate(self, rows: Gathered) -> dict[str, Tensor]:
        """Return `labels`, (B, C), float32: 1 where a label applies, else 0."""
        flat, counts_B = rows.stored.lists("target", rows.rows_B)
        labels_BC = np.zeros((len(counts_B), len(self.names)), np.float32)
        labels_BC[np.repeat(np.arange(len(counts_B)), counts_B), flat] = 1
        return {"labels": torch.from_numpy(labels_BC)}

    def identities(self, stored: StoredSet, rows_B: np.ndarray) -> np.ndarray:
        return hashes_of_lists(self.sets, stored, rows_B)

    def strata(self, stored: StoredSet, rows_N: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return self.sets(stored, rows_N)

    def facts(self, stored: StoredSet, rows_N: np.ndarray) -> dict[str, Any]:
        """Return `labels`, the number of rows with each label, and `without`, the number of rows without labels."""
        counts_C, without = np.zeros(len(self.names), np.int64), 0
        for rows_B in chunks_of(rows_N):
            flat, counts_B = stored.lists("target", rows_B)
            counts_C += np.bincount(flat, minlength=len(counts_C))
            without += int((counts_B == 0).sum())
        return {"labels": named_counts(self.names, counts_C), "without": without}


@takes(schemas.NoTarget)
class NoTarget(Target):
    """No target: rows have only texts, to be predicted or embedded."""

    def read(self, values: Values) -> tuple[object, Problem | None]:
        return None, None

    def column(self) -> pa.DataType | None:
        return None

    def collate(self, rows: Gathered) -> dict[str, Tensor]:
        return {}


def hashes_of_lists(
    gather: Callable[[StoredSet, np.ndarray], tuple[np.ndarray, np.ndarray]], stored: StoredSet, rows_B: np.ndarray
) -> np.ndarray:
    """Return the hash of each list that `gather` returns, equal for equal lists; (B,), int64."""
    hashes = [np.zeros(0, np.int64)]
    for some in chunks_of(rows_B):
        flat, counts_B = gather(stored, some)
        ends_B = starts_of(counts_B)[1:]
        hashes.append(np.array([bytes_hash(values.tobytes()) for values in np.split(flat, ends_B)], np.int64))
    return np.concatenate(hashes)
