"""The fold of each training row in cross validation: a function of the rows and the seed.

Rows that must not be separated (equal texts, pairs with a common text, rows of one group) form a cluster and share a
fold. A split without folds uses the same clusters (`nlu.data.opening`). Clusters of several rows are assigned first,
the largest first, each to the fold that has the fewest rows of its labels, as in stratified group k-fold. Single rows
then make each label equally frequent in all folds. Of several labels of a row the rarest counts.

Axes: N rows, K clusters, F folds, C labels, P pairs of cluster and label.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from nlu.data.seeds import generator

log = logging.getLogger(__name__)

MOST_SHARE = 0.5
"""the largest share of the rows in one cluster of pairs"""


@dataclass(frozen=True)
class Fold:
    """Fold `number` (from 0) of the `count` folds into which `seed` splits a training set."""

    number: int
    count: int
    seed: int


def clusters_of(
    first_N: np.ndarray, second_N: np.ndarray | None = None, group_N: np.ndarray | None = None
) -> np.ndarray:
    """Return the cluster of each row, (N,), numbered from 0: rows that are connected by texts or groups.

    `first_N` and `second_N` are hashes of the first and the second text. A text that is the first of one pair and the
    second of another connects both.
    """
    texts, text_N = np.unique(first_N, return_inverse=True)
    nodes, linked = len(texts), []
    if second_N is not None:
        # A text that occurs as a first text keeps its number, so that clusters are in the order of first texts.
        others = np.setdiff1d(second_N, texts)
        place_N = np.minimum(np.searchsorted(texts, second_N), len(texts) - 1)
        other_N = np.searchsorted(others, second_N) + len(texts)
        linked.append(np.where(texts[place_N] == second_N, place_N, other_N))
        nodes += len(others)
    if group_N is not None:
        groups, number_N = np.unique(group_N, return_inverse=True)
        linked.append(number_N + nodes)
        nodes += len(groups)
    if not linked:
        return text_N
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    # A graph with a node for each text and each group. A row connects its own; connected nodes are a cluster.
    ends = np.tile(text_N, len(linked)), np.concatenate(linked)
    links = coo_array((np.ones(len(ends[0]), bool), ends), shape=(nodes, nodes))
    node_to_part = connected_components(links, directed=False)[1]
    return np.unique(node_to_part[text_N], return_inverse=True)[1]


def kept_together(
    first_N: np.ndarray,
    second_N: np.ndarray | None,
    group_N: np.ndarray | None,
    fits: Callable[[np.ndarray], bool] = lambda cluster_N: True,
) -> np.ndarray:
    """Return the cluster of each row: `clusters_of`, unless second texts connect too many pairs.

    A frequent text, such as one of ten answers, could connect all pairs, so that none could be held out. Therefore a
    cluster with more than MOST_SHARE of the rows is split by first texts, and all clusters are if they do not satisfy
    `fits`. A warning then states the number of rows.
    """
    cluster_N = clusters_of(first_N, second_N, group_N)
    if second_N is None:
        return cluster_N
    by_first_N = clusters_of(first_N, None, group_N)
    sizes_K = np.bincount(cluster_N)
    # Only the clusters that are too large are cut, so the others stay whole.
    is_cut_N = sizes_K[cluster_N] > MOST_SHARE * len(cluster_N)
    found_N = np.unique(np.where(is_cut_N, len(sizes_K) + by_first_N, cluster_N), return_inverse=True)[1]
    if not fits(found_N):
        is_cut_N, found_N = np.ones(len(cluster_N), bool), by_first_N
    if len(np.unique(by_first_N[is_cut_N])) > len(np.unique(cluster_N[is_cut_N])):
        log.warning(
            "data: %s of the %s pairs of data.train are grouped by their first text only: shared texts connect %s of "
            "them, too many to hold out together, so a second text may be both held out and trained on",
            f"{is_cut_N.sum():,}",
            f"{len(cluster_N):,}",
            f"{sizes_K.max():,}",
        )
    return found_N


def fold_numbers(
    cluster_N: np.ndarray, labels: np.ndarray, counts_N: np.ndarray | None = None, *, count: int, seed: int
) -> np.ndarray:
    """Return the fold of each row, (N,), from 0 to count - 1; every fold has rows.

    `labels` has the labels of each row, one row after another, and `counts_N` their number (None: one each). If each
    row has one label and is a cluster, the sizes of the folds differ by at most one, and so do the rows of each label.
    Larger clusters of one label change this by at most the size of the largest. Of rows with several labels or none
    this is so for the rarest label of each. There must be at least `count` clusters.
    """
    sizes_K = np.bincount(cluster_N)
    assert len(sizes_K) >= count, "the caller refuses more folds than clusters"
    # The only random choice; everything after it is determined by this order.
    shuffled_K = generator(seed, "folds").permutation(len(sizes_K))
    fold_K = np.full(len(sizes_K), -1)
    if counts_N is not None and (counts_N != 1).any():
        labels = rarest_labels(labels, counts_N)
    label_N = np.unique(labels, return_inverse=True)[1]
    rows_FC = np.zeros((count, label_N.max() + 1), np.int64)
    _deal_clusters(fold_K, rows_FC, cluster_N, label_N, shuffled_K)
    _level_rows(fold_K, rows_FC, cluster_N, label_N, shuffled_K)
    _fill_empty_folds(fold_K, sizes_K, count)
    return fold_K[cluster_N]


def rarest_labels(labels: np.ndarray, counts_N: np.ndarray) -> np.ndarray:
    """Return the rarest of the labels of each row, by its rank: 0 is the rarest of all; a row without one is behind.

    `labels` has those of each row, one row after another, and `counts_N` their number.
    """
    rank_C = np.argsort(np.argsort(np.bincount(labels, minlength=1), kind="stable"), kind="stable")
    rarest_N = np.full(len(counts_N), len(rank_C))
    np.minimum.at(rarest_N, np.repeat(np.arange(len(counts_N)), counts_N), rank_C[labels])
    return rarest_N


def _deal_clusters(
    fold_K: np.ndarray, rows_FC: np.ndarray, cluster_N: np.ndarray, label_N: np.ndarray, shuffled_K: np.ndarray
) -> None:
    """Assign every cluster of several rows to a fold, and add its rows to `rows_FC`."""
    sizes_K, total_C = np.bincount(cluster_N), np.bincount(label_N)
    several = shuffled_K[sizes_K[shuffled_K] > 1]
    largest_first = several[np.argsort(-sizes_K[several], kind="stable")]
    # The P pairs of cluster and label that occur, and the rows of each; the pairs of a cluster are adjacent.
    pair_P, count_P = np.unique(cluster_N * len(total_C) + label_N, return_counts=True)
    begin_K = np.searchsorted(pair_P, np.arange(len(sizes_K) + 1) * len(total_C)).tolist()
    label_P = pair_P % len(total_C)
    # Adding v rows to c of n adds (2cv + v^2) / n^2 to the sum of squared shares; only c depends on the fold.
    weight_P = (count_P / total_C[label_P].astype(float) ** 2).tolist()
    labels, counts = label_P.tolist(), count_P.tolist()
    # A million small steps, in which lists are ten times as fast as arrays of a few numbers.
    rows, totals = rows_FC.tolist(), [0] * len(rows_FC)
    for cluster in largest_first.tolist():
        own = range(begin_K[cluster], begin_K[cluster + 1])
        costs = [
            (sum(of_fold[labels[p]] * weight_P[p] for p in own), total)
            for of_fold, total in zip(rows, totals, strict=True)
        ]
        # Ties go to the fold with the fewest rows, then to the first one.
        fold = costs.index(min(costs))
        fold_K[cluster] = fold
        for p in own:
            rows[fold][labels[p]] += counts[p]
            totals[fold] += counts[p]
    # In place: `_level_rows` continues with the same array.
    rows_FC[:] = rows


def _level_rows(
    fold_K: np.ndarray, rows_FC: np.ndarray, cluster_N: np.ndarray, label_N: np.ndarray, shuffled_K: np.ndarray
) -> None:
    """Assign every cluster of one row to a fold, so that each label is spread as evenly as possible."""
    singles = shuffled_K[np.bincount(cluster_N)[shuffled_K] == 1]
    label_K = np.zeros(len(fold_K), np.int64)
    label_K[cluster_N] = label_N
    levelled_F = np.zeros(len(rows_FC), np.int64)
    for label in range(rows_FC.shape[1]):
        own = singles[label_K[singles] == label]
        # Remaining rows go to the smallest folds: first by the rows of labels done so far, then by all rows.
        smallest_first_F = np.lexsort((rows_FC.sum(1), levelled_F))
        added_F = _levelling(rows_FC[:, label], len(own), smallest_first_F)
        fold_K[own] = np.repeat(np.arange(len(rows_FC)), added_F)
        rows_FC[:, label] += added_F
        levelled_F += rows_FC[:, label]


def _levelling(rows_F: np.ndarray, count: int, smallest_first_F: np.ndarray) -> np.ndarray:
    """Return how many of `count` rows each fold gets, so that folds that get rows end up equal within one."""
    ordered_F = np.sort(rows_F)
    # Fill the emptiest folds to a common level, as water fills a vessel; fuller folds stay as they are.
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
    """Give each empty fold the smallest cluster of the fold that has the most clusters."""
    # Few large clusters may leave a fold empty, and a fold without rows cannot be scored.
    for empty in np.nonzero(np.bincount(fold_K, minlength=count) == 0)[0]:
        donor = np.bincount(fold_K, minlength=count).argmax()
        clusters = np.nonzero(fold_K == donor)[0]
        fold_K[clusters[sizes_K[clusters].argmin()]] = empty
