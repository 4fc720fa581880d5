"""Thresholds by class, a class for texts below them, and scores of chosen classes, while training."""

import numpy as np
import pytest

from nlu.config.errors import UserError
from nlu.losses.bce import Bce
from nlu.losses.bce_multilabel import BceMultilabel
from nlu.losses.cross_entropy import CrossEntropy
from nlu.tasks.classify import Classify
from nlu.tasks.multilabel import Multilabel
from tests.tasks.conftest import scored

TABLE = {"fields": {"text": 0, "label": 1}}
THREE = "v\ta\nw\tb\nx\tc\ny\tc\n"


def log(rows):
    """Logits whose softmax has these probabilities."""
    return np.log(np.array(rows, np.float64)).astype(np.float32)


PROBABILITIES = [[0.5, 0.3, 0.2], [0.2, 0.45, 0.35], [0.1, 0.2, 0.7], [0.4, 0.25, 0.35]]


@pytest.mark.parametrize(
    ("options", "predicted"),
    [
        ({}, ["a", "b", "c", "a"]),
        ({"threshold": 0.48}, ["a", "a", "c", "a"]),
        ({"threshold": 0.48, "fallback": "c"}, ["a", "c", "c", "c"]),
        ({"threshold": {"b": 0.46}, "fallback": "c"}, ["a", "c", "c", "a"]),
        ({"threshold": {"a": 0.45, "c": 0.75}, "fallback": "b"}, ["a", "b", "b", "b"]),
    ],
)
def test_a_text_below_the_threshold_of_its_best_class_gets_the_fallback(store_of, options, predicted):
    store = store_of("a.tsv", THREE, Classify, **TABLE)
    task = Classify(CrossEntropy(), store.target, **options)
    scores, records = scored(task, store, log(PROBABILITIES))
    assert [row["prediction"] for row in records] == predicted
    of_class = [p["abc".index(name)] for p, name in zip(PROBABILITIES, predicted, strict=True)]
    assert [row["probability"] for row in records] == pytest.approx(of_class)
    assert scores.metrics["accuracy"] == np.mean([one == right for one, right in zip(predicted, "abcc", strict=True)])
    # The loss is that of the probabilities, whatever is decided.
    assert scores.metrics["loss"] == pytest.approx(-np.mean(np.log([0.5, 0.45, 0.7, 0.35])))
    # The mean of several runs has probabilities, and what is decided without a threshold.
    for record, name in zip(records, predicted, strict=True):
        assert task.finished({**record, "prediction": "?"}, {})["prediction"] == (name if options else "?")


def test_a_class_of_rejection_has_a_threshold_for_each_other_class(store_of):
    store = store_of("a.tsv", THREE, Classify, **TABLE)
    # sigmoid: 0.73, 0.62, 0.5, 0.27. The most probable class that reaches its threshold is predicted, else the first.
    logits = np.array([[9, 1, 0.5], [9, 0.5, 0], [9, 1, -1], [9, -1, 0]], np.float32)
    loss = Bce(threshold={"b": 0.75, "c": 0.55})
    _, records = scored(Classify(loss, store.target), store, logits)
    assert [row["prediction"] for row in records] == ["c", "a", "a", "a"]
    _, records = scored(Classify(Bce(threshold={"c": 0.9}), store.target), store, logits)
    assert [row["prediction"] for row in records] == ["b", "b", "b", "a"]
    with pytest.raises(UserError, match=r"loss\.threshold differs by class.*nlu\.predict"):
        _ = loss.logit_of_first


def test_labels_have_a_threshold_each_which_is_no_metric(store_of):
    store = store_of("a.tsv", "v\ta;b\nw\tb\nx\ta\n", Multilabel, label_separator=";", **TABLE)
    probabilities = np.array([[0.3, 0.6], [0.2, 0.5], [0.5, 0.1]])
    logits = np.log(probabilities / (1 - probabilities)).astype(np.float32)
    task = Multilabel(BceMultilabel(), store.target, threshold={"a": 0.25})
    scores, records = scored(task, store, logits)
    # b is not named, so its threshold is 0.5.
    assert [row["prediction"] for row in records] == [["a", "b"], ["b"], ["a"]]
    assert scores.metrics["f1_micro"] == 1.0 and set(scores.metrics) == set(task.metrics)
    assert "threshold" not in task.metrics
    task = Multilabel(BceMultilabel(), store.target, threshold={"b": 0.55})
    scores, records = scored(task, store, logits)
    assert [row["prediction"] for row in records] == [["b"], [], ["a"]]
    assert scores.metrics["recall_micro"] == pytest.approx(2 / 4)
    # Another set keeps them.
    assert task.scorer({"loss": 1.0}).threshold == {"b": 0.55}


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            lambda target: Classify(CrossEntropy(), target, threshold={"aa": 0.5}),
            "task.threshold: aa is an unknown cla",
        ),
        (
            lambda target: Classify(CrossEntropy(), target, threshold=0.5, fallback="d"),
            "task.fallback: d is an unknown",
        ),
        (
            lambda target: Classify(CrossEntropy(), target, chosen_classes=["a", "ab"]),
            "chosen_classes: ab is an unknown",
        ),
        (lambda target: Classify(Bce(), target, threshold=0.5), "this loss decides by its own rule"),
        (lambda target: Classify(Bce(threshold={"cc": 0.5}), target), "loss.threshold: cc is an unknown class"),
        (lambda target: Classify(Bce(threshold={"a": 0.5}), target), "a is the first class"),
    ],
)
def test_classes_that_the_data_do_not_have_are_refused(store_of, make, words):
    store = store_of("a.tsv", THREE, Classify, **TABLE)
    with pytest.raises(UserError) as refused:
        make(store.target)
    assert words in str(refused.value)
