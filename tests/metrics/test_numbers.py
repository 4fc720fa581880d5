"""Scores of numbers against values worked out by hand."""

import math

import numpy as np
import pytest

from nlu.metrics.numbers import NumberScorer


def scores_of(labels: list[float], predictions: list[float]) -> dict[str, float]:
    scorer = NumberScorer([])
    for label, prediction in zip(labels, predictions, strict=True):
        scorer.add({"label": label, "prediction": prediction, "loss": (label - prediction) ** 2})
    return scorer.result().metrics


def test_numbers_are_scored_as_by_hand() -> None:
    # Deviations of the labels: -2 -1 0 3; of the predictions: -1.5 0.5 -0.5 1.5.
    scores = scores_of([1.0, 2.0, 3.0, 6.0], [1.0, 3.0, 2.0, 4.0])
    assert scores["mae"] == (0 + 1 + 1 + 2) / 4
    assert scores["rmse"] == pytest.approx(math.sqrt((0 + 1 + 1 + 4) / 4))
    assert scores["r2"] == pytest.approx(1 - 6 / (4 + 1 + 0 + 9))
    covariance, spreads = 3 - 0.5 + 0 + 4.5, 14 * (2.25 + 0.25 + 0.25 + 2.25)
    assert scores["pearson"] == pytest.approx(covariance / math.sqrt(spreads))
    # Ranks 1 2 3 4 against 1 3 2 4: 1 - 6 * 2 / (4 * 15).
    assert scores["spearman"] == pytest.approx(1 - 6 * 2 / 60)
    assert scores["loss"] == 6 / 4


def test_equal_numbers_share_their_rank() -> None:
    scores = scores_of([1.0, 2.0, 2.0, 3.0], [1.0, 2.0, 3.0, 4.0])
    ranks = np.array([[1, 2.5, 2.5, 4], [1, 2, 3, 4]])
    assert scores["spearman"] == pytest.approx(np.corrcoef(ranks)[0, 1])


def test_numbers_that_differ_by_little_have_a_correlation() -> None:
    scores = scores_of([0.1, 0.2, 0.4], [0.02, 0.03, 0.05])
    assert scores["pearson"] == pytest.approx(1.0) and scores["spearman"] == pytest.approx(1.0)
    assert math.isfinite(scores["r2"])


def test_a_correlation_with_a_constant_is_nan() -> None:
    scores = scores_of([1.0, 2.0, 3.0], [2.0, 2.0, 2.0])
    assert math.isnan(scores["pearson"]) and math.isnan(scores["spearman"])
    assert scores["r2"] == 0.0 and scores["mae"] == pytest.approx(2 / 3)
    for label in (2.0, 0.1):
        # Of three 0.1 the mean is not 0.1.
        assert math.isnan(scores_of([label] * 3, [1.0, 3.0, 2.0])["r2"])
