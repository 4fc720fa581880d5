"""Any number of labels for a text."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy.special import expit, rel_entr

from nlu.losses.bce_multilabel import BceMultilabel
from nlu.tasks.multilabel import Multilabel
from tests.tasks.conftest import scored

FIELDS = {"text": "text", "label": "topics"}


def rows(*topics):
    return "".join(json.dumps({"text": f"t{i}", "topics": own}) + "\n" for i, own in enumerate(topics))


def test_labels_are_predicted_at_the_threshold(store_of):
    store = store_of("a.jsonl", rows(["x"], [], ["x", "y"]), Multilabel, fields=FIELDS)
    logits = np.array([[2.0, -2.0], [-0.5, -2.0], [1.0, 0.5]], np.float32)
    scores, records = scored(Multilabel(BceMultilabel(), store.target, threshold=0.5), store, logits)
    assert [row["prediction"] for row in records] == [["x"], [], ["x", "y"]]
    assert [row["label"] for row in records] == [["x"], [], ["x", "y"]]
    assert scores.metrics["exact_match"] == scores.metrics["f1_micro"] == 1.0
    sigmoid = 1 / (1 + np.exp(-logits.astype(float)))
    losses = -np.log(np.where([[1, 0], [0, 0], [1, 1]], sigmoid, 1 - sigmoid)).mean(1)
    assert scores.metrics["loss"] == pytest.approx(losses.mean(), rel=1e-6)
    assert set(scores.metrics) == set(Multilabel.metrics)


def test_a_tuned_threshold_is_used_for_the_sets_after_the_first(store_of):
    store = store_of("a.jsonl", rows(["x"], [], ["x", "y"]), Multilabel, fields=FIELDS)
    task = Multilabel(BceMultilabel(), store.target)
    logits = np.array([[-1.0, -4.0], [-3.0, -4.0], [-1.2, -1.5]], np.float32)
    scores, records = scored(task, store, logits)
    assert scores.metrics["f1_micro"] == 1.0 and 0.05 < scores.metrics["threshold"] < 0.2
    assert [row["prediction"] for row in records] == [["x"], [], ["x", "y"]]
    later = task.scorer(scores.metrics)
    assert later.threshold == scores.metrics["threshold"]


def test_a_label_at_the_threshold_is_kept_as_it_was_scored():
    # In single precision 0.7 is a little less than in double.
    task = Multilabel(BceMultilabel(), SimpleNamespace(names=["x", "y"]), threshold=0.7)
    record = {"label": ["x"], "probabilities": {"x": float(np.float32(0.7)), "y": 0.69}, "loss": 0.0}
    scorer = task.scorer({})
    scorer.add(record)
    scores = scorer.result().metrics
    assert scores["exact_match"] == 1.0 and task.finished(record, scores)["prediction"] == ["x"]


def test_the_divergence_of_two_predictions_is_the_mean_of_both_directions():
    logits = [np.array([[2.0, -1.0], [0.5, 0.0]]), np.array([[-1.0, 0.5], [0.5, 3.0]])]
    p, q = (np.stack([expit(values), expit(-values)]) for values in logits)
    expected = (rel_entr(p, q) + rel_entr(q, p)).sum() / 2 / 2
    task = Multilabel(BceMultilabel(), SimpleNamespace(names=["x", "y"]))
    first, second = ({"logits": torch.from_numpy(values)} for values in logits)
    assert task.divergence(None, first, second).item() == pytest.approx(expected)
