"""Intervals against resamples that are scored otherwise."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from nlu.metrics.bootstrap import MOST_BLOCKS, Blocks, blocks_of, intervals_of_means, metrics_of
from nlu.metrics.calibration import CalibrationScorer
from nlu.metrics.classes import ClassScorer
from nlu.metrics.label_sets import LabelSetScorer
from nlu.metrics.scores import Scorer

NAMES = ["a", "b", "c", "d"]
RESAMPLES, SEED = 60, 3


def intervals(
    make: Callable[[], list[Scorer]], records: list[dict[str, Any]]
) -> tuple[dict[str, Any], dict[str, float]]:
    """Return the intervals of single rows drawn again, and the scores of all."""
    blocks, done = Blocks(make, blocks_of(len(records), SEED)), list[int]()
    for row, record in enumerate(records):
        blocks.add(row, record)
    found = blocks.intervals(RESAMPLES, SEED, done.append)
    assert done == [1] * RESAMPLES, "a bar hears of every resample"
    return found, metrics_of(blocks.whole())


def draws(rows: int) -> list[np.ndarray]:
    """Return the rows of each resample."""
    rng = np.random.default_rng(SEED)
    return [rng.integers(rows, size=rows) for _ in range(RESAMPLES)]


def ends(values: list[float]) -> Any:
    return pytest.approx(np.quantile(values, [0.025, 0.975]).tolist(), abs=1e-12)


def test_a_class_that_a_resample_lacks_keeps_its_score_in_macro_averages() -> None:
    from sklearn import metrics

    rng = np.random.default_rng(0)
    label_N = rng.integers(2, size=60)
    predicted_N = np.where(rng.random(60) < 0.9, label_N, 1 - label_N)
    # One row of a class that is never found, and one of a class that always is: many resamples lack them.
    label_N[:2], predicted_N[:2] = (2, 3), (0, 3)
    found, scores = intervals(
        lambda: [ClassScorer(NAMES)],
        [
            {"label": NAMES[label], "prediction": NAMES[predicted], "loss": 0.0}
            for label, predicted in zip(label_N, predicted_N, strict=True)
        ],
    )
    expected: dict[str, list[float]] = {"f1_macro": [], "precision_macro": [], "recall_macro": []}
    score = metrics.precision_recall_fscore_support
    of_all = score(label_N, predicted_N, labels=range(4), zero_division=0)
    for rows in draws(60):
        of_draw = score(label_N[rows], predicted_N[rows], labels=range(4), zero_division=np.nan)
        for name, own_C, all_C in zip(("precision_macro", "recall_macro", "f1_macro"), of_draw, of_all, strict=False):
            expected[name].append(float(np.where(np.isnan(own_C), all_C, own_C).mean()))
    for name, values in expected.items():
        assert found[name] == ends(values)
        assert found[name][0] < scores[name] < found[name][1]
    assert found["f1_macro"][1] < 0.8, "with the missing class left out of the average it would be more"


def test_a_label_that_a_resample_lacks_keeps_its_score_in_macro_averages_too() -> None:
    from sklearn import metrics

    rng = np.random.default_rng(0)
    label_NC = rng.random((60, 3)) < [0.5, 0.5, 0.0]
    label_NC[0, 2] = True
    probability_NC = np.where(label_NC, 0.6, 0.4) + rng.uniform(-0.2, 0.2, (60, 3))
    probability_NC[:, 2] = np.where(label_NC[:, 2], 0.3, rng.uniform(0, 0.4, 60))
    probability_NC = probability_NC.astype(np.float32).astype(np.float64)
    names = NAMES[:3]
    found, scores = intervals(
        lambda: [LabelSetScorer(names, 0.5)],
        [
            {
                "label": [name for name, own in zip(names, own_C, strict=True) if own], "loss": 0.0,
                "probabilities": dict(zip(names, probability_C.tolist(), strict=True)),
            }
            for own_C, probability_C in zip(label_NC, probability_NC, strict=True)
        ],
    )  # fmt: skip

    def by_label(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        precision_C = [
            metrics.average_precision_score(label_NC[rows, c], probability_NC[rows, c])
            if label_NC[rows, c].any() else np.nan
            for c in range(3)
        ]  # fmt: skip
        f1_C = metrics.f1_score(label_NC[rows], probability_NC[rows] >= 0.5, average=None, zero_division=np.nan)
        return f1_C, np.array(precision_C)

    of_all = by_label(np.arange(60))
    drawn = [[np.where(np.isnan(o), a, o).mean() for o, a in zip(by_label(r), of_all, strict=True)] for r in draws(60)]
    for name, values in zip(("f1_macro", "average_precision"), zip(*drawn, strict=True), strict=True):
        assert found[name] == ends(list(values))
        assert found[name][0] < scores[name] < found[name][1]


def test_the_calibration_error_lies_in_its_own_interval() -> None:
    # Perfectly calibrated, so that every resample is worse.
    probability_N = np.repeat(np.linspace(0.5, 0.95, 20), 20)
    right_N = np.concatenate([np.arange(20) < round(20 * p) for p in np.linspace(0.5, 0.95, 20)])
    records = [
        {
            "label": "a" if right else "b", "prediction": "a", "probability": p, "probabilities": {"a": p, "b": 1 - p},
            "loss": 0.0, "margin": p,
        }
        for p, right in zip(probability_N.tolist(), right_N.tolist(), strict=True)
    ]  # fmt: skip
    found, scores = intervals(lambda: [ClassScorer(NAMES[:2]), CalibrationScorer(NAMES[:2])], records)
    low, high = found["ece"]
    assert 0 <= low <= scores["ece"] <= high < scores["ece"] + 0.05 and low < high


@pytest.mark.parametrize("count", [MOST_BLOCKS + 1, 3 * MOST_BLOCKS, 3 * MOST_BLOCKS + 7])
def test_many_rows_share_blocks_that_differ_by_one_row_at_most(count: int) -> None:
    block_N = blocks_of(count, seed=3)
    sizes = np.bincount(block_N, minlength=MOST_BLOCKS)
    assert len(sizes) == MOST_BLOCKS and sizes.sum() == count and np.ptp(sizes) == (count % MOST_BLOCKS > 0)
    assert (block_N != np.arange(count) % MOST_BLOCKS).any(), "chance puts them together"
    np.testing.assert_array_equal(blocks_of(count, seed=3), block_N)
    assert (blocks_of(count, seed=4) != block_N).any()


def test_a_group_is_never_divided_among_blocks() -> None:
    group_N = np.random.default_rng(0).permutation(np.repeat(np.arange(2 * MOST_BLOCKS + 1), 3))
    block_N = blocks_of(len(group_N), 1, group_N)
    assert all(len(set(block_N[group_N == group])) == 1 for group in range(2 * MOST_BLOCKS + 1))
    groups = [len(set(group_N[block_N == block])) for block in range(MOST_BLOCKS)]
    assert sorted(set(groups)) == [2, 3]


def test_intervals_of_means_over_queries_resample_the_queries() -> None:
    rng = np.random.default_rng(1)
    by_query, done = {"mrr": rng.random(30).tolist(), "recall_1": rng.random(30).tolist()}, list[int]()
    found = intervals_of_means(by_query, RESAMPLES, SEED, done.append)
    for name, values in by_query.items():
        assert found[name] == ends([np.array(values)[rows].mean() for rows in draws(30)])
    assert done == [1] * RESAMPLES


def test_nothing_is_said_of_a_score_that_a_resample_does_not_have() -> None:
    found = intervals_of_means({"a": [0.5, float("nan"), 0.25], "b": [0.5, 0.5, 0.5]}, 40, SEED, lambda done: None)
    assert found == {"a": None, "b": [0.5, 0.5]}
