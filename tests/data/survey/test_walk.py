"""What the walk counts of a set, at each of its bounds, against counts made by hand."""

import json
from pathlib import Path
from typing import Any

import pytest

from nlu.data.readers import Fields
from nlu.data.survey import walk as walk_module
from nlu.data.survey.sources import of_files
from nlu.data.survey.walk import Source, Survey, label_of, walk

FIELDS: Fields = {"text": "text", "label": "label"}


def source_of(path: Path, rows: list[dict[str, Any]], fields: Fields = FIELDS, max_rows: int | None = None) -> Source:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    (source,) = of_files([str(path)], fields, "auto", None, max_rows)
    return source


def walked(source: Source) -> Survey:
    done = []
    survey = walk(source, None, done.append)
    assert sum(done) == len(survey) + survey.bad.count, "the bar counts every row"
    return survey


def of_labels(folder: Path, labels: list[Any]) -> Survey:
    rows = [{"text": f"text {n}"} | ({} if label is None else {"label": label}) for n, label in enumerate(labels)]
    return walked(source_of(folder / "rows.jsonl", rows))


@pytest.mark.parametrize(
    ("labels", "kind"),
    [
        ([str(n) for n in range(50)] * 2, "classes"),
        ([str(n) for n in range(51)] * 2, "numbers"),
        ([n / 4 for n in range(1, 11)] * 2, "classes"),
        ([n / 4 for n in range(1, 12)] * 2, "numbers"),
        # An empty row does not count as a text; one text among numbers makes them classes.
        ([None, *(n / 4 for n in range(20))], "numbers"),
        (["", *(str(n) for n in range(60))], "numbers"),
        (["x", *(str(n) for n in range(60))], "classes"),
        ([*(str(n) for n in range(60)), "x"], "classes"),
        ([f"name {n}" for n in range(60)], "classes"),
        ([0.5], "classes"),
        ([None, None], "nothing"),
        ([["a"], [], ["a", "b"]], "labels"),
        ([[], []], "nothing"),
    ],
)
def test_the_kind_of_labels_is_recognized_by_their_values_and_number(
    tmp_path: Path, labels: list[Any], kind: str
) -> None:
    assert of_labels(tmp_path, labels).kind == kind


def test_only_so_many_different_labels_are_counted_and_those_of_them_to_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(walk_module, "MOST_LABELS", 2)
    assert of_labels(tmp_path, ["b", "a", "c", "a", "d", "b", "b"]).labels == {"b": 3, "a": 2}


@pytest.mark.parametrize(
    ("tags", "labels"),
    [
        ("B-x I-x O I-x B-y", {"x": 2, "y": 1}), ("B-x B-x I-y", {"x": 2, "y": 1}),
        ("S-x B-x E-x M-y E-y", {"x": 2, "y": 1}), ("U-x L-x", {"x": 2}),
        ("x x O y", {"x": 2, "y": 1}), ("O O", {}), ("I_x I_x", {"x": 1}),
    ],
)  # fmt: skip
def test_spans_are_counted_where_they_begin_in_any_scheme(tmp_path: Path, tags: str, labels: dict[str, int]) -> None:
    row = {"tokens": ["w"] * len(tags.split()), "tags": tags.split()}
    survey = walked(source_of(tmp_path / "t.jsonl", [row], {"tokens": "tokens", "tags": "tags"}))
    assert survey.labels == labels and survey.kind == "spans" and survey.has_labels == bool(labels)


@pytest.mark.parametrize(
    ("values", "label"),
    [
        ({"tags": ["B-x", "O"]}, "B-x O"), ({"label": ["b", "a"]}, "a | b"), ({"label": []}, "(none)"),
        ({"label": " a "}, "a"), ({"label": " "}, "(none)"), ({"label": None}, "(none)"), ({"label": 0}, "0"),
        ({"text": "a"}, "(none)"), ({"tags": ["O"], "label": "x"}, "O"), ({"spans": None, "label": "x"}, "(none)"),
    ],
)  # fmt: skip
def test_equal_labels_are_one_text_however_they_are_written(values: dict[str, Any], label: str) -> None:
    assert label_of(values) == label
