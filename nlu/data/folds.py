"""Which fold holds out which training row: a function of the rows and the seed, for cross validation.

Rows that may not be torn apart (equal texts; with groups, rows of one group) make a cluster and share a fold. Clusters
of several rows are dealt largest first, each to the fold that has least of its labels, as stratified group k-fold does;
single rows then level every label over the folds, exactly.

Axes: N rows, K clusters, F folds, C labels, P pairs of cluster and label.
"""

from dataclasses import dataclass

import numpy as np

from nlu.data.seeds import generator


@dataclass(frozen=True)
class Fold:
    """One fold of a training set: `number` of `count`, counted from 0, of the split that `seed` makes."""

    number: int
    count: int
    seed: int


def clusters_of(text_hash_N: np.ndarray, group_N: np.ndarray | None = None) -> np.ndarray:
    """Return the cluster of each row, numbered from 0; rows with the same text or the same group share one, and so do
    groups that have a text in common."""
    text_N = np.unique(text_hash_N, return_inverse=True)[1]
    if group_N is None:
        return text_N
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    group_N = np.unique(group_N, return_inverse=True)[1] + len(text_N)
    size = 2 * len(text_N)
    links = coo_array((np.ones(len(text_N), bool), (text_N, group_N)), shape=(size, size))
    node_to_part = connected_components(links, directed=False)[1]
    return np.unique(node_to_part[text_N], return_inverse=True)[1]


def fold_numbers(cluster_N: np.ndarray, label_N: np.ndarray, *, count: int, seed: int) -> np.ndarray:
    """Return the fold of each row, (N,), from 0 to count - 1; every fold has rows.

    Where every cluster is one row, the sizes of the folds differ by at most one, and so do the numbers of rows of each
    label. Larger clusters of one label move these by at most their largest. There must be `count` clusters or more.
    """
    sizes_K = np.bincount(cluster_N)
    assert len(sizes_K) >= count, "the caller refuses more folds than clusters"
    label_N = np.unique(label_N, return_inverse=True)[1]
    shuffled_K = generator(seed, "folds").permutation(len(sizes_K))
    fold_K = np.full(len(sizes_K), -1)
    rows_FC = np.zeros((count, label_N.max() + 1), np.int64)
    _deal_clusters(fold_K, rows_FC, cluster_N, label_N, shuffled_K)
    _level_rows(fold_K, rows_FC, cluster_N, label_N, shuffled_K)
    _fill_empty_folds(fold_K, sizes_K, count)
    return fold_K[cluster_N]


def _deal_clusters(
    fold_K: np.ndarray, rows_FC: np.ndarray, cluster_N: np.ndarray, label_N: np.ndarray, shuffled_K: np.ndarray
) -> None:
    """Put every cluster of several rows into a fold, and count its rows there."""
    sizes_K, total_C = np.bincount(cluster_N), np.bincount(label_N)
    several = shuffled_K[sizes_K[shuffled_K] > 1]
    largest_first = several[np.argsort(-sizes_K[several], kind="stable")]
    # The pairs of cluster and label that occur, P of them, and the rows of each: what a cluster has stands together.
    pair_P, count_P = np.unique(cluster_N * len(total_C) + label_N, return_counts=True)
    begin_K = np.searchsorted(pair_P, np.arange(len(sizes_K) + 1) * len(total_C)).tolist()
    label_P = pair_P % len(total_C)
    # Adding v rows to c of n adds (2cv + v^2) / n^2 to the sum of squared shares; only c depends on the fold.
    weight_P = (count_P / total_C[label_P].astype(float) ** 2).tolist()
    labels, counts = label_P.tolist(), count_P.tolist()
    # A million small steps: plain lists are ten times as fast as arrays of a few numbers.
    rows, totals = rows_FC.tolist(), [0] * len(rows_FC)
    for cluster in largest_first.tolist():
        own = range(begin_K[cluster], begin_K[cluster + 1])
        costs = [
            (sum(of_fold[labels[p]] * weight_P[p] for p in own), total)
            for of_fold, total in zip(rows, totals, strict=True)
        ]
        fold = costs.index(min(costs))
        fold_K[cluster] = fold
        for p in own:
            rows[fold][labels[p]] += counts[p]
            totals[fold] += counts[p]
    rows_FC[:] = rows


def _level_rows(
    fold_K: np.ndarray, rows_FC: np.ndarray, cluster_N: np.ndarray, label_N: np.ndarray, shuffled_K: np.ndarray
) -> None:
    """Put every cluster of one row into a fold, so that each label is spread as evenly as can be."""
    singles = shuffled_K[np.bincount(cluster_N)[shuffled_K] == 1]
    label_K = np.zeros(len(fold_K), np.int64)
    label_K[cluster_N] = label_N
    levelled_F = np.zeros(len(rows_FC), np.int64)
    for label in range(rows_FC.shape[1]):
        own = singles[label_K[singles] == label]
        # The odd rows go where the fewest are: first by the labels that are spread already, then by all.
        smallest_first_F = np.lexsort((rows_FC.sum(1), levelled_F))
        added_F = _levelling(rows_FC[:, label], len(own), smallest_first_F)
        fold_K[own] = np.repeat(np.arange(len(rows_FC)), added_F)
        rows_FC[:, label] += added_F
        levelled_F += rows_FC[:, label]


def _levelling(rows_F: np.ndarray, count: int, smallest_first_F: np.ndarray) -> np.ndarray:
    """Return how many of `count` rows each fold gets, so that the fullest that get any differ by at most one."""
    ordered_F = np.sort(rows_F)
    level = next(
        level
        for filled in range(len(rows_F), 0, -1)
        if (level := (count + ordered_F[:filled].sum()) // filled) >= ordered_F[filled - 1]
    )
    added_F = np.maximum(0, level - rows_F)
    at_level_F = smallest_first_F[(rows_F + added_F)[smallest_first_F] == level]
    added_F[at_level_F[: count - added_F.sum()]] += 1
    return added_F


def _fill_empty_folds(fold_K: np.ndarray, sizes_K: np.ndarray, count: int) -> None:
    """Give each fold that large clusters left empty the smallest cluster of the fold that has most clusters."""
    for empty in np.nonzero(np.bincount(fold_K, minlength=count) == 0)[0]:
        donor = np.bincount(fold_K, minlength=count).argmax()
        clusters = np.nonzero(fold_K == donor)[0]
        fold_K[clusters[sizes_K[clusters].argmin()]] = empty
