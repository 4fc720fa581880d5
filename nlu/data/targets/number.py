"""A number as target. Axes: N rows of a set, B rows of a batch."""

import math

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from nlu.config.errors import DataError
from nlu.config.keys import takes
from nlu.data import keys as schemas
from nlu.data.dataset import Files
from nlu.data.store import StoredSet
from nlu.data.targets.base import Gathered, Problem, Target, Values
from nlu.data.tokenizing import Tokenizer

MOST_STRATA = 10


@takes(schemas.Number)
class Number(Target):
    """A number, standardized for training: minus the mean of the training rows, divided by their standard deviation."""

    def __init__(self, files: Files):
        self.mean, self.sd = 0.0, 1.0

    def read(self, values: Values) -> tuple[float | None, Problem | None]:
        written = values.get("label")
        try:
            number = float("" if written is None or isinstance(written, bool) else written)
        except OverflowError:
            # JSON may have an integer of more than 308 digits.
            return None, ("label", "is not a finite number")
        except (TypeError, ValueError):
            return None, ("label", "is not a number")
        # Python reads 1_000 as a number; in a table it is more likely a name.
        if "_" in str(written):
            return None, ("label", "is not a number")
        return (number, None) if math.isfinite(number) else (None, ("label", "is not a finite number"))

    def column(self) -> pa.DataType | None:
        return pa.float64()

    def meta(self) -> dict[str, object]:
        return {"mean": self.mean, "sd": self.sd}

    @property
    def num_outputs(self) -> int:
        return 1

    def fit(self, stored: StoredSet, rows_N: np.ndarray, tokenizer: Tokenizer) -> None:
        """Set the scale to the mean and the population standard deviation of the training rows.

        Raises DataError if all rows have the same number.
        """
        values_N = self.values(stored, rows_N)
        self.mean, self.sd = float(values_N.mean()), float(values_N.std())
        # Not sd == 0: the mean of equal numbers may be off by a rounding error.
        if values_N.min() == values_N.max():
            raise DataError(
                f"all {len(rows_N):,} training rows have the number {values_N[0]:g}, so there is nothing to learn; "
                "check data.fields and data.train"
            )

    def values(self, stored: StoredSet, rows_B: np.ndarray) -> np.ndarray:
        """Return the numbers as they were read; (B,), float64."""
        return stored.scalars("target", rows_B)

    def scaled(self, values_B: np.ndarray) -> np.ndarray:
        """Return standardized numbers."""
        return (values_B - self.mean) / self.sd

    def unscaled(self, values_B: np.ndarray) -> np.ndarray:
        """Return the original numbers of standardized ones."""
        return values_B * self.sd + self.mean

    def collate(self, rows: Gathered) -> dict[str, Tensor]:
        """Return `numbers`, (B,), float32, standardized."""
        values_B = self.values(rows.stored, rows.rows_B)
        return {"numbers": torch.from_numpy(self.scaled(values_B).astype(np.float32))}

    def identities(self, stored: StoredSet, rows_B: np.ndarray) -> np.ndarray:
        # Adding 0 turns -0.0 into 0.0, whose bits differ.
        return (self.values(stored, rows_B) + 0.0).view(np.int64)

    def strata(self, stored: StoredSet, rows_N: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return deciles as strata; equal numbers are in the same stratum."""
        values_N = self.values(stored, rows_N)
        bounds = np.quantile(values_N, np.arange(1, MOST_STRATA) / MOST_STRATA)
        return np.searchsorted(bounds, values_N), np.ones(len(rows_N), np.int64)

    def about(self) -> dict[str, object]:
        """Return the mean and the standard deviation of the training rows."""
        return self.meta()

    def facts(self, stored: StoredSet, rows_N: np.ndarray) -> dict[str, object]:
        values_N = self.values(stored, rows_N)
        low, median, high = np.percentile(values_N, [0, 50, 100]).tolist()
        mean, sd = float(values_N.mean()), float(values_N.std())
        return {"numbers": {"mean": mean, "sd": sd, "min": low, "median": median, "max": high}}
