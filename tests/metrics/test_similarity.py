"""Scores of pairs told apart by a cosine."""

import numpy as np
import pytest

from nlu.metrics.classes import SimilarityScorer, most_accurate_cut

NAMES = ["no", "yes"]


def scores_of(rows: list[tuple[float, int]], threshold: float | None) -> dict[str, float]:
    scorer = SimilarityScorer(NAMES, threshold)
    for similarity, label in rows:
        scorer.add({"label": NAMES[label], "similarity": similarity})
    return scorer.result().metrics


ROWS = [(0.9, 1), (0.7, 0), (0.6, 1), (0.2, 0), (0.1, 0)]


def test_a_fixed_threshold_decides() -> None:
    scores = scores_of(ROWS, 0.65)
    assert scores["accuracy"] == 3 / 5 and scores["threshold"] == 0.65
    assert scores["precision"] == scores["recall"] == 1 / 2
    assert scores["auc"] == pytest.approx(5 / 6)


def test_the_highest_of_equally_good_thresholds_counts_even_if_it_accepts_nothing() -> None:
    # None as positive: one right. Both: one right. The first only: none.
    assert most_accurate_cut(np.array([0.8, 0.9]), np.array([1, 0])) == pytest.approx(1.4)
    assert most_accurate_cut(np.array([0.8, 0.9, 0.7]), np.array([1, 0, 1])) == pytest.approx(0.2)


def test_a_tuned_threshold_is_the_most_accurate() -> None:
    scores = scores_of(ROWS, None)
    assert scores["accuracy"] == 4 / 5
    assert scores["threshold"] == pytest.approx(0.8), "the highest of equally good ones"


def test_no_cut_is_better() -> None:
    rng = np.random.default_rng(1)
    label_N = rng.integers(0, 2, 60)
    similarity_N = np.round(label_N * 0.2 + rng.random(60), 1)
    cut = most_accurate_cut(similarity_N, label_N)
    right = [((similarity_N >= other) == label_N).sum() for other in [*np.unique(similarity_N), 2.0]]
    assert ((similarity_N >= cut) == label_N).sum() == max(right)
