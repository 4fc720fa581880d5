"""Scores and predictions of classified rows."""

import numpy as np
import pytest
from nlu.tasks.outputs import Outputs

from nlu.tasks.classify import Classify, Match

TABLE = {"fields": {"text": 0, "label": 1}}


def outputs_of(rows):
    return Outputs(np.array(rows, np.float32), np.ones(len(rows), np.int64))


def test_each_example_has_its_row_label_prediction_and_probability(store_of):
    store = store_of("a.tsv", "x\tno\n\ny\tyes\nz\tno\n", Classify, **TABLE)
    scores = Classify().scores(outputs_of([[1, 0], [1, 0], [0, 0.5]]), store.sets["dev"], store.labels)
    assert [(row["row"], row["label"], row["prediction"]) for row in scores.predictions] == [
        (1, "no", "no"), (3, "yes", "no"), (4, "no", "yes"),
    ]  # fmt: skip
    assert scores.predictions[0]["probability"] == pytest.approx(np.exp(1) / (np.exp(1) + 1))
    assert scores.metrics["accuracy"] == pytest.approx(1 / 3)
    assert [(row["label"], row["examples"], row["correct"]) for row in scores.by_label] == [("no", 2, 1), ("yes", 1, 0)]


@pytest.mark.parametrize("classes", [2, 3])
def test_the_scores_are_those_that_the_task_declares(store_of, classes):
    store = store_of("a.tsv", "".join(f"x\t{i}\n" for i in range(classes)), Classify, **TABLE)
    scores = Classify().scores(outputs_of(np.eye(classes)), store.sets["dev"], store.labels)
    binary = Classify.binary_metrics if classes == 2 else ()
    assert set(scores.metrics) == {*Classify.metrics, *binary}
    assert Classify.default_metric in Classify.metrics and set(Classify.lower_is_better) <= set(Classify.metrics)


def test_matching_is_classifying_pairs(store_of):
    fields = {"text_a": 0, "text_b": 1, "label": 2}
    store = store_of("a.tsv", "x\ty\t1\nx\tz\t0\n", Match, fields=fields)
    scores = Match().scores(outputs_of([[0, 1], [1, 0]]), store.sets["dev"], store.labels)
    assert scores.metrics["accuracy"] == scores.metrics["auc"] == 1.0
