"""Which rows occur more than once, for sets of any size: beside the hashes it takes a sorted copy and a bit a row.

Axes: N rows, S sorted values.
"""

import numpy as np

CHUNK_ROWS = 262_144


def repeated(sorted_S: np.ndarray) -> np.ndarray:
    """Return the distinct values that occur more than once, in order."""
    return np.unique(sorted_S[1:][sorted_S[1:] == sorted_S[:-1]])


def among(values_N: np.ndarray, sorted_S: np.ndarray) -> np.ndarray:
    """Return whether each value is one of the sorted ones; (N,), bool."""
    found_N = np.zeros(len(values_N), bool)
    if len(sorted_S):
        for start in range(0, len(values_N), CHUNK_ROWS):
            chunk = values_N[start : start + CHUNK_ROWS]
            places = np.minimum(np.searchsorted(sorted_S, chunk), len(sorted_S) - 1)
            found_N[start : start + CHUNK_ROWS] = sorted_S[places] == chunk
    return found_N
