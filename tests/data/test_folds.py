"""Folds: every row held out once, labels and sizes even, equal texts and groups never torn apart."""

from collections import Counter
from fractions import Fraction

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st

from nlu.data.folds import clusters_of, fold_numbers, kept_together
from nlu.data.seeds import generator

LABELS = st.lists(st.integers(0, 4), min_size=2, max_size=80)


def spread(values_F: np.ndarray) -> int:
    return int(values_F.max() - values_F.min())


@given(LABELS, st.integers(2, 12), st.integers(0, 5))
def test_sizes_and_the_rows_of_every_label_differ_by_at_most_one(labels, count, seed):
    label_N = np.array(labels)
    count = min(count, len(label_N))
    fold_N = fold_numbers(np.arange(len(label_N)), label_N, count=count, seed=seed)
    assert spread(np.bincount(fold_N, minlength=count)) <= 1
    for label in set(labels):
        assert spread(np.bincount(fold_N[label_N == label], minlength=count)) <= 1


@given(LABELS, st.data())
def test_no_text_and_no_group_is_in_two_folds(labels, data):
    size = len(labels)
    text_N = np.array(data.draw(st.lists(st.integers(0, size), min_size=size, max_size=size)))
    group_N = np.array(data.draw(st.lists(st.integers(0, size), min_size=size, max_size=size)))
    for groups in (None, group_N):
        cluster_N = clusters_of(text_N, group_N=groups)
        available = cluster_N.max() + 1
        if available < 2:
            continue
        count = data.draw(st.integers(2, min(6, available)))
        fold_N = fold_numbers(cluster_N, np.array(labels), count=count, seed=1)
        assert set(fold_N) == set(range(count)), "a fold is empty"
        for together_N in (text_N, *([group_N] if groups is not None else [])):
            for value in set(together_N):
                assert len(set(fold_N[together_N == value])) == 1


def test_rows_that_share_neither_text_nor_group_are_strangers():
    assert clusters_of(np.array([1, 2, 3]), group_N=np.array([8, 7, 9])).tolist() == [0, 1, 2]
    assert clusters_of(np.array([3, 1, 2, 1]), group_N=np.array([7, 8, 9, 9])).tolist() == [1, 0, 0, 0]


PAIRS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30), st.integers(0, 30)), min_size=1, max_size=40)


@given(PAIRS, st.booleans())
def test_pairs_share_a_cluster_exactly_if_common_texts_or_groups_connect_them(rows, with_groups):
    first_N, second_N, group_N = np.array(rows).T
    cluster_N = clusters_of(first_N, second_N, group_N if with_groups else None)
    owned = [{("text", a), ("text", b), *([("group", group)] if with_groups else [])} for a, b, group in rows]
    for start in range(len(rows)):
        reached = set(owned[start])
        while any(own & reached and not own <= reached for own in owned):
            reached |= set().union(*(own for own in owned if own & reached))
        assert [bool(own & reached) for own in owned] == (cluster_N == cluster_N[start]).tolist()


@given(st.lists(st.integers(0, 20), min_size=1, max_size=40))
def test_second_texts_that_each_occur_once_change_no_cluster(firsts):
    first_N = np.array(firsts)
    second_N = 1000 - np.arange(len(first_N))
    assert clusters_of(first_N, second_N).tolist() == clusters_of(first_N).tolist()


def test_a_text_that_connects_most_pairs_is_ignored_in_grouping_with_a_warning(caplog):
    # Pairs 0 to 5 have the second text 90 in common, the pairs behind them 91 and 92.
    first_N = np.array([0, 0, 1, 2, 3, 4, 5, 6, 7, 8])
    second_N = np.array([90, 90, 90, 90, 90, 90, 91, 91, 92, 92])
    assert kept_together(first_N, second_N, None).tolist() == [2, 2, 3, 4, 5, 6, 0, 0, 1, 1]
    told = "6 of the 10 pairs of data.train are grouped by their first text only: shared texts connect 6"
    assert told in caplog.text
    caplog.clear()
    assert kept_together(first_N[2:], second_N[2:], None).tolist() == [0, 0, 0, 0, 1, 1, 2, 2]
    assert caplog.text == "", "half of the pairs"
    by_first = kept_together(first_N[2:], second_N[2:], None, fits=lambda cluster_N: cluster_N.max() >= 5)
    assert by_first.tolist() == list(range(8)) and "8 of the 8 pairs" in caplog.text


def test_a_fold_that_a_large_group_would_leave_empty_gets_a_group():
    cluster_N = np.array([0] * 5 + [1] * 5 + [2])
    label_N = np.array([0] * 5 + [1] * 5 + [0])
    assert sorted(np.bincount(fold_numbers(cluster_N, label_N, count=3, seed=1))) == [1, 5, 5]


LABEL_SETS = st.lists(st.sets(st.integers(0, 5), max_size=4), min_size=4, max_size=60)


def flat(sets):
    counts_N = np.array([len(labels) for labels in sets], np.int64)
    return np.array([label for labels in sets for label in sorted(labels)], np.int64), counts_N


@given(LABEL_SETS, st.integers(2, 4), st.data())
def test_rows_of_several_labels_stay_with_their_cluster_and_fill_every_fold(sets, count, data):
    size = len(sets)
    cluster_N = clusters_of(np.array(data.draw(st.lists(st.integers(0, size), min_size=size, max_size=size))))
    if cluster_N.max() + 1 < count:
        return
    fold_N = fold_numbers(cluster_N, *flat(sets), count=count, seed=1)
    assert set(fold_N) == set(range(count))
    for cluster in set(cluster_N):
        assert len(set(fold_N[cluster_N == cluster])) == 1
    assert (fold_N == fold_numbers(cluster_N, *flat(sets), count=count, seed=1)).all()


@given(LABEL_SETS, st.integers(2, 4))
def test_each_row_of_several_labels_is_spread_by_its_rarest(sets, count):
    rows = Counter(label for labels in sets for label in labels)
    rarest = [min(labels, key=lambda label: (rows[label], label), default=-1) for labels in sets]
    fold_N = fold_numbers(np.arange(len(sets)), *flat(sets), count=count, seed=1)
    assert spread(np.bincount(fold_N, minlength=count)) <= 1
    for label in set(rarest):
        assert spread(np.bincount(fold_N[np.array(rarest) == label], minlength=count)) <= 1


CLUSTERS = st.lists(st.lists(st.integers(0, 3), min_size=2, max_size=5), min_size=4, max_size=14)


@given(CLUSTERS, st.integers(2, 4), st.integers(0, 3))
def test_each_cluster_of_several_rows_goes_where_it_adds_least_to_the_squared_shares(clusters, count, seed):
    label_N = np.array([label for labels in clusters for label in labels])
    cluster_N = np.repeat(np.arange(len(clusters)), list(map(len, clusters)))
    fold_N = fold_numbers(cluster_N, label_N, count=count, seed=seed)
    fold_of = dict(zip(cluster_N.tolist(), fold_N.tolist(), strict=True))
    totals, folds = Counter(label_N.tolist()), [Counter() for _ in range(count)]
    # Largest first, of equal ones in the order that the seed gives.
    order = generator(seed, "folds").permutation(len(clusters)).tolist()
    for cluster in sorted(order, key=lambda one: -len(clusters[one])):
        own = Counter(clusters[cluster])
        costs = [
            (sum(Fraction((rows[label] + own[label]) ** 2 - rows[label] ** 2, totals[label] ** 2) for label in own),
             rows.total())
            for rows in folds
        ]  # fmt: skip
        # A fold that is left empty in the end is given a cluster of another one.
        assume(all(rows for rows in folds) or costs[fold_of[cluster]] == min(costs))
        assert costs[fold_of[cluster]][0] == min(costs)[0]
        if len({cost for cost, _ in costs}) == 1:
            assert costs[fold_of[cluster]] == min(costs), "of equal ones the fold of the fewest rows"
        folds[fold_of[cluster]] += own
