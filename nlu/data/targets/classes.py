"""Targets of a whole example: one class, several labels, none. Axes: N rows of a set, B rows of a batch, C names."""

from typing import Any, Self

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from nlu.data.dataset import Files
from nlu.data.encoding import unusable
from nlu.data.ragged import starts_of
from nlu.data.seeds import bytes_hash
from nlu.data.store import StoredSet, chunks_of
from nlu.data.targets.base import Gathered, Problem, Target, Values, named_counts
from nlu.data.targets.names import Names, no_label


class Classes(Target):
    """One of several classes."""

    kind = "classes"
    roles: tuple[str, ...] = ("label",)
    fewest = 2

    def __init__(self, files: Files):
        self._names = Names(files.labels, files.max_rows)
        self.remap = None

    def read(self, values: Values) -> tuple[Any, Problem | None]:
        number, rule = self._names.number(values.get("label"))
        return number, None if rule is None else ("label", rule)

    def column(self) -> pa.DataType | None:
        return pa.int32()

    def close(self) -> None:
        self.remap = self._names.close(self.fewest)

    def meta(self) -> dict[str, Any]:
        return {"names": self.names, "remap": self.remap}

    @classmethod
    def from_meta(cls, meta: dict[str, Any]) -> Self:
        target = cls.__new__(cls)
        target._names, target.remap = Names(meta["names"], None, is_trained=True), meta["remap"]
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


class Relevance(Classes):
    """Whether the second text of a row answers the first; it does where the row does not say."""

    kind = "classes"
    roles = ()
    NAMES = ("irrelevant", "relevant")
    WRITTEN = {"0": 0, "false": 0, "no": 0, "irrelevant": 0, "1": 1, "true": 1, "yes": 1, "relevant": 1}

    def __init__(self, files: Files):
        self._names = Names(list(self.NAMES), None)
        self.remap = None

    def read(self, values: Values) -> tuple[Any, Problem | None]:
        written = values.get("label")
        if written is None:
            return 1, None
        number = self.WRITTEN.get(str(written).strip().lower())
        return number, None if number is not None else ("label", f"is none of {', '.join(self.WRITTEN)}")

    def close(self) -> None:
        """The names are fixed from the start."""

    def facts(self, stored: StoredSet, rows_N: np.ndarray) -> dict[str, Any]:
        """Leave out irrelevant pairs if a set has none, since it need not have any."""
        counts = super().facts(stored, rows_N)["labels"]
        return {"labels": {name: count for name, count in counts.items() if count or name == "relevant"}}


class LabelSet(Classes):
    """Any number of labels, each of which applies or does not."""

    kind = "label_set"
    fewest = 1

    def __init__(self, files: Files):
        super().__init__(files)
        self.read_as(files)

    def read_as(self, files: Files) -> None:
        self._separator = files.label_separator

    def read(self, values: Values) -> tuple[Any, Problem | None]:
        """A list of labels, or a text of them with `data.label_separator` between; an empty one means none."""
        written = values.get("label")
        if isinstance(written, str):
            written = [part for part in written.split(self._separator) if part.strip()]
        if not isinstance(written, list):
            return None, ("label", "is neither a list of labels nor a text of them")
        # All are looked at before the first is added, so that a row that is refused adds no label.
        if wrong := [value for value in written if no_label(value) or not str(value).strip() or unusable(str(value))]:
            return None, ("label", f"holds {wrong[0]!r}, which is no label")
        numbers = set()
        for value in written:
            number, rule = self._names.number(value)
            if rule is not None:
                return None, ("label", rule if len(written) == 1 else f"holds {value!r}, which {rule}")
            numbers.add(number)
        return sorted(numbers), None

    def column(self) -> pa.DataType | None:
        return pa.list_(pa.int32())

    def sets(self, stored: StoredSet, rows_B: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the numbers of the labels of each row, ascending, one row after another, and how many; (B,)."""
        flat, counts_B = stored.lists("target", rows_B)
        row_of = np.repeat(np.arange(len(rows_B)), counts_B)
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
        """`labels` counts the rows of each label, `without` those that have none."""
        counts_C, without = np.zeros(len(self.names), np.int64), 0
        for rows_B in chunks_of(rows_N):
            flat, counts_B = stored.lists("target", rows_B)
            counts_C += np.bincount(flat, minlength=len(counts_C))
            without += int((counts_B == 0).sum())
        return {"labels": named_counts(self.names, counts_C), "without": without}


class NoTarget(Target):
    """Rows that hold only texts, to be predicted or embedded."""

    kind = "none"
    roles = ()

    def read(self, values: Values) -> tuple[Any, Problem | None]:
        return None, None

    def column(self) -> pa.DataType | None:
        return None

    def collate(self, rows: Gathered) -> dict[str, Tensor]:
        return {}


def hashes_of_lists(gather: Any, stored: StoredSet, rows_B: np.ndarray) -> np.ndarray:
    """Return a number for each row that is the same for equal lists; (B,), int64."""
    hashes = [np.zeros(0, np.int64)]
    for some in chunks_of(rows_B):
        flat, counts_B = gather(stored, some)
        ends_B = starts_of(counts_B)[1:]
        hashes.append(np.array([bytes_hash(values.tobytes()) for values in np.split(flat, ends_B)], np.int64))
    return np.concatenate(hashes)
