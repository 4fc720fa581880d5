"""What is wrong with a prediction, worked out by hand."""

import pytest

from nlu.config.errors import UserError
from nlu.reports.errors.judges import judge_of
from nlu.reports.errors.spans import faults_of


def judged(*records, threshold=0.0):
    judge = judge_of(records[0], lambda record: threshold)
    return judge, [judge.add(record) for record in records]


def test_a_class_is_wrong_as_surely_as_its_probability_says():
    judge, found = judged(
        {"label": "a", "prediction": "b", "probability": 0.9}, {"label": "a", "prediction": "a", "probability": 0.6},
        {"label": "b", "prediction": "c", "probability": 0.4}, {"label": "a", "prediction": "c", "probability": 0.8},
    )  # fmt: skip
    assert found == [(1.0, 0.9), (0.0, 0.6), (1.0, 0.4), (1.0, 0.8)]
    first, second = judge.classes()
    assert (first.name, first.rows, first.wrong, first.more) == ("a", 3, 2, {"predicted instead": "b 1, c 1"})
    assert (second.name, second.rows, second.wrong) == ("b", 1, 1)


def test_a_cosine_is_the_surer_the_farther_from_the_threshold():
    _, found = judged({"label": "0", "prediction": "1", "similarity": 0.9}, threshold=0.7)
    assert found == [(1.0, pytest.approx(0.2))]


def test_a_set_is_wrong_unless_it_is_whole_and_its_surest_wrong_label_counts():
    probabilities = {"x": 0.9, "y": 0.2, "z": 0.7}
    records = [
        {"label": ["x", "y"], "prediction": ["x", "z"], "probabilities": probabilities},
        {"label": ["x"], "prediction": ["x"], "probabilities": probabilities},
        {"label": [], "prediction": [], "probabilities": probabilities},
    ]
    judge, found = judged(*records)
    assert found == [(1.0, pytest.approx(0.8)), (0.0, 0.0), (0.0, 0.0)]
    slices = {one.name: (one.rows, one.wrong, one.more["invented"]) for one in judge.classes()}
    assert slices == {"y": (1, 1, 0), "x": (2, 0, 0), "z": (0, 0, 1)}
    assert judge.told(records[0])["missed"] == "y" and judge.told(records[0])["surest"] == "y 0.8000"


def test_a_number_is_as_wrong_as_it_is_far():
    judge, found = judged({"label": 2.0, "prediction": 3.5}, {"label": 5, "prediction": 5.0})
    assert found == [(1.5, 1.5), (0.0, 0.0)] and not judge.is_rate and judge.classes() == []


def test_each_fault_of_a_span_has_its_name():
    wanted = {(0, 2, "A"), (5, 6, "B"), (10, 12, "A"), (20, 21, "C"), (30, 31, "A"), (40, 40, "B")}
    found = {(0, 2, "B"), (5, 7, "B"), (11, 13, "C"), (25, 26, "A"), (40, 40, "B")}
    assert faults_of(wanted, found) == [
        ("wrong type", (0, 2, "A"), (0, 2, "B")),
        ("wrong ends", (5, 6, "B"), (5, 7, "B")),
        ("wrong type and ends", (10, 12, "A"), (11, 13, "C")),
        ("missed", (20, 21, "C"), None),
        ("invented", None, (25, 26, "A")),
        ("missed", (30, 31, "A"), None),
    ]
    record = {"label": [list(s) for s in wanted], "spans": [list(s) for s in found], "loss": 7.0, "text": "abc" * 20}
    judge, values = judged(record, {"label": [], "spans": [], "loss": 1.0})
    assert values == [(1.0, 7.0), (0.0, 1.0)]
    slices = {one.name: one for one in judge.classes()}
    assert (slices["A"].rows, slices["A"].wrong, slices["A"].more["missed"]) == (3, 3, 1)
    assert slices["A"].more["invented"] == 1 and slices["A"].more["type predicted instead"] == "B 1"
    assert (slices["B"].rows, slices["B"].wrong, slices["B"].more["wrong ends"]) == (2, 1, 1)
    assert judge.told(record)["faults"].startswith("wrong type: A 'abc' as B 'abc'; wrong ends: B 'ca' as B 'cab'")


def test_rankings_have_no_wrong_rows():
    with pytest.raises(UserError, match="rank candidates"):
        judged({"label": True, "similarity": 0.5})
