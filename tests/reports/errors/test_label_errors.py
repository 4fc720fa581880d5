"""Suspected labels, against the formulas of the paper."""

import sys

import numpy as np
import pytest

from nlu.config.errors import UserError
from nlu.reports.error_statistics import Probabilities, find_label_errors

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
