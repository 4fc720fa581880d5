"""What is doubtful in labels and texts: said alike by training, nlu.preprocess and nlu.data, with rows and a key."""

import json
import logging
import time
from pathlib import Path

import pytest

from nlu.data.facts import describe, lines
from nlu.data.findings import Collector
from nlu.data.reading import Reading

CLASSES, SETS = "nlu.data.targets.Classes", "nlu.data.targets.LabelSet"


@pytest.fixture
def warned(write, open_files):
    """The warnings of a training set of these (text, label) rows, or of the content of a file."""

    def lines_of(rows, target=CLASSES, name="train.jsonl", fields=None, **settings):
        if not isinstance(rows, str):
            rows = "".join(json.dumps({"text": f"a text {n}", "label": row}) + "\n" for n, row in enumerate(rows))
            fields = fields or {"text": "text", "label": "label"}
        train = write(name, rows)
        store = open_files(target=target, train=train, dev=train, fields=fields, **settings)
        start = "data: train: warning: "
        return [line.removeprefix(start) for line in lines(describe(store)) if line.startswith(start)]

    return lines_of


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        (["good", "Good", "GOOD", "bad"], "in case (good, Good, GOOD: 12 rows)"),
        (["ne\u0301gatif", "n\u00e9gatif", "bad"], "in Unicode form (ne\u0301gatif, n\u00e9gatif: 8 rows)"),
        (["Ａ", "A", "b"], "in Unicode form (Ａ, A: 8 rows)"),
        (["好评", "好评。", "差评"], "in a final mark (好评, 好评。: 8 rows)"),
        (["not entailment", "not_entailment", "entailment"], "in blanks, hyphens or invisible characters (not ent"),
        (["good", "go\u200bod", "bad"], "in blanks, hyphens or invisible characters (good, go\u200bod: 8 rows)"),
        (["1", "01", "1.0", "2"], "in the digits of a number (1, 01, 1.0: 12 rows)"),
        (["Very Good", "very_good.", "bad"], "in several of these (Very Good, very_good.: 8 rows)"),
        (["-1", "1", "10", "2019", "2019-2"], None),
        ([".", ",", "?", "C", "C++", "C#"], None),
    ],
)
def test_labels_that_differ_only_as_written_are_named_with_their_rows(warned, labels, said):
    found = [line for line in warned(labels * 4) if "differ only" in line]
    assert bool(found) == (said is not None)
    if said is not None:
        (line,) = found
        rarer = line.partition("(")[2]
        assert f"labels that differ only {said}" in line and "data.labels" in line and rarer.count("train.jsonl:") == 3


@pytest.mark.parametrize("spelled", ["nan", "None", "NULL", "N/A", "<NA>"])
def test_a_label_that_spells_an_absent_value_is_named(warned, spelled):
    (found,) = [line for line in warned(["x", "y", spelled] * 5) if "may mean none" in line]
    assert found.startswith(f"5 rows with the label {spelled}") and "train.jsonl:3, " in found


@pytest.mark.parametrize(
    ("labels", "key"),
    [
        (["Drama, Comedy", "Drama", "Action, Comedy", "Action"], "', '"),
        (["speed,taste", "speed", "price,taste"], "','"), (["a;b", "b;c", "a;c"], "';'"),
        (["速度、口味", "口味", "速度"], "'、'"), (["toxic obscene", "toxic", "obscene"], "' '"),
        (["a / b", "a", "b", "c"], "'/'"),
        (["food/drink", "sports/outdoors", "home"], None), (["credit card", "credit report", "loan"], None),
        (["Kids, toys", "Books, films"], None), (["0,5", "1,0", "1,5"], None),
    ],
)  # fmt: skip
def test_cells_that_seem_to_hold_several_labels_name_the_separator(warned, labels, key):
    for target in (CLASSES, SETS):
        found = [line for line in warned(labels * 3, target) if "no row has more than one label" in line]
        assert [f"data.label_separator={key}" in line for line in found] == [True] * (key is not None)
        assert all(("task=multilabel" in line) == (target == CLASSES) for line in found)


def test_label_sets_that_are_read_otherwise_than_meant_are_named(warned):
    flags = [[0, 1, 1], [1, 0, 0]] * 3
    assert "3 rows with a label twice, such as a" in warned([["a", "a"], ["b"], ["a", "b"]] * 3, SETS)[0]
    assert "6 rows with a list of a 0 or 1 for each label, such as [0, 1, 1]" in warned(flags, SETS)[0]
    assert warned(flags, SETS, labels=["x", "y", "z"]) == []
    assert "task=multilabel reads lists" in warned(["['a', 'b']", "['a']"] * 3)[0]
    assert "every row has one label, 0 or 1" in warned(["0", "1"] * 3, SETS)[0]
    assert "the label is empty in 4 of 6 rows" in warned(["a", "", "", "b", "", ""], SETS)[0]
    assert warned([["a", "b"], ["b"], [], []] * 3, SETS) == []


def test_doubled_quotes_and_headers_of_numbered_columns_are_named(warned):
    cells = '"he said ""yes"" to me"\tgood\n"""yes"""\tbad\nsay "yes"\tgood\n"no"\tbad\n'
    (quoted,) = warned(cells, name="train.tsv", fields={"text": 0, "label": 1})
    assert "2 cells of text begin and end with a quote" in quoted and "train.tsv:1, " in quoted
    assert quoted.endswith("data.quote='\"' reads them")
    assert warned(cells, name="train.tsv", fields={"text": 0, "label": 1}, quote='"') == []
    rows = "".join(f"one {n}\t{'ab'[n % 2]}\n" for n in range(9))
    for header in ("plot\tgenre\n", "review\ta\n"):
        given = {"name": "t.tsv", "fields": {"text": 0, "label": 1}}
        (title,) = (one for one in warned(header + rows, **given) if "header" in one)
        assert "data.header=true" in title and "t.tsv:1)" in title
        assert not any("header" in one for one in warned(header + rows, **given, header=False))


def test_a_store_that_is_found_and_nlu_data_say_the_same(write, open_files, survey, caplog):
    train = write("train.csv", "text,label\n" + "".join(f"a {n},{('x', 'X', 'y')[n % 3]}\n" for n in range(30)))
    settings = {"train": train, "fields": {"text": "text", "label": "label"}}
    said = []
    for _ in range(2):
        with caplog.at_level(logging.INFO):
            said.append([line for line in lines(describe(open_files(**settings))) if "differ" in line])
    assert any(line.endswith(": found") for line in caplog.messages) and said[0] == said[1] and len(said[0]) == 1
    remarks = survey(str(train))["remarks"]
    assert [f"data: {line.replace('train: ', 'train: warning: ')}" for line in remarks if "differ" in line] == said[0]


def test_many_labels_take_little_memory_and_time():
    seen = Collector(Reading({"text": 0, "label": 1}, "tsv", None, None, None), Path("rows.tsv"))
    begun = time.process_time()
    for number in range(100_000):
        seen.see((0, number), {"text": "a text of some words", "label": str(number)})
    assert len(seen._labels) == 10_000 and time.process_time() - begun < 2
