"""Error rates and mean distances with their intervals; suspected labels, against the formulas of the paper."""

import math
import sys

import numpy as np
import pytest

from nlu.config.errors import UserError
from nlu.metrics.kinds import ClassKind, SpanKind, Unit
from nlu.reports.error_statistics import Parts, Probabilities, by_bounds, find_label_errors, mean, rate


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


NAMES = ("a", "b", "c")


def known_of(labels, values_NC):
    rows = [
        {"label": label, "probabilities": dict(zip(NAMES, values, strict=True))}
        for label, values in zip(labels, values_NC.tolist(), strict=True)
    ]
    known = Probabilities(rows[0])
    for row in rows:
        known.add(row)
    return known


def noisy(count=300, seed=0):
    """Rows whose probabilities are near their class, and labels of which one in ten is another class."""
    rng = np.random.default_rng(seed)
    class_N = rng.integers(0, 3, count)
    values_NC = rng.dirichlet(np.ones(3), count) + 1.5 * np.eye(3)[class_N]
    label_N = np.where(rng.random(count) < 0.1, rng.integers(0, 3, count), class_N)
    return label_N, values_NC / values_NC.sum(1, keepdims=True)


def test_suspects_are_those_of_the_paper_the_least_probable_label_first():
    pytest.importorskip("cleanlab")
    label_N, values_NC = noisy()
    found = find_label_errors(known_of([NAMES[label] for label in label_N], values_NC), are_sets=False)
    # Section 3.1 of the paper, row by row.
    threshold_C = np.array([values_NC[label_N == label, label].mean() for label in range(3)])
    wanted = {}
    for row, (label, values_C) in enumerate(zip(label_N, values_NC, strict=True)):
        reached = [c for c in range(3) if values_C[c] >= threshold_C[c]]
        if reached and max(reached, key=lambda c: values_C[c]) != label:
            wanted[row] = values_C[label]
    assert [suspect.number for suspect in found] == sorted(wanted, key=wanted.__getitem__) and 10 < len(wanted) < 60
    first = found[0]
    others_C = np.where(np.arange(3) == label_N[first.number], -1, values_NC[first.number])
    assert (first.label, first.likely) == (NAMES[label_N[first.number]], NAMES[others_C.argmax()])
    assert first.self_confidence == pytest.approx(wanted[first.number])


def test_a_class_without_rows_and_probabilities_that_do_not_add_up_do_no_harm():
    pytest.importorskip("cleanlab")
    label_N, values_NC = noisy()
    kept_N = label_N < 2
    labels = [NAMES[label] for label in label_N[kept_N]]
    values_NC = values_NC[kept_N]
    plain = find_label_errors(known_of(labels, values_NC), are_sets=False)
    halved = find_label_errors(known_of(labels, values_NC / 2), are_sets=False)
    assert [one.number for one in plain] == [one.number for one in halved] != []


def test_each_label_of_a_set_is_checked_separately():
    pytest.importorskip("cleanlab")
    rng = np.random.default_rng(0)
    has_NC = rng.random((200, 3)) < 0.5
    values_NC = np.where(has_NC, 0.9, 0.1) + rng.uniform(-0.05, 0.05, (200, 3))
    has_NC[7, 1] = ~has_NC[7, 1]
    labels = [[name for name, has in zip(NAMES, has_C, strict=True) if has] for has_C in has_NC]
    (suspect,) = find_label_errors(known_of(labels, values_NC), are_sets=True)
    assert suspect.number == 7 and suspect.likely == ("not b" if has_NC[7, 1] else "b")
    as_said = values_NC[7, 1] if has_NC[7, 1] else 1 - values_NC[7, 1]
    assert suspect.self_confidence == pytest.approx(as_said)


def test_without_cleanlab_the_command_that_installs_it_is_named(monkeypatch):
    for name in ("cleanlab", "cleanlab.filter"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UserError, match=r"needs cleanlab; install it with pip install 'nlu\[errors\]'"):
        find_label_errors(known_of(["a", "b"], np.full((2, 3), 1 / 3)), are_sets=False)


def test_labels_that_cannot_be_judged_are_reported():
    with pytest.raises(UserError, match="the same label"):
        find_label_errors(known_of(["a", "a"], np.full((2, 3), 1 / 3)), are_sets=False)
    with pytest.raises(UserError, match="not finite"):
        find_label_errors(known_of(["a", "b"], np.array([[0.1, 0.2, np.nan]] * 2)), are_sets=False)
