"""Operations that NumPy lacks: ragged rows, kept as one flat array plus lengths, and values that occur more than once.

Axes: N rows or values, S sorted values.
"""

from collections.abc import Iterable
from itertools import chain

import numpy as np
import pyarrow as pa

CHUNK_VALUES = 262_144


def ranges(starts_N: np.ndarray, lengths_N: np.ndarray) -> np.ndarray:
    """Concatenate `arange(start, start + length)` of every row; shape (sum of lengths,), int64."""
    total = int(lengths_N.sum())
    return np.repeat(starts_N - starts_of(lengths_N), lengths_N) + np.arange(total, dtype=np.int64)


def starts_of(lengths_N: np.ndarray) -> np.ndarray:
    """Return the position in the flat array at which each row starts; shape (N,), int64."""
    return np.cumsum(lengths_N, dtype=np.int64) - lengths_N


def flatten(rows: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows' values one after another (int32) and the length of each (int64)."""
    lengths_N = np.fromiter(map(len, rows), dtype=np.int64, count=len(rows))
    # int32 is enough for token numbers, and halves the memory. With `count` NumPy allocates once.
    flat = np.fromiter(chain.from_iterable(rows), dtype=np.int32, count=int(lengths_N.sum()))
    return flat, lengths_N


def repeated(sorted_S: np.ndarray) -> np.ndarray:
    """Return the distinct values that occur more than once, in ascending order."""
    return np.unique(sorted_S[1:][sorted_S[1:] == sorted_S[:-1]])


def among(values_N: np.ndarray, sorted_S: np.ndarray) -> np.ndarray:
    """Return whether each value is one of the sorted ones; (N,), bool.

    Unlike `np.isin`, this needs only a byte for each value and one chunk of temporary memory.
    """
    found_N = np.zeros(len(values_N), bool)
    if len(sorted_S):
        # A binary search makes an int64 for each value, so one chunk at a time.
        for start in range(0, len(values_N), CHUNK_VALUES):
            chunk = values_N[start : start + CHUNK_VALUES]
            places = np.minimum(np.searchsorted(sorted_S, chunk), len(sorted_S) - 1)
            found_N[start : start + CHUNK_VALUES] = sorted_S[places] == chunk
    return found_N


def occurrences(parts: Iterable[np.ndarray], size: int) -> np.ndarray:
    """Return how often each of the numbers below `size` occurs in all parts together; (size,), int64."""
    counts = np.zeros(size, np.int64)
    for part in parts:
        counts += np.bincount(part, minlength=size)
    return counts


def values_of(column: pa.Array) -> np.ndarray:
    """Return a column of numbers without copying; `to_numpy` would import pandas if it is installed."""
    dtype = np.dtype(column.type.to_pandas_dtype())
    return np.frombuffer(column.buffers()[1], dtype)[column.offset : column.offset + len(column)]
