"""Suspected labels, against the formulas of the paper and cleanlab itself."""

import sys

import numpy as np
import pytest

from nlu.config.errors import UserError
from nlu.reports.errors.label_errors import Probabilities, find_label_errors

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


@pytest.mark.parametrize("rank_by", ["self-confidence", "normalized-margin"])
def test_the_confident_joint_is_that_of_the_paper(rank_by):
    pytest.importorskip("cleanlab")
    label_N, values_NC = noisy()
    found = find_label_errors(known_of([NAMES[label] for label in label_N], values_NC), rank_by, are_sets=False)
    # Section 3.1 of the paper, row by row.
    threshold_C = np.array([values_NC[label_N == label, label].mean() for label in range(3)])
    assert list(found.thresholds.values()) == pytest.approx(threshold_C.tolist())
    wanted = set()
    for row, (label, values_C) in enumerate(zip(label_N, values_NC, strict=True)):
        reached = [c for c in range(3) if values_C[c] >= threshold_C[c]]
        if reached and max(reached, key=lambda c: values_C[c]) != label:
            wanted.add(row)
    assert {suspect.number for suspect in found.suspects} == wanted and 10 < len(wanted) < 60
    first = found.suspects[0]
    own = values_NC[np.arange(len(label_N)), label_N]
    others = np.where(np.eye(3, dtype=bool)[label_N], -1, values_NC).max(1)
    score_N = own if rank_by == "self-confidence" else own - others
    assert first.number == min(wanted, key=lambda row: score_N[row])
    score = (own[first.number], own[first.number] - others[first.number])
    assert (first.self_confidence, first.margin) == pytest.approx(score)
    scores = [score_N[suspect.number] for suspect in found.suspects]
    assert scores == sorted(scores)


def test_label_errors_equal_those_of_cleanlab():
    filters, counts = pytest.importorskip("cleanlab.filter"), pytest.importorskip("cleanlab.count")
    label_N, values_NC = noisy(seed=1)
    found = find_label_errors(known_of([NAMES[label] for label in label_N], values_NC), "self-confidence", False)
    theirs = filters.find_label_issues(
        label_N, values_NC, filter_by="confident_learning", return_indices_ranked_by="self_confidence", n_jobs=1
    )
    assert [suspect.number for suspect in found.suspects] == theirs.tolist()
    joint_CC = counts.estimate_joint(label_N, values_NC)
    assert found.estimated == pytest.approx(300 * (1 - np.trace(joint_CC)))
    assert found.confused == sorted(found.confused, key=lambda entry: -entry[2])


def test_a_class_without_rows_and_probabilities_that_do_not_add_up_do_no_harm():
    pytest.importorskip("cleanlab")
    label_N, values_NC = noisy()
    kept_N = label_N < 2
    labels = [NAMES[label] for label in label_N[kept_N]]
    values_NC = values_NC[kept_N]
    plain = find_label_errors(known_of(labels, values_NC), "self-confidence", False)
    halved = find_label_errors(known_of(labels, values_NC / 2), "self-confidence", False)
    assert list(plain.thresholds) == ["a", "b"]
    assert [one.number for one in plain.suspects] == [one.number for one in halved.suspects] != []


def test_each_label_of_a_set_is_checked_separately():
    pytest.importorskip("cleanlab")
    rng = np.random.default_rng(0)
    has_NC = rng.random((200, 3)) < 0.5
    values_NC = np.where(has_NC, 0.9, 0.1) + rng.uniform(-0.05, 0.05, (200, 3))
    has_NC[7, 1] = ~has_NC[7, 1]
    labels = [[name for name, has in zip(NAMES, has_C, strict=True) if has] for has_C in has_NC]
    (suspect,) = find_label_errors(known_of(labels, values_NC), "self-confidence", are_sets=True).suspects
    assert suspect.number == 7 and suspect.likely == ("not b" if has_NC[7, 1] else "b")
    as_said = values_NC[7, 1] if has_NC[7, 1] else 1 - values_NC[7, 1]
    assert suspect.self_confidence == pytest.approx(as_said) and suspect.margin == pytest.approx(2 * as_said - 1)


def test_without_cleanlab_the_command_that_installs_it_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "cleanlab", None)
    with pytest.raises(UserError, match=r"needs cleanlab; install it with pip install 'nlu\[errors\]'"):
        find_label_errors(known_of(["a", "b"], np.full((2, 3), 1 / 3)), "self-confidence", False)


def test_labels_that_cannot_be_judged_are_reported():
    with pytest.raises(UserError, match="the same label"):
        find_label_errors(known_of(["a", "a"], np.full((2, 3), 1 / 3)), "self-confidence", False)
    with pytest.raises(UserError, match="not finite"):
        find_label_errors(known_of(["a", "b"], np.array([[0.1, 0.2, np.nan]] * 2)), "self-confidence", False)
