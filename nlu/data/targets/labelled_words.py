"""Masked words and the label of a row as target, for pretraining on rows with labels.

Axes: N rows of a set, B rows of a batch, U masked tokens.
"""

from typing import Any, Self

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from nlu.config.keys import takes
from nlu.data import keys as schemas
from nlu.data.dataset import Files
from nlu.data.store import StoredSet
from nlu.data.targets.base import Gathered, Problem, Values
from nlu.data.targets.classes import Classes
from nlu.data.targets.masked import MaskedWords


@takes(schemas.LabelledWords)
class LabelledWords(MaskedWords):
    """Words are masked, and the class of a row is read, as by the targets of only one of the two."""

    def __init__(self, files: Files):
        super().__init__(files)
        self._classes = Classes(files)

    def read(self, values: Values) -> tuple[object, Problem | None]:
        return self._classes.read(values)

    def column(self) -> pa.DataType | None:
        return self._classes.column()

    def close(self) -> None:
        self._classes.close()
        self.remap = self._classes.remap

    @property
    def class_names(self) -> list[str]:
        """The classes in their order. `names` is empty: the first outputs are words."""
        return self._classes.names

    def meta(self) -> dict[str, object]:
        return {**super().meta(), "class_names": self.class_names, "remap": self.remap}

    @classmethod
    def from_meta(cls, meta: dict[str, Any]) -> Self:
        target = super().from_meta(meta)
        target._classes = Classes.from_meta({"names": meta["class_names"], "remap": meta["remap"]})
        target.remap = meta["remap"]
        return target

    def collate(self, rows: Gathered) -> dict[str, Tensor]:
        """Return `labels`, (U,), int64, the masked words, and `classes`, (B,), int64."""
        classes_B = self._classes.numbers(rows.stored, rows.rows_B)
        return {**super().collate(rows), "classes": torch.from_numpy(classes_B)}

    def identities(self, stored: StoredSet, rows_B: np.ndarray) -> np.ndarray:
        return self._classes.identities(stored, rows_B)

    def strata(self, stored: StoredSet, rows_N: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return self._classes.strata(stored, rows_N)

    def facts(self, stored: StoredSet, rows_N: np.ndarray) -> dict[str, Any]:
        return self._classes.facts(stored, rows_N)
