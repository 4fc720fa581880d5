"""Samples of a set: the right number of rows of each class, whole groups, and the same rows each time."""

from collections import Counter
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from nlu.config.errors import UserError
from nlu.data.dataset import Files
from nlu.data.examples import Examples, rows_of_each_class, sampled
from nlu.data.layouts import LAYOUTS
from nlu.data.targets import Classes, Number, Relevance, Target

LABELS = np.array([0] * 60 + [1] * 30 + [2] * 7 + [3] * 3)
CLASSES = Classes(Files(train="", labels=["a", "b", "c", "d"]))


class Stored:
    """The columns of a stored set that a sample depends on."""

    def __init__(self, target_N: np.ndarray, group_N: np.ndarray | None = None, first_N: np.ndarray | None = None):
        self.target_N = target_N
        self.group_N = np.zeros(len(target_N), np.int64) if group_N is None else group_N
        self.first_N = np.arange(len(target_N)) if first_N is None else first_N
        self.lengths_N = np.ones(len(target_N), np.int64)

    def scalars(self, name: str, rows_N: np.ndarray) -> np.ndarray:
        assert name == "target"
        return self.target_N[rows_N]


def part(stored: Stored, target: Target = CLASSES, rows_N: np.ndarray | None = None) -> Examples:
    rows_N = np.arange(len(stored.target_N)) if rows_N is None else rows_N
    found: Any = stored
    return Examples("dev", found, rows_N, target, LAYOUTS["single"])


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (50, {0: 30, 1: 15, 2: 4, 3: 1}),  # 30, 15, 3.5 and 1.5: of equal remainders the first class gets the row
        (10, {0: 6, 1: 3, 2: 1}),
        (1, {0: 1}),
        (99, {0: 59, 1: 30, 2: 7, 3: 3}),
    ],
)
def test_each_class_has_its_share(rows: int, expected: dict[int, int]) -> None:
    found = sampled(part(Stored(LABELS)), rows, seed=1)
    assert len(found) == rows
    assert Counter(LABELS[found.rows_N].tolist()) == expected and (np.diff(found.rows_N) > 0).all()


def test_the_rows_depend_on_the_seed_and_on_nothing_else() -> None:
    whole = part(Stored(LABELS))
    first, again, other = (sampled(whole, 40, seed).rows_N.tolist() for seed in (1, 1, 2))
    assert first == again != other
    # Of a set that lacks some of the rows, such as a fold, the others are drawn in the same order.
    one_class, some_N = Stored(np.zeros(100, int)), np.arange(0, 100, 3)
    expected = np.intersect1d(sampled(part(one_class), 60, 1).rows_N, some_N)
    assert 10 < len(expected) < 30
    assert sampled(part(one_class, rows_N=some_N), len(expected), 1).rows_N.tolist() == expected.tolist()


def test_every_row_is_as_likely_as_any_other_of_its_class() -> None:
    times_N = np.zeros(100, int)
    for seed in range(400):
        times_N[sampled(part(Stored(LABELS)), 30, seed).rows_N] += 1
    # 400 draws with a probability of 0.3 have a standard deviation of 9; classes have 18, 9, 2 and 1 of 30 rows.
    for label, share in ((0, 18 / 60), (1, 9 / 30), (2, 2 / 7), (3, 1 / 3)):
        assert np.abs(times_N[label == LABELS] - 400 * share).max() < 45


def test_a_set_that_is_not_larger_is_scored_as_a_whole() -> None:
    whole = part(Stored(LABELS))
    assert sampled(whole, 100, 1) is whole and sampled(whole, None, 1) is whole and sampled(whole, 1000, 1) is whole


@pytest.mark.parametrize("by", ["group", "query"])
def test_groups_stay_whole(by: str) -> None:
    rng = np.random.default_rng(0)
    group_N = rng.integers(1, 30, 200) * 7919
    labels_N = rng.integers(0, 2, 200)
    if by == "group":
        whole = part(Stored(labels_N, group_N=group_N))
    else:
        whole = part(Stored(labels_N, first_N=group_N), Relevance(Files(train="")))
    sizes = Counter(group_N.tolist())
    found = sampled(whole, 50, seed=1)
    chosen = Counter(group_N[found.rows_N].tolist())
    assert all(sizes[group] == count for group, count in chosen.items())
    # The last group reaches the number of rows, and without it they would be too few.
    assert 50 <= len(found) < 50 + max(sizes.values())
    other = sampled(whole, 50, seed=2)
    assert set(group_N[other.rows_N]) != set(chosen)


def test_rows_with_several_labels_or_none_are_drawn_as_if_of_one_class() -> None:
    counts_N = np.array([2, 0] * 50)
    several: Any = SimpleNamespace(strata=lambda stored, rows_N: (np.zeros(counts_N.sum(), int), counts_N))
    stored = Stored(np.zeros(100, int))
    assert sampled(part(stored, several), 20, 1).rows_N.tolist() == sampled(part(stored), 20, 1).rows_N.tolist()


def test_rows_of_each_class_are_drawn_by_the_seed_and_contained_in_those_of_more(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stored: Any = Stored(LABELS)
    rows_N = np.arange(len(LABELS))
    drawn = {
        (count, seed): rows_of_each_class(stored, rows_N, CLASSES, count, seed)
        for count in (2, 3, 9)
        for seed in (1, 2)
    }
    assert Counter(LABELS[drawn[3, 1]].tolist()) == {0: 3, 1: 3, 2: 3, 3: 3} and (np.diff(drawn[3, 1]) > 0).all()
    assert drawn[3, 1].tolist() == rows_of_each_class(stored, rows_N, CLASSES, 3, 1).tolist() != drawn[3, 2].tolist()
    assert set(drawn[2, 1]) < set(drawn[3, 1]) < set(drawn[9, 1])
    assert Counter(LABELS[drawn[9, 1]].tolist()) == {0: 9, 1: 9, 2: 7, 3: 3}
    assert "fewer than data.rows_per_class=9 rows have these labels: c 7, d 3" in caplog.text


def test_rows_of_each_class_of_numbers_are_refused() -> None:
    stored: Any = Stored(LABELS)
    with pytest.raises(UserError, match="data.rows_per_class is 8, but .*their target is number"):
        rows_of_each_class(stored, np.arange(100), Number(Files(train="")), 8, 1)
