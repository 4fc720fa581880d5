"""Arithmetic on ragged rows kept as one flat array plus lengths, shared by the store and the collator."""

from itertools import chain

import numpy as np


def ranges(starts_N: np.ndarray, lengths_N: np.ndarray) -> np.ndarray:
    """Concatenate `arange(start, start + length)` of every row; shape (sum of lengths,), int64."""
    total = int(lengths_N.sum())
    before_N = np.cumsum(lengths_N) - lengths_N
    return np.repeat(starts_N - before_N, lengths_N) + np.arange(total, dtype=np.int64)


def starts_of(lengths_N: np.ndarray) -> np.ndarray:
    """Return the position in the flat array at which each row starts; shape (N,), int64."""
    return np.cumsum(lengths_N, dtype=np.int64) - lengths_N


def flatten(rows: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows' values one after another (int32) and the length of each (int64)."""
    lengths_N = np.fromiter(map(len, rows), dtype=np.int64, count=len(rows))
    flat = np.fromiter(chain.from_iterable(rows), dtype=np.int32, count=int(lengths_N.sum()))
    return flat, lengths_N
