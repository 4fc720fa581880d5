"""Error rates and mean distances with their intervals."""

import math

import numpy as np
import pytest

from nlu.metrics.kinds import ClassKind, SpanKind, Unit
from nlu.reports.error_statistics import Parts, by_bounds, mean, rate


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


def test_rows_are_cut_at_bounds_that_belong_to_the_part_below():
    value_N, length_N = np.array([1.0, 0.0, 1.0, 1.0]), np.array([8, 9, 16, 40])
    parts = by_bounds(value_N, length_N, [8, 16, 32], ["to 8", "to 16", "to 32", "above"], is_rate=True)
    assert [(part.name, part.rows, part.wrong) for part in parts] == [("to 8", 1, 1), ("to 16", 2, 1), ("above", 1, 1)]


def parts_of(kind, *units):
    parts = Parts(kind)
    for unit in units:
        parts.add([unit])
    return parts.slices()


def test_classes_with_most_errors_stand_first_with_what_was_predicted_instead():
    first, second = parts_of(
        ClassKind(), Unit("b", "wrong", "c"), Unit("a", "wrong", "b"), Unit("a"), Unit("a", "wrong", "c")
    )
    assert (first.name, first.rows, first.wrong, first.more) == ("a", 3, 2, {"predicted instead": "b 1, c 1"})
    assert (second.name, second.rows, second.wrong, second.more) == ("b", 1, 1, {"predicted instead": "c 1"})


def test_the_faults_of_spans_are_counted_by_type():
    found = parts_of(
        SpanKind(), Unit("A", "wrong type", "B"), Unit("A", "missed"), Unit("A", "invented", is_gold=False), Unit("B"),
        Unit("B", "wrong ends"),
    )  # fmt: skip
    slices = {one.name: one for one in found}
    assert (slices["A"].rows, slices["A"].wrong, slices["A"].more["missed"]) == (2, 2, 1)
    assert slices["A"].more["invented"] == 1 and slices["A"].more["type predicted instead"] == "B 1"
    assert (slices["B"].rows, slices["B"].wrong, slices["B"].more["wrong ends"]) == (2, 1, 1)
