"""Labels as files of the world write them: lists in cells, zeros and ones, a column for each label."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nlu.config.errors import DataError
from nlu.data.dataset import Files
from nlu.data.lists_in_cells import listed_labels
from nlu.data.readers import read_rows
from nlu.data.targets import Classes, LabelSet


def files(**settings):
    return Files(train="a.csv", **settings)


def names_of(target, values):
    """The labels of each row, by name, in the order of their numbers."""
    read_rows = [target.read({"label": value}) for value in values]
    assert [problem for _, problem in read_rows if problem] == []
    target.close()
    final = target.remap or range(len(target.names))
    return [sorted(target.names[final[number]] for number in numbers) for numbers, _ in read_rows]


@pytest.mark.parametrize(
    ("cell", "labels"),
    [("['cs.CV', 'cs.LG']", ["cs.CV", "cs.LG"]), ('["a","b, c"]', ["a", "b, c"]), ("['a' 'b c']", ["a", "b c"]),
     ("['a'\n 'b' \"it's\"]", ["a", "b", "it's"]), ("{a,b}", ["a", "b"]), ('{"two words",b}', ["two words", "b"]),
     ("{'b', 'a'}", ["a", "b"]), ("('a',)", ["a"]), ("[Action Movie, Comedy]", ["Action Movie", "Comedy"]),
     ("[0 1 0]", [0, 1, 0]), ("[0. 1.]", [0, 1]), ("[]", []), ("set()", []), (" ['a', 'b'] ", ["a", "b"]),
     ("['新闻', '体育']", ["新闻", "体育"]), ("[True, False]", [True, False]), ('["a|b"]', ["a|b"])],
)  # fmt: skip
def test_a_cell_that_is_a_list_is_read_whoever_wrote_it(cell, labels):
    assert listed_labels(cell) == labels


@pytest.mark.parametrize(
    "cell", ["a", "", "[", "(a, b)", "[A]|[B]", "['a\\x']", "['open]", "__import__('os')", "【a】"]
)
def test_other_cells_are_no_lists_and_nothing_is_evaluated(cell):
    assert listed_labels(cell) is None


def test_lists_and_separators_in_cells_make_the_same_sets():
    expected = [["a", "b"], ["b"], [], ["a"]]
    for values in (["['a', 'b']", "['b']", "[]", "['a']"], ["a, b", "b", "", "a"], [["a", "b"], ["b"], [], ["a"]]):
        assert names_of(LabelSet(files(label_separator=", ")), values) == expected
    assert names_of(LabelSet(files()), ["[a]|[b]", "[b]", "", "[a]"]) == expected


@pytest.mark.parametrize(
    "rows",
    [
        [[1, 0, 1], [0, 0, 1], [0, 0, 0]],
        ["[1 0 1]", "[0 0 1]", "[0. 0. 0.]"],
        ["1|0|1", "0|0|1", "0|0|0"],
        [[True, False, True], [False, False, True], [False] * 3],
    ],
)
def test_a_list_of_zeros_and_ones_has_one_for_each_label(rows):
    target = LabelSet(files())
    assert names_of(target, rows) == [["0", "2"], ["2"], []]
    assert target.names == ["0", "1", "2"]
    assert names_of(LabelSet(files(labels=["x", "y", "z"])), rows) == [["x", "z"], ["z"], []]
    assert "has 4 zeros and ones, but there are 3 labels" in target.read({"label": [0, 0, 1, 1]})[1][1]


def test_numbers_of_classes_are_not_taken_for_zeros_and_ones():
    assert names_of(LabelSet(files()), [[27], [0, 1], [1]]) == [["27"], ["0", "1"], ["1"]]
    assert names_of(LabelSet(files(labels=["x", "y"])), [[0, 1], [1, 1]]) == [["y"], ["x", "y"]]
    assert "set data.labels to these two" in LabelSet(files()).read({"label": [0, 0]})[1][1]


def test_a_list_of_one_label_is_that_label_and_several_need_another_task():
    target = Classes(files())
    assert [target.read({"label": value})[0] for value in (["neg"], "neg", ["pos"])] == [0, 0, 1]
    assert "task=multilabel reads" in target.read({"label": ["neg", "pos"]})[1][1]
    assert "empty list" in target.read({"label": []})[1][1]


@pytest.mark.parametrize(
    "written",
    [[{"a": 1.0, "b": 1.0, "c": 0.0}, {"a": 0.0, "b": 1.0, "c": 0.0}],
     [{"a": True, "b": True}, {"a": False, "b": True}],
     [[{"id": 1, "name": "a"}, {"id": 2, "name": "b"}], [{"id": 2, "name": "b"}]],
     [[{"label": "a"}, {"label": "b"}], [{"label": "b"}]],
     ['[{"id": 1, "name": "a"}, {"id": 2, "name": "b"}]', "[{'id': 2, 'name': 'b'}]"]],
)  # fmt: skip
def test_labels_may_be_objects_with_names_or_an_object_of_zeros_and_ones(write, written):
    path = write("a.jsonl", "\n".join(json.dumps({"text": "x", "cats": label}) for label in written))
    rows = read_rows(path, "auto", {"text": "text", "label": "cats"}, None)
    assert names_of(LabelSet(files()), [row.values["label"] for row in rows]) == [["a", "b"], ["b"]]


COLUMNS = {"text": "comment", "label": ["toxic", "threat", "rude"]}
COMMENTS = [
    {"comment": f"{word} words", "toxic": word == "bad", "threat": False, "rude": word != "good"}
    for word in ("bad", "good", "mean")
]


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl", "a.parquet"])
def test_each_label_may_have_a_column_of_its_own_in_every_format(tmp_path, name):
    path, written = tmp_path / name, [{**row, "toxic": int(row["toxic"])} for row in COMMENTS]
    if name == "a.csv":
        cells = [
            ["comment", "toxic", "threat", "rude"],
            ["bad words", "1", "", "True"],
            ["good words", "0.0", "no", "0"],
        ]
        path.write_text("\n".join(map(",".join, [*cells, ["mean words", "0", "0", "yes"]])))
    elif name == "a.jsonl":
        path.write_text("\n".join(map(json.dumps, written)))
    else:
        pq.write_table(pa.Table.from_pylist(written), path)
    rows = list(read_rows(path, "auto", COLUMNS, None))
    assert [row.values["label"] for row in rows] == [["toxic", "rude"], [], ["rude"]]
    # One of the columns applies in no row, and it is a label all the same.
    assert LabelSet(files(fields=COLUMNS)).names == COLUMNS["label"]


def test_a_cell_of_a_label_that_is_neither_0_nor_1_is_a_bad_row_with_its_column(write):
    path = write("a.csv", "comment,toxic,threat,rude\nx,1,0.17,0\n")
    (row,) = read_rows(path, "auto", COLUMNS, None)
    assert row.sentence.startswith("field threat: '0.17' is neither 0 nor 1")
    with pytest.raises(DataError, match=r"data\.fields\.label is 'threat', but the header has"):
        list(read_rows(write("b.csv", "comment,toxic,rude\nx,1,0\n"), "auto", COLUMNS, None))
