"""Predictions of tasks with many labels stay small on disk."""

import json

from nlu.metrics.kinds import with_largest
from nlu.metrics.label_sets import LabelSetScorer


def test_of_more_than_100_labels_the_20_largest_probabilities_are_kept():
    few = {"prediction": "l5", "probabilities": {f"l{i}": i / 4950 for i in range(100)}}
    assert with_largest(few) is few
    many = {"prediction": "l5", "probabilities": {f"l{i}": (i * 37 % 101) / 5050 for i in range(101)}}
    kept = with_largest(many)["probabilities"]
    assert list(kept.items()) == sorted(many["probabilities"].items(), key=lambda item: -item[1])[:20]
    assert with_largest({"number": 1.5}) == {"number": 1.5}


def test_label_sets_of_such_records_are_scored_without_the_average_precision():
    names = [f"l{i}" for i in range(101)]
    record = {"label": ["l1"], "prediction": ["l1", "l2"], "probabilities": dict.fromkeys(names, 0.1), "loss": 0.5}
    whole, joined = LabelSetScorer(names), LabelSetScorer(names)
    whole.add(record)
    joined.add(json.loads(json.dumps(with_largest(record))))
    of_whole, of_joined = whole.result().metrics, joined.result().metrics
    assert of_whole.pop("average_precision") > 0
    assert of_joined == of_whole and of_joined["f1_micro"] == 2 / 3
