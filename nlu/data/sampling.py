"""A fixed sample of a set, which is scored faster than the whole set. Axes: N rows, C classes, G groups.

The sample is a function of the seed and of the stored rows, so every evaluation scores the same rows, with any
number of processes and after any restart.
"""

import numpy as np

from nlu.data.examples import Examples
from nlu.data.seeds import uniforms
from nlu.data.targets import Relevance


def sampled(part: Examples, rows: int | None, seed: int) -> Examples:
    """Return a set of `rows` of the examples, or the set itself if it has at most that many or `rows` is None.

    Each class has its share of the sample, rounded by largest remainders. Targets without exactly one class for each
    row get a plain sample. Rows of a group (`folds.group_by`), and of a query that is ranked, stay together: the sample
    then has whole groups, in random order, until it has at least `rows` rows.
    """
    if rows is None or len(part) <= rows:
        return part
    group_N = _groups_of(part)
    if group_N is not None:
        return part.some(np.flatnonzero(_of_whole_groups(group_N, rows, seed)))
    strata, counts_N = part.target.strata(part.stored, part.rows_N)
    class_N = strata if (counts_N == 1).all() else np.zeros(len(part), np.int64)
    return part.some(np.flatnonzero(_of_each_class(class_N, part.rows_N, rows, seed)))


def _groups_of(part: Examples) -> np.ndarray | None:
    """Return the hash of each row's group or query, (N,); None if rows may be separated."""
    if (group_N := part.stored.group_N[part.rows_N]).any():
        return group_N
    return part.stored.first_N[part.rows_N] if isinstance(part.target, Relevance) else None


def _of_each_class(class_N: np.ndarray, row_N: np.ndarray, rows: int, seed: int) -> np.ndarray:
    """Return which rows are chosen, (N,): of each class those with the smallest numbers."""
    _, class_N, counts_C = np.unique(class_N, return_inverse=True, return_counts=True)
    wanted_C, remainder_C = np.divmod(rows * counts_C, len(class_N))
    wanted_C[np.argsort(-remainder_C, kind="stable")[: rows - wanted_C.sum()]] += 1
    order_N = np.lexsort((_drawn(row_N, seed), class_N))
    begin_C = np.cumsum(counts_C) - counts_C
    is_chosen_N = np.zeros(len(class_N), bool)
    is_chosen_N[order_N] = np.arange(len(class_N)) - begin_C[class_N[order_N]] < wanted_C[class_N[order_N]]
    return is_chosen_N


def _of_whole_groups(group_N: np.ndarray, rows: int, seed: int) -> np.ndarray:
    """Return which rows are chosen, (N,): those of the groups with the smallest numbers."""
    group_G, group_N, counts_G = np.unique(group_N, return_inverse=True, return_counts=True)
    order_G = np.argsort(_drawn(group_G, seed), kind="stable")
    before_G = np.cumsum(counts_G[order_G]) - counts_G[order_G]
    is_chosen_G = np.zeros(len(group_G), bool)
    is_chosen_G[order_G] = before_G < rows
    return is_chosen_G[group_N]


def _drawn(key_N: np.ndarray, seed: int) -> np.ndarray:
    """Return a random number for each key, which depends only on the key and the seed; (N,)."""
    return uniforms(seed, "eval_rows", example_T=key_N, place_T=np.zeros(len(key_N), np.int64))
