"""Scores of classifiers against values worked out by hand."""

import math
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, f1_score

from nlu.metrics.classes import ClassScorer, UnitScorer, log_probabilities
from nlu.metrics.scores import Scores
from nlu.tasks.classify import class_records


def scored(logits_NC: np.ndarray, labels_N: np.ndarray, names: list[str]) -> Scores:
    scorer = ClassScorer(names)
    for record in class_records(None, names, labels_N, logits_NC):
        scorer.add(record)
    return scorer.result()


def classification_scores(logits_NC: np.ndarray, labels_N: np.ndarray) -> dict[str, float]:
    return scored(logits_NC, labels_N, [f"c{number}" for number in range(logits_NC.shape[1])]).metrics


def logits_of(predictions, classes, sure=3.0):
    return (np.eye(classes)[predictions] * sure).astype(np.float32)


@pytest.fixture(autouse=True)
def no_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # What another test left open says so whenever it is collected.
        warnings.simplefilter("ignore", ResourceWarning)
        warnings.simplefilter("ignore", pytest.PytestUnraisableExceptionWarning)
        yield


def test_log_probabilities_are_exact_where_logits_are_large():
    log_probs_NC = log_probabilities(np.array([[1000.0, 0.0], [-1000.0, -1000.0]], np.float32))
    assert log_probs_NC.dtype == np.float64
    np.testing.assert_allclose(log_probs_NC, [[0.0, -1000.0], [-math.log(2)] * 2])


def test_the_order_of_examples_by_margin_is_seen_where_the_logits_are_large():
    logits_NC = np.array([[0, 60], [0, 61], [0, 62], [0, 63]], np.float32)
    assert classification_scores(logits_NC, np.array([0, 0, 1, 1]))["auc"] == 1.0


def test_every_class_has_its_row_also_where_it_does_not_occur():
    rows = scored(logits_of(np.array([0, 1, 1]), 3), np.array([0, 0, 1]), ["a", "b", "c"]).by_label
    assert [row["label"] for row in rows] == ["a", "b", "c"]
    assert [(row["examples"], row["correct"]) for row in rows] == [(2, 1), (1, 1), (0, 0)]
    assert [(row["precision"], row["recall"]) for row in rows] == [(1.0, 0.5), (0.5, 1.0), (0.0, 0.0)]
    assert [row["f1"] for row in rows] == pytest.approx([2 / 3, 2 / 3, 0.0])


@settings(max_examples=40)
@given(
    seed=st.integers(0, 10_000), count=st.integers(1, 50), classes=st.integers(2, 5), grid=st.sampled_from([3, 1000])
)
def test_every_score_is_that_of_scikit_learn(seed: int, count: int, classes: int, grid: int) -> None:
    names = [f"c{number}" for number in range(classes)]
    rng = np.random.default_rng(seed)
    label_N, prediction_N = rng.integers(classes, size=(2, count))
    margin_N = rng.integers(grid, size=count) / grid
    scorer = ClassScorer(names)
    for label, prediction, margin in zip(label_N, prediction_N, margin_N, strict=True):
        scorer.add({"label": names[label], "prediction": names[prediction], "margin": margin, "loss": 0.0})
    found, wanted = scorer.result().metrics, scores_of_scikit_learn(label_N, prediction_N, margin_N, classes)
    assert found == pytest.approx(wanted, abs=1e-12, nan_ok=True)


def scores_of_scikit_learn(
    label_N: np.ndarray, prediction_N: np.ndarray, margin_N: np.ndarray, classes: int
) -> dict[str, float]:
    from sklearn import metrics

    both = {"y_true": label_N, "y_pred": prediction_N}
    with warnings.catch_warnings():
        # It warns of a single class, which is what is to be compared too.
        warnings.simplefilter("ignore")
        wanted = {"accuracy": metrics.accuracy_score(**both), "mcc": metrics.matthews_corrcoef(**both), "loss": 0.0}
        for average in ("macro", "weighted"):
            wanted[f"f1_{average}"] = metrics.f1_score(**both, average=average, zero_division=0)
        wanted["precision_macro"] = metrics.precision_score(**both, average="macro", zero_division=0)
        wanted["recall_macro"] = metrics.recall_score(**both, average="macro", zero_division=0)
        if classes == 2:
            for name in ("f1", "precision", "recall"):
                wanted[name] = getattr(metrics, f"{name}_score")(**both, zero_division=0)
            is_mixed = 0 < label_N.sum() < len(label_N)
            wanted["auc"] = metrics.roc_auc_score(label_N, margin_N) if is_mixed else math.nan
            wanted["average_precision"] = metrics.average_precision_score(label_N, margin_N) if is_mixed else math.nan
    return wanted


@given(st.integers(0, 2**32 - 1))
def test_classes_of_units_are_scored_like_single_units_and_what_was_cut_is_wrong(seed):
    rng, names = np.random.default_rng(seed), ["a", "b", "c"][: 2 + seed // 2 % 2]
    scorers = UnitScorer(names), UnitScorer(names)
    label, prediction = list[str](), list[str]()
    for row in range(6):
        one = rng.choice(names[: 2 + seed % 2], rng.integers(1, 6)).tolist()
        two = rng.choice(names, rng.integers(0, len(one) + 1)).tolist()
        scorers[row % 2].add({"label": one, "prediction": two, "loss": 0.5 * len(two)})
        label, prediction = label + one, prediction + two + ["cut"] * (len(one) - len(two))
    scorers[0].merge(scorers[1])
    occurring = sorted({*label, *prediction} - {"cut"})
    assert scorers[0].result().metrics == pytest.approx({
        "accuracy": accuracy_score(label, prediction),
        "f1_macro": f1_score(label, prediction, labels=occurring, average="macro"),
        "loss": 0.5 if {*prediction} != {"cut"} else math.nan,
    }, nan_ok=True)  # fmt: skip
