"""Error rates and mean distances with their intervals."""

import math

import numpy as np
import pytest

from nlu.reports.errors.slices import by_bounds, mean, rate, slice_of


@pytest.mark.parametrize(("wrong", "rows"), [(0, 5), (3, 10), (10, 10), (41, 938)])
def test_a_rate_has_the_interval_of_wilson(wrong, rows):
    z, p = 1.959963984540054, wrong / rows
    middle = (p + z**2 / (2 * rows)) / (1 + z**2 / rows)
    half = z / (1 + z**2 / rows) * math.sqrt(p * (1 - p) / rows + z**2 / (4 * rows**2))
    found = rate("some", rows, wrong)
    assert (found.rows, found.wrong, found.value) == (rows, wrong, p)
    assert (found.low, found.high) == pytest.approx((max(0.0, middle - half), min(1.0, middle + half)), abs=1e-12)


def test_a_mean_distance_has_that_of_a_normal_mean():
    distance_N = np.array([1.0, 2.0, 6.0, 3.0])
    half = 1.959963984540054 * np.std(distance_N, ddof=1) / 2
    found = mean("some", distance_N)
    assert found.wrong is None and found.value == 3.0
    assert (found.low, found.high) == pytest.approx((3 - half, 3 + half))
    assert mean("one", distance_N[:1]).low is None


def test_without_rows_there_is_no_rate():
    for is_rate in (True, False):
        empty = slice_of("none", np.zeros(0), is_rate)
        assert (empty.rows, empty.value, empty.low, empty.high) == (0, None, None, None)


def test_rows_are_cut_at_bounds_that_belong_to_the_part_below():
    value_N, length_N = np.array([1.0, 0.0, 1.0, 1.0]), np.array([8, 9, 16, 40])
    parts = by_bounds(value_N, length_N, [8, 16, 32], ["to 8", "to 16", "to 32", "above"], is_rate=True)
    assert [(part.name, part.rows, part.wrong) for part in parts] == [("to 8", 1, 1), ("to 16", 2, 1), ("above", 1, 1)]
