"""Scores and predictions of classified rows."""

import numpy as np
import pytest

from nlu.losses.cross_entropy import CrossEntropy
from nlu.tasks.classify import Classify
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
