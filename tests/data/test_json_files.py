"""JSON as the world writes it: lists, objects with the rows within, objects of columns, objects over several lines."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nlu.config.errors import DataError
from nlu.data.dialect import Dialect
from nlu.data.originals import Originals
from nlu.data.readers import column_names, read_rows

ROWS = [{"text": f"words {number}", "label": "ab"[number % 2]} for number in range(3)]
PAIRS = [(row["text"], row["label"]) for row in ROWS]
FIELDS = {"text": "text", "label": "label"}


def pairs(path, fields=FIELDS, records=None):
    rows = read_rows(path, "auto", fields, None, dialect=Dialect(records=records))
    return [tuple(row.values.values()) for row in rows]


def by_column(cells):
    return {name: cells(row[name] for row in ROWS) for name in FIELDS}


SHAPES = {
    "one key": {"version": "1", "data": ROWS},
    "two levels": {"rasa_nlu_data": {"common_examples": ROWS, "regex_features": []}},
    "schema and data of pandas": {"schema": {"fields": [{"name": "text"}]}, "data": ROWS},
    "rows by their id": {f"id{number}": row for number, row in enumerate(ROWS)},
    "columns of pandas": by_column(lambda cells: {str(place): cell for place, cell in enumerate(cells)}),
    "columns of lists": by_column(list),
    "index of pandas": {str(number): row for number, row in enumerate(ROWS)},
    "a list": ROWS,
}  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("suffix", "indent"), [("json", None), ("json", 2), ("jsonl", 1)])
def test_rows_are_found_within_a_document_however_it_is_written(write, shape, suffix, indent):
    path = write(f"a.{suffix}", json.dumps(SHAPES[shape], indent=indent))
    assert pairs(path) == PAIRS and {"text", "label"} <= {*column_names(path, "auto")}
    # Predictions are written beside the same rows.
    source = Originals(path, suffix, {"text": "text"}, None)
    assert [(row.values["text"], source.record(whole, "")["label"]) for row, whole in source.rows()] == PAIRS


@pytest.mark.parametrize("between", ["\n", "\n\n", ",\n"])
def test_objects_over_several_lines_are_rows_numbered_by_their_first_line(write, between):
    path = write("a.jsonl", between.join(json.dumps(row, indent=2) for row in ROWS))
    rows = list(read_rows(path, "auto", FIELDS, None))
    step = 4 + between.count("\n") - 1
    assert pairs(path) == PAIRS and [row.number for row in rows] == [1, 1 + step, 1 + 2 * step]


def test_several_lists_are_named_and_a_key_chooses_one(write):
    path = write("a.json", json.dumps({"train": ROWS, "test": ROWS[:1]}))
    with pytest.raises(
        DataError, match=r"several lists: train \(3\), test \(1\); set data\.records .* data\.records=train"
    ):
        pairs(path)
    assert pairs(path, records="test") == PAIRS[:1]
    with pytest.raises(DataError, match=r"data\.records is 'tset'.*nearest: test"):
        pairs(path, records="tset")


def test_lists_may_be_rows_and_their_items_are_named_by_number(write):
    path = write("a.json", json.dumps({"train": [list(pair) for pair in PAIRS], "val": []}))
    assert pairs(path, {"text": 0, "label": 1}, "train") == PAIRS
    assert pairs(write("b.jsonl", "\n".join(json.dumps(pair) for pair in PAIRS)), {"text": 0, "label": 1}) == PAIRS


def test_a_dotted_name_is_a_field_of_a_field(write, tmp_path):
    rows = [{"text": text, "meta": {"of": {"label": label}}} for text, label in PAIRS]
    fields = {"text": "text", "label": "meta.of.label"}
    assert pairs(write("a.jsonl", "\n".join(map(json.dumps, rows))), fields) == PAIRS
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    assert pairs(tmp_path / "a.parquet", fields) == PAIRS


@pytest.mark.parametrize("row", [{"text": "x", "spans": [{"start": 0}]}, {"tokens": ["a", "b"], "tags": ["O", "O"]}])
def test_a_single_row_with_lists_stays_a_row(write, row):
    fields = {role: role for role in row}
    for name, indent in (("a.jsonl", None), ("a.json", 2)):
        (found,) = read_rows(write(name, json.dumps(row, indent=indent)), "auto", fields, None)
        assert found.values == row


@pytest.mark.parametrize("line", ["not json", "{'text': 'x'}", '{"text": "x', "[1, 2]", "3"])
def test_a_file_without_an_object_says_what_its_first_line_is(write, line):
    with pytest.raises(
        DataError, match=r"a\.jsonl:1: the row .* is not .*; write one object with named fields on each"
    ):
        column_names(write("a.jsonl", f"{line}\nmore\n"), "auto")
    # One bad line above good ones is a bad row of its own.
    first, *rest = read_rows(write("b.jsonl", "\n".join([line, *map(json.dumps, ROWS)])), "auto", FIELDS, None)
    assert first.number == 1 and "is not" in first.rule and [tuple(row.values.values()) for row in rest] == PAIRS
