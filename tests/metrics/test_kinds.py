"""What each kind says of a record, worked out by hand."""

from pathlib import Path
from typing import Any

import pytest

from nlu.config.errors import DataError, UserError
from nlu.metrics.kinds import (
    ClassBySimilarityKind,
    ClassKind,
    Kind,
    LabelSetKind,
    NumberKind,
    SimilarityKind,
    SpanKind,
    Unit,
    UnitClassesKind,
    kind_named,
    kind_of,
)
from nlu.metrics.spans import faults_of
from nlu.runs.predictions import predictions_of, write_predictions


def test_a_class_is_wrong_as_surely_as_its_probability_says() -> None:
    kind = ClassKind()
    wrong = {"label": "a", "prediction": "b", "probability": 0.9}
    right = {"label": "a", "prediction": "a", "probability": 0.6}
    assert (kind.error(wrong), kind.error(right)) == (1.0, 0.0)
    assert (kind.confidence(wrong, {}), kind.confidence(right, {})) == (0.9, 0.6)
    assert list(kind.units(wrong)) == [Unit("a", "wrong", "b")] and list(kind.units(right)) == [Unit("a")]
    assert kind.described(wrong) == {"label": "a", "predicted": "b", "probability": "0.9000"}
    assert kind.cells({}, {**wrong, "probabilities": {}}) == {"prediction": "b", "probability": 0.9}


def test_a_cosine_is_the_surer_the_farther_from_the_threshold() -> None:
    kind, record = ClassBySimilarityKind(), {"label": "0", "prediction": "1", "similarity": 0.9}
    assert kind.error(record) == 1.0
    assert kind.confidence(record, {"threshold": 0.7}) == pytest.approx(0.2)
    assert kind.confidence({**record, "similarity": 0.4}, {"threshold": 0.7}) == pytest.approx(0.3)
    assert kind.cells({}, record) == {"prediction": "1", "similarity": 0.9}


def test_a_set_is_wrong_unless_it_is_whole_and_its_surest_wrong_label_counts() -> None:
    kind, probabilities = LabelSetKind(), {"x": 0.9, "y": 0.2, "z": 0.7}
    wrong = {"label": ["x", "y"], "prediction": ["x", "z"], "probabilities": probabilities}
    right = {"label": ["x"], "prediction": ["x"], "probabilities": probabilities}
    none: dict[str, Any] = {"label": [], "prediction": [], "probabilities": probabilities}
    assert [kind.error(one) for one in (wrong, right, none)] == [1.0, 0.0, 0.0]
    assert [kind.confidence(one, {}) for one in (wrong, right, none)] == [pytest.approx(0.8), 0.0, 0.0]
    assert list(kind.units(wrong)) == [Unit("x"), Unit("y", "missed"), Unit("z", "invented", is_gold=False)]
    assert kind.described(wrong) == {"labels": "x, y", "missed": "y", "invented": "z", "surest": "y 0.8000"}
    assert kind.cells({}, wrong) == {"prediction": ["x", "z"], "probability": [0.9, 0.7]}


def test_a_number_is_as_wrong_as_it_is_far() -> None:
    kind = NumberKind()
    assert not kind.is_binary and kind.error({"label": 2.0, "prediction": 3.5}) == 1.5
    assert kind.error({"label": 5, "prediction": 5.0}) == 0.0 and list(kind.units({"label": 5})) == []
    assert kind.described({"label": 2.0, "prediction": 0.5})["distance"] == "-1.5"


def test_each_fault_of_a_span_has_its_name() -> None:
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
    kind = SpanKind()
    record = {"label": [list(s) for s in wanted], "spans": [list(s) for s in found], "loss": 7.0, "text": "abc" * 20}
    assert (kind.error(record), kind.confidence(record, {})) == (1.0, 7.0)
    assert kind.error({"label": [], "spans": []}) == 0.0
    assert list(kind.units(record)) == [
        Unit("B"), Unit("A", "wrong type", "B"), Unit("B", "wrong ends"), Unit("A", "wrong type and ends", "C"),
        Unit("C", "missed"), Unit("A", "invented", is_gold=False), Unit("A", "missed"),
    ]  # fmt: skip
    assert kind.described(record)["faults"].startswith("wrong type: A 'abc' as B 'abc'; wrong ends: B 'ca' as B 'cab'")
    assert kind.answer({"spans": [(0, 1, "A")]}) == [[0, 1, "A"]]


def test_a_ranking_makes_no_row_right_or_wrong() -> None:
    kind = SimilarityKind()
    assert "rank candidates" in kind.unjudged
    assert kind.cells({}, {"similarity": 0.5}) == {"prediction": 0.5}


class Mine(Kind):
    name, plural, columns = "mine", "mines", {"prediction": "text"}


def test_the_header_of_a_file_names_the_kind_of_its_records(tmp_path: Path) -> None:
    path = tmp_path / "predictions" / "dev.jsonl"
    path.parent.mkdir()
    write_predictions(path, {"kind": f"{__name__}.Mine"}, [])
    assert isinstance(kind_of(predictions_of(tmp_path, "dev"), {"trusted_packages": ["tests"]}), Mine)
    write_predictions(path, {"kind": "antigravity.Mine"}, [])
    with pytest.raises(UserError, match="if you trust antigravity, add it"):
        kind_of(predictions_of(tmp_path, "dev"), {})
    write_predictions(path, {"step": 1}, [])
    with pytest.raises(DataError, match="does not name the kind of its records; score the run again"):
        kind_of(predictions_of(tmp_path, "dev"), {})
    with pytest.raises(UserError, match="WordScorer is not a kind of record"):
        kind_named("nlu.metrics.words.WordScorer")


def test_wrong_units_are_named_with_their_word_and_the_class_that_is_right() -> None:
    record = {"tokens": ["Ann", "sees", "it"], "label": ["N", "V", "P"], "prediction": ["N", "N"], "loss": 0.5}
    assert UnitClassesKind().described(record) == {"faults": "sees: V as N; it: P as cut off", "loss": "0.500"}
