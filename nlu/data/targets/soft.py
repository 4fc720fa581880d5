"""A distribution over classes as target, given as probabilities or logits, with or without a label beside it.

Axes: N rows of a set, B rows of a batch, C classes.
"""

import json
from typing import Any, Self

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from nlu.config.errors import DataError
from nlu.config.keys import takes
from nlu.data import keys as schemas
from nlu.data.dataset import Files
from nlu.data.store import StoredSet, chunks_of
from nlu.data.targets.base import Gathered, Problem, Target, Values, named_counts
from nlu.data.targets.classes import Names, hashes_of_lists

SUM_TOLERANCE = 0.01
"""how far a sum of probabilities may be from 1; they are divided by their sum"""
UNLABELLED = -1
SOFT_FIELDS = ("logits", "probabilities")
EXAMPLE = "[0.2, 0.8]"


@takes(schemas.SoftClasses)
class SoftClasses(Target):
    """A number for each class, in the order of `data.labels`: logits, or probabilities, which are stored as logarithms.

    A training row must have one of the two fields. An evaluation row may have only a label, whose distribution is then
    1 for the label and 0 for the others. A row is stored as the number of its label (-1: none), followed by its logits
    (NaN: none).
    """

    fewest = 2

    def __init__(self, files: Files):
        """Raises DataError if the labels are not given, since the order of the numbers would be unknown."""
        if files.labels is None:
            raise DataError(
                "data.labels is null, but logits and probabilities are in the order of the labels; set data.labels to "
                "the list of all labels in this order"
            )
        self._names = Names(files.labels)
        self._is_closed = self.has_probabilities = False

    def read(self, values: Values) -> tuple[Any, Problem | None]:
        given = [role for role in SOFT_FIELDS if not _is_absent(values.get(role))]
        if len(given) > 1:
            return None, ("probabilities", "stands beside logits; leave one of the two out of data.fields")
        number, logits_C = UNLABELLED, [float("nan")] * len(self.names)
        if not _is_absent(label := values.get("label")):
            found, rule = self._names.number(label)
            if found is None:
                return None, ("label", str(rule))
            number = found
        if given:
            found_C, rule = self._logits(given[0], values[given[0]])
            if found_C is None:
                return None, (given[0], str(rule))
            logits_C = found_C
        elif not self._is_closed:
            role = next((role for role in SOFT_FIELDS if role in values), "logits")
            return None, (role, f"is not a list of numbers, such as {EXAMPLE}, which every training row needs")
        elif number == UNLABELLED:
            return None, (next((role for role in self.roles if role in values), "label"), "is missing, as is a label")
        return [float(number), *logits_C], None

    def _logits(self, role: str, written: Any) -> tuple[list[float] | None, str | None]:
        """Return the logits in a value, or None and the rule that it breaks."""
        if isinstance(written, str):
            try:
                written = json.loads(written)
            except (ValueError, RecursionError):
                return None, f"is not a list of numbers, such as {EXAMPLE}"
        if not isinstance(written, list):
            return None, f"is not a list of numbers, such as {EXAMPLE}"
        if wrong := [value for value in written if type(value) not in (int, float)]:
            return None, f"holds {json.dumps(wrong[0], ensure_ascii=False, default=str)}, which is not a number"
        if len(written) != len(self.names):
            return None, f"has {len(written)} numbers for the {len(self.names)} classes of data.labels"
        try:
            with np.errstate(over="ignore"):
                is_finite_C = np.isfinite(np.array(written, np.float64).astype(np.float32))
        except OverflowError:
            # JSON may have an integer of more than 308 digits.
            return None, "holds a number that float32 cannot hold"
        if not is_finite_C.all():
            return None, f"holds {written[int(is_finite_C.argmin())]}, which is not a finite number of float32"
        if role == "logits":
            return [float(value) for value in written], None
        self.has_probabilities = True
        probs_C = np.array(written, np.float64)
        if (probs_C < 0).any():
            return (
                None,
                f"holds {written[int(probs_C.argmin())]}, a negative probability; map logits to data.fields.logits",
            )
        total = float(probs_C.sum())
        if abs(total - 1) > SUM_TOLERANCE:
            return None, f"adds up to {total:.6g} instead of 1; map logits to data.fields.logits"
        with np.errstate(divide="ignore"):
            return np.log(probs_C / total).tolist(), None

    def column(self) -> pa.DataType | None:
        return pa.list_(pa.float32())

    def close(self) -> None:
        self._names.close(self.fewest)
        self._is_closed = True

    def meta(self) -> dict[str, Any]:
        return {"names": self.names, "has_probabilities": self.has_probabilities}

    @classmethod
    def from_meta(cls, meta: dict[str, Any]) -> Self:
        target = cls.__new__(cls)
        target._names = Names(meta["names"], is_trained=True)
        target._is_closed, target.has_probabilities = True, meta["has_probabilities"]
        return target

    @property
    def names(self) -> list[str]:
        return self._names.names

    def rows(self, stored: StoredSet, rows_B: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the label of each row, (B,), int64, -1 without one; whether it has logits, (B,), bool; and its logits,
        (B, C), float32: those of the label alone (0, others minus infinity) where it has none."""
        flat, counts_B = stored.lists("target", rows_B)
        values_BC = flat.reshape(len(counts_B), 1 + len(self.names))
        label_B, logits_BC = values_BC[:, 0].astype(np.int64), values_BC[:, 1:].copy()
        is_soft_B = ~np.isnan(logits_BC[:, 0])
        logits_BC[~is_soft_B] = -np.inf
        logits_BC[~is_soft_B, label_B[~is_soft_B]] = 0
        return label_B, is_soft_B, logits_BC

    def collate(self, rows: Gathered) -> dict[str, Tensor]:
        """Return `labels`, (B, C), float32, the logits of the distribution; `classes`, (B,), int64, -1 without a label;
        and `is_soft`, (B,), bool, whether the row has logits."""
        label_B, is_soft_B, logits_BC = self.rows(rows.stored, rows.rows_B)
        return {
            "labels": torch.from_numpy(logits_BC),
            "classes": torch.from_numpy(label_B),
            "is_soft": torch.from_numpy(is_soft_B),
        }

    def numbers(self, stored: StoredSet, rows_N: np.ndarray) -> np.ndarray:
        """Return the number of each row's label or, without one, of its most probable class; (N,), int64."""
        found = [np.zeros(0, np.int64)]
        for rows_B in chunks_of(rows_N):
            label_B, _, logits_BC = self.rows(stored, rows_B)
            found.append(np.where(label_B == UNLABELLED, logits_BC.argmax(1), label_B))
        return np.concatenate(found)

    def identities(self, stored: StoredSet, rows_B: np.ndarray) -> np.ndarray:
        return hashes_of_lists(lambda some, rows: some.lists("target", rows), stored, rows_B)

    def strata(self, stored: StoredSet, rows_N: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return self.numbers(stored, rows_N), np.ones(len(rows_N), np.int64)

    def facts(self, stored: StoredSet, rows_N: np.ndarray) -> dict[str, Any]:
        """Return `labels`, the number of rows by label or most probable class."""
        return {
            "labels": named_counts(self.names, np.bincount(self.numbers(stored, rows_N), minlength=len(self.names)))
        }


def _is_absent(value: Any) -> bool:
    """Return whether a field is empty: None, NaN, or a text of blanks."""
    return value is None or value != value or (isinstance(value, str) and not value.strip())
