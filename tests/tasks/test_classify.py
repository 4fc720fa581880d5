"""Scores and predictions of classified rows."""

import numpy as np
import pytest

from nlu.losses.bce import Bce
from nlu.losses.cross_entropy import CrossEntropy
from nlu.tasks.classify import Classify, Match
from tests.tasks.conftest import scored

TABLE = {"fields": {"text": 0, "label": 1}}


def logits_of(rows):
    return np.array(rows, np.float32)


def classified(store, rows, task=Classify, loss=None, **settings):
    return scored(task(loss or CrossEntropy(), store.target), store, logits_of(rows), **settings)


def test_each_example_has_its_label_prediction_and_probability(store_of):
    store = store_of("a.tsv", "x\tno\n\ny\tyes\nz\tno\n", Classify, **TABLE)
    scores, records = classified(store, [[1, 0], [1, 0], [0, 0.5]])
    assert [(row["label"], row["prediction"]) for row in records] == [("no", "no"), ("yes", "no"), ("no", "yes")]
    sure = np.exp(1) / (np.exp(1) + 1)
    assert records[0]["probability"] == pytest.approx(sure)
    assert records[0]["probabilities"] == pytest.approx({"no": sure, "yes": 1 - sure})
    assert records[0]["loss"] == pytest.approx(-np.log(sure))
    assert scores.metrics["accuracy"] == pytest.approx(1 / 3)
    assert [(row["label"], row["examples"], row["correct"]) for row in scores.by_label] == [("no", 2, 1), ("yes", 1, 0)]


@pytest.mark.parametrize("classes", [2, 3])
def test_the_scores_are_those_that_the_task_declares(store_of, classes):
    store = store_of("a.tsv", "".join(f"x\t{i}\n" for i in range(classes)), Classify, **TABLE)
    scores, _ = classified(store, np.eye(classes))
    binary = Classify.binary_metrics if classes == 2 else ()
    assert set(scores.metrics) == {*Classify.metrics, *binary}
    assert Classify.default_metric in Classify.metrics and set(Classify.lower_is_better) <= set(Classify.metrics)


def test_scores_do_not_depend_on_the_batch(store_of):
    store = store_of("a.tsv", "".join(f"{'x ' * (i % 3 + 1)}\t{i % 2}\n" for i in range(7)), Classify, **TABLE)
    logits = np.random.default_rng(0).normal(size=(7, 2))
    whole, one = (classified(store, logits, batch_size=size) for size in (100, 1))
    assert repr(whole) == repr(one)


def test_matching_is_classifying_pairs(store_of):
    fields = {"text_a": 0, "text_b": 1, "label": 2}
    store = store_of("a.tsv", "x\ty\t1\nx\tz\t0\n", Match, fields=fields)
    scores, _ = classified(store, [[0, 1], [1, 0]], Match)
    assert scores.metrics["accuracy"] == scores.metrics["auc"] == 1.0


def test_with_a_class_of_rejection_what_reaches_no_threshold_belongs_to_it(store_of):
    store = store_of("a.tsv", "x\t0\ny\t1\nz\t2\n", Classify, **TABLE)
    # The first logit is not read; sigmoid(1) = 0.73, sigmoid(-1) = 0.27.
    _, records = classified(store, [[9, -1, -2], [9, 1, -1], [9, 1, 2]], loss=Bce(threshold=0.7))
    assert [row["prediction"] for row in records] == ["0", "1", "2"]
    sigmoid = 1 / (1 + np.exp(-1))
    assert records[1]["probabilities"] == pytest.approx({"0": 1 - sigmoid, "1": sigmoid, "2": 1 - sigmoid})
    _, records = classified(store, [[9, -1, -2], [9, 1, -1], [9, 1, 2]], loss=Bce(threshold=0.8))
    assert [row["prediction"] for row in records] == ["0", "0", "2"]
