"""Calibration and chosen classes against numbers computed otherwise."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nlu.metrics.calibration import BINS, AreaScorer, CalibrationScorer
from nlu.metrics.classes import ClassScorer, ConfusionScorer

NAMES = ["no", "a", "b"]


def records(seed: int, count: int, names: list[str] = NAMES) -> list[dict[str, Any]]:
    rng = np.random.default_rng(seed)
    # Probabilities on a grid, so that some are equal.
    probability_NC = rng.multinomial(8, [1 / len(names)] * len(names), size=count) / 8
    return [
        {
            "label": names[rng.integers(len(names))], "prediction": names[int(p.argmax())],
            "probability": float(p.max()), "probabilities": dict(zip(names, p.tolist(), strict=True)),
        }
        for p in probability_NC
    ]  # fmt: skip


def told(scorer: Any, rows: list[dict[str, Any]]) -> Any:
    for row in rows:
        scorer.add(row)
    return scorer


@settings(max_examples=40)
@given(seed=st.integers(0, 10_000), count=st.integers(1, 60))
def test_ece_and_brier_are_those_of_numpy(seed: int, count: int) -> None:
    rows = records(seed, count)
    probability_NC = np.array([[row["probabilities"][name] for name in NAMES] for row in rows])
    label_N = np.array([NAMES.index(row["label"]) for row in rows])
    right_N = np.array([row["label"] == row["prediction"] for row in rows])
    top_N = probability_NC.max(1)
    bin_N = np.clip(np.floor(top_N * BINS), 0, BINS - 1)
    gaps = [abs((right_N[bin_N == k] - top_N[bin_N == k]).sum()) for k in range(BINS)]
    scores = told(CalibrationScorer(NAMES), rows).result().metrics
    assert scores["ece"] == pytest.approx(sum(gaps) / count, abs=1e-12)
    assert scores["brier"] == pytest.approx(((probability_NC - np.eye(3)[label_N]) ** 2).sum(1).mean(), abs=1e-12)
    half = told(CalibrationScorer(NAMES), rows[::2])
    half.merge(told(CalibrationScorer(NAMES), rows[1::2]))
    assert half.result().metrics == scores and half.bins() == told(CalibrationScorer(NAMES), rows).bins()


def test_a_probability_is_in_the_bin_of_its_ends() -> None:
    rows = [{**row, "probability": p} for row, p in zip(records(0, 3), (1.0, 0.5, 1 / BINS), strict=True)]
    bins = told(CalibrationScorer(NAMES), rows).bins()
    assert sum(entry["rows"] for entry in bins) == 3 and bins[-1]["to"] == 1
    assert all(entry["from"] - 1e-9 < entry["probability"] < entry["to"] + 1e-9 for entry in bins)


@settings(max_examples=40)
@given(seed=st.integers(0, 10_000), count=st.integers(1, 40))
def test_areas_of_several_classes_are_those_of_scikit_learn(seed: int, count: int) -> None:
    from sklearn import metrics

    rows = records(seed, count)
    probability_NC = np.array([[row["probabilities"][name] for name in NAMES] for row in rows])
    one_hot_NC = np.array([[row["label"] == name for name in NAMES] for row in rows])
    # A class that no row has, or every row, has no curve.
    mixed = [c for c in range(3) if 0 < one_hot_NC[:, c].sum() < count]
    auc_C = [metrics.roc_auc_score(one_hot_NC[:, c], probability_NC[:, c]) for c in mixed]
    precision_C = [metrics.average_precision_score(one_hot_NC[:, c], probability_NC[:, c]) for c in mixed]
    half = told(AreaScorer(NAMES), rows[::2])
    half.merge(told(AreaScorer(NAMES), rows[1::2]))
    wanted = {"auc_macro": auc_C, "average_precision_macro": precision_C}
    wanted = {name: np.mean(values) if mixed else np.nan for name, values in wanted.items()}
    assert half.result().metrics == pytest.approx(wanted, nan_ok=True)
    if len(mixed) == 3:
        label_N = one_hot_NC.argmax(1)
        assert wanted["auc_macro"] == pytest.approx(metrics.roc_auc_score(label_N, probability_NC, multi_class="ovr"))


@settings(max_examples=30)
@given(seed=st.integers(0, 10_000), count=st.integers(1, 40))
def test_chosen_classes_and_the_confusion_matrix_are_those_of_scikit_learn(seed: int, count: int) -> None:
    from sklearn import metrics

    rows = records(seed, count)
    right, predicted = [row["label"] for row in rows], [row["prediction"] for row in rows]
    precision, recall, f1, _ = metrics.precision_recall_fscore_support(
        right, predicted, labels=["a", "b"], average="micro", zero_division=0
    )
    scored = told(ClassScorer(NAMES, chosen_classes=["a", "b"]), [{**row, "loss": 0.0} for row in rows])
    scores = scored.result().metrics
    assert (scores["precision_chosen"], scores["recall_chosen"]) == pytest.approx((precision, recall))
    assert scores["f1_chosen"] == pytest.approx(f1)
    matrix = told(ConfusionScorer(NAMES), rows).matrix()
    assert matrix == metrics.confusion_matrix(right, predicted, labels=NAMES).tolist()
