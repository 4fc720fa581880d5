"""Scores of sets of labels against values worked out by hand."""

import math

import numpy as np
import pytest

from nlu.metrics.label_sets import LabelSetScorer

NAMES = ["a", "b", "c"]
ROWS = [  # what is right, and the probabilities of a, b, c
    (["a"], [0.9, 0.2, 0.1]),
    (["a", "b"], [0.8, 0.4, 0.3]),
    ([], [0.1, 0.2, 0.1]),
    (["b"], [0.6, 0.7, 0.2]),
]


def scored(threshold: float | None, rows: list[tuple[list[str], list[float]]] = ROWS) -> LabelSetScorer:
    scorer = LabelSetScorer(NAMES, threshold)
    for label, probabilities in rows:
        scorer.add({"label": label, "probabilities": dict(zip(NAMES, probabilities, strict=True)), "loss": 0.25})
    return scorer


def test_sets_of_labels_are_scored_as_by_hand() -> None:
    # At 0.5: {a}, {a}, {}, {a, b}; right are a, a, b of 4 predicted and 4 wanted.
    result = scored(0.5).result()
    scores = result.metrics
    assert scores["precision_micro"] == 3 / 4 and scores["recall_micro"] == 3 / 4 and scores["f1_micro"] == 3 / 4
    # a: 2 of 3 predicted, 2 wanted; b: 1 of 1 predicted, 2 wanted; c occurs nowhere.
    assert scores["f1_macro"] == pytest.approx((4 / 5 + 2 / 3) / 2)
    assert scores["f1_samples"] == pytest.approx((1 + 2 / 3 + 1 + 2 / 3) / 4)
    assert scores["exact_match"] == 2 / 4
    assert scores["threshold"] == 0.5 and scores["loss"] == 0.25
    names = ("label", "examples", "correct", "precision", "recall")
    assert [tuple(row[name] for name in names) for row in result.by_label] == [
        ("a", 2, 2, 2 / 3, 1.0), ("b", 2, 1, 1.0, 1 / 2), ("c", 0, 0, 0.0, 0.0),
    ]  # fmt: skip
    assert [row["f1"] for row in result.by_label] == pytest.approx([4 / 5, 2 / 3, 0.0])


def test_a_probability_that_is_the_threshold_is_enough() -> None:
    # a of the last row is wrong and has 0.6, which single precision cannot represent; b there has 0.7.
    assert scored(0.6).result().metrics["precision_micro"] == 3 / 4
    assert scored(0.61).result().metrics["precision_micro"] == 1.0
    assert scored(0.7).result().metrics["recall_micro"] == 3 / 4


def test_average_precision_is_over_the_labels_that_occur() -> None:
    from sklearn import metrics

    # a is ranked 0.9, 0.8 before the others: 1. b: 0.7 right, 0.4 right, then the rest: 1.
    assert scored(0.5).result().metrics["average_precision"] == pytest.approx(1.0)
    swapped = [(["b"], [0.9, 0.1, 0.0]), *ROWS[1:]]
    labels = np.array([[0, 1, 0], [1, 1, 0], [0, 0, 0], [0, 1, 0]])
    probabilities = np.array([row[1] for row in swapped], np.float32)
    expected = np.mean([metrics.average_precision_score(labels[:, c], probabilities[:, c]) for c in (0, 1)])
    assert scored(0.5, swapped).result().metrics["average_precision"] == pytest.approx(expected)


def test_the_tuned_threshold_is_the_best_of_all() -> None:
    from sklearn import metrics

    rng = np.random.default_rng(0)
    label_NC = rng.random((40, 3)) < 0.4
    probability_NC = np.round(np.clip(label_NC * 0.3 + rng.random((40, 3)) * 0.7, 0, 1), 2).astype(np.float32)
    chosen = LabelSetScorer(NAMES).best(label_NC, probability_NC)

    def micro_f1(threshold: float) -> float:
        return metrics.f1_score(label_NC, probability_NC >= np.float32(threshold), average="micro", zero_division=0)

    assert micro_f1(chosen) == max(micro_f1(threshold) for threshold in np.unique(probability_NC))


def test_a_tuned_threshold_is_half_way_to_the_next_lower_probability_or_to_nothing() -> None:
    def best(labels: list[int], *probabilities: float) -> float:
        return LabelSetScorer(NAMES).best(np.array([labels], bool), np.array([probabilities], np.float32))

    assert best([1, 0, 0], 0.75, 0.25, 0.125) == 0.5
    assert best([1, 1], 0.75, 0.25) == 0.125
    # Of equal scores the lowest: with the first one right of one, or the third of three wanted and predicted.
    assert best([1, 0, 0, 1], 0.75, 0.5, 0.25, 0.125) == 0.0625
    # No number lies between neighbours of single precision.
    above = np.float32(0.75)
    below = np.nextafter(above, np.float32(0))
    # Half way is rounded up to the first of these, and down from the second.
    assert best([1, 0], above, below) == above
    assert best([1, 0], below, np.nextafter(below, np.float32(0))) == below
    assert best([1, 0], np.nextafter(below, np.float32(0)), 0.0) == np.float32(np.nextafter(below, np.float32(0)) / 2)


def test_a_set_without_any_label_has_scores() -> None:
    scores = scored(0.5, [([], [0.1, 0.1, 0.1])]).result().metrics
    assert scores["f1_micro"] == 0.0 and scores["exact_match"] == scores["f1_samples"] == 1.0
    assert math.isnan(scores["average_precision"])


def test_without_any_label_the_tuned_threshold_is_that_of_even_odds() -> None:
    scores = scored(None, [([], [0.1, 0.4, 0.2])]).result().metrics
    assert scores["threshold"] == 0.5 and scores["exact_match"] == 1.0
