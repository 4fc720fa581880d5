"""The nearest of many vectors, exactly and in blocks, so that memory does not grow with their number.

Axes: Q queries, N vectors of the corpus, C those of a block, D width, k results.
"""

from typing import NamedTuple

import numpy as np

from nlu.config.errors import UserError

QUERIES, CORPUS = 256, 8192
"""the most queries and vectors that are compared at once"""
LAST = np.int64(2**32 - 1)


class Nearest(NamedTuple):
    """The nearest vectors of each query, best first."""

    places: np.ndarray
    """of each in the corpus, from 0; (Q, k), int64"""
    scores: np.ndarray
    """the product of both vectors, for vectors of length 1 their cosine; (Q, k), float32"""


def nearest(queries_QD: np.ndarray, corpus_ND: np.ndarray, k: int) -> Nearest:
    """Return the `k` vectors with the highest product with each query, or all if there are fewer; of equal ones the
    first comes first.

    Products are summed in float64 and rounded to float32, so that equal vectors have equal scores in every block.
    Raises UserError for vectors of different widths and for k < 1.
    """
    if k < 1:
        raise UserError(f"k is {k}, but at least one result is searched for; set k to 1 or more")
    if queries_QD.ndim != 2 or corpus_ND.ndim != 2 or queries_QD.shape[1] != corpus_ND.shape[1]:
        raise UserError(
            f"queries have the shape {queries_QD.shape} and the corpus {corpus_ND.shape}; give both as (rows, width), "
            "with vectors of one width"
        )
    found = [
        _of_block(queries_QD[start : start + QUERIES], corpus_ND, k) for start in range(0, len(queries_QD), QUERIES)
    ]
    keys_Qk = np.concatenate(found) if found else np.zeros((0, min(k, len(corpus_ND))), np.int64)
    ordered_Qk = (keys_Qk >> 32).astype(np.int32)
    return Nearest(LAST - (keys_Qk & LAST), _in_order(ordered_Qk).view(np.float32))


def _of_block(queries_QD: np.ndarray, corpus_ND: np.ndarray, k: int) -> np.ndarray:
    """Return a key of each result, (Q, k), int64, which grows with the score and falls with the place."""
    queries_DQ = np.asarray(queries_QD, np.float64).T
    best_Qk = np.zeros((queries_DQ.shape[1], 0), np.int64)
    for start in range(0, len(corpus_ND), CORPUS):
        block_CD = np.asarray(corpus_ND[start : start + CORPUS], np.float64)
        # A row of NaN stands for a text without a vector. Adding 0 makes one number of 0 and -0.
        scores_QC = np.ascontiguousarray((block_CD @ queries_DQ).T, np.float32) + np.float32(0)
        scores_QC[np.isnan(scores_QC)] = -np.inf
        places_C = LAST - np.arange(start, start + len(block_CD))
        keys_QC = (_in_order(scores_QC.view(np.int32)).astype(np.int64) << 32) | places_C
        joined = np.concatenate([best_Qk, keys_QC], axis=1)
        best_Qk = np.partition(joined, -k, axis=1)[:, -k:] if joined.shape[1] > k else joined
    return np.sort(best_Qk, axis=1)[:, ::-1]


def _in_order(bits: np.ndarray) -> np.ndarray:
    """Return the bits of floats as int32 in the order of the floats, or such int32 as bits again."""
    return bits ^ ((bits >> 31) & np.int32(0x7FFFFFFF))
