"""Rows of a query with several second texts: the pairs that they become, whatever the file, and the errors."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nlu.config.errors import DataError
from nlu.data.collate import collate
from nlu.data.layouts import LAYOUTS
from nlu.data.shapes import Shape, Shapes, filled

RELEVANCE = {"target": "nlu.data.targets.Relevance", "layout": ("sides", "pair")}
PAIRS = [("a b", "c", 1), ("a b", "d", 0), ("a b", "e f", 0), ("g", "h", 1), ("k", "l m", 1), ("k", "c", 0)]
ROWS = [
    {"text_a": "a b", "text_b": "c", "negatives": ["d", "e f"]},
    {"text_a": "g", "text_b": "h", "negatives": ["", None]},
    {"text_a": "k", "text_b": "l m", "negatives": ["c"]},
]
CANDIDATES = [("a b", ["c", "d", "e f"], [2, 0, 0.5]), ("g", ["h"], ["yes"]), ("k", ["l m", "c"], [1, 0])]


def jsonl(rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


def pairs(store, name="train"):
    part = store.sets[name]
    labels = part.target.relevances(part.stored, part.rows_N).tolist()
    return [(*texts.values(), label) for texts, label in zip(part.texts(), labels, strict=True)]


FILES = {
    "a.jsonl": (jsonl(ROWS), {}),
    "json lists.csv": ('text_a,text_b,negatives\na b,c,"[""d"", ""e f""]"\ng,h,\nk,l m,c\n', {}),
    "python lists.tsv": ("text_a\ttext_b\tnegatives\na b\tc\t['d', 'e f']\ng\th\t[]\nk\tl m\t['c']\n", {}),
    "columns.csv": (
        "q,p,n1,n2\na b,c,d,e f\ng,h,, \nk,l m,c,\n",
        {"fields": {"text_a": "q", "text_b": "p", "negatives": ["n1", "n2"]}},
    ),
    "numbers.tsv": (
        "a b\tc\td\te f\ng\th\t\t\nk\tl m\t\tc\n",
        {"fields": {"text_a": 0, "text_b": 1, "negatives": [2, 3]}},
    ),
    "absent.jsonl": (
        jsonl([{"text_a": "a b", "text_b": "c", "n": "d", "m": "e f"}, {"text_a": "g", "text_b": "h"},
               {"text_a": "k", "text_b": "l m", "m": "c"}]),
        {"fields": {"text_a": "text_a", "text_b": "text_b", "negatives": ["n", "m"]}},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_negatives_become_pairs_with_label_0_behind_their_positive(name, write, open_files):
    content, settings = FILES[name]
    path = write(name, content)
    assert pairs(open_files(train=path, dev=path, **{"fields": None} | settings, **RELEVANCE)) == PAIRS


def test_negatives_of_parquet_are_lists(tmp_path, open_files):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.Table.from_pylist(ROWS), path)
    assert pairs(open_files(train=path, dev=path, **RELEVANCE)) == PAIRS


@pytest.mark.parametrize("kind", ["jsonl", "csv"])
def test_candidates_have_a_label_each(kind, write, open_files):
    if kind == "jsonl":
        content = jsonl({"q": q, "c": c, "rel": labels} for q, c, labels in CANDIDATES)
    else:
        lines = (f'{q},"{str(c)}","{labels}"\n' for q, c, labels in CANDIDATES)
        content = "q,c,rel\n" + "".join(lines)
    path = write(f"a.{kind}", content)
    fields = {"text_a": "q", "candidates": "c", "label": "rel"}
    found = pairs(open_files(train=path, dev=path, fields=fields, **RELEVANCE))
    assert found == [("a b", "c", 2), ("a b", "d", 0), ("a b", "e f", 0.5), *PAIRS[3:]]


def test_pairs_know_the_row_of_their_file_and_duplicates_drop_out_one_by_one(write, open_files):
    path = write("a.jsonl", jsonl([ROWS[0], ROWS[2], {**ROWS[0], "negatives": ["x", "d"]}]))
    train = open_files(train=path, dev=path, drop_duplicates=True, **RELEVANCE).sets["train"]
    assert [train.place(example).rpartition(":")[2] for example in range(len(train))] == ["1", "1", "1", "2", "2", "3"]
    assert [texts["text_b"] for texts in train.texts()] == ["c", "d", "e f", "l m", "c", "x"]


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ({"text_a": "a", "text_b": "b", "negatives": [5]}, ":2: field negatives: 5 is not a text"),
        ({"text_a": "a", "text_b": " ", "negatives": ["c"]}, ":2: field text_b: ' ' is empty"),
        ({"text_a": "a", "text_b": "b", "label": "good", "negatives": []}, ":2: field label: 'good' is neither a num"),
    ],
)
def test_a_bad_row_is_named_by_its_place_in_the_file(row, problem, write, open_files):
    first = {"text_a": "x", "text_b": "y", "negatives": ["z"], "label": 1}
    path = write("a.jsonl", jsonl([first, {"label": None, **row}]))
    with pytest.raises(DataError, match=problem.replace("(", r"\(")):
        open_files(train=path, dev=path, **RELEVANCE)


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ({"candidates": ["b", "c"], "label": [1]}, "field label: .1. is not a list with a label for each of the 2"),
        ({"candidates": ["b", "c"]}, "field label: null is not a list with a label for each of the 2"),
        ({"candidates": "b", "label": [1]}, "field candidates: 'b' is not a list of texts"),
        ({"candidates": ["b", ""], "label": [1, 0]}, "field candidates: '' is empty"),
    ],
)
def test_candidates_without_their_labels_are_bad_rows(row, problem, write, open_files):
    path = write("a.jsonl", jsonl([{"text_a": "a", **row}]))
    fields = {"text_a": "text_a", "candidates": "candidates", "label": "label"}
    with pytest.raises(DataError, match=rf":1: {problem}"):
        open_files(train=path, dev=path, fields=fields, **RELEVANCE)


def test_a_batch_has_one_sequence_for_the_query_of_several_rows(write, open_files):
    path = write("a.jsonl", jsonl(ROWS))
    part = open_files(train=path, dev=path, **RELEVANCE).sets["train"]
    whole = collate(part, np.arange(6))
    # Three queries and six second texts; c occurs for two queries and is encoded twice.
    assert whole.num_sequences == 9 and len(set(whole.sequences_KB[0].tolist())) == 3
    apart = LAYOUTS["sides"].pack(part.stored, part.rows_N[whole.examples_B])
    for side in range(2):
        for shared, own in zip(whole.sequences_KB[side].tolist(), apart.sequences_KB[side].tolist(), strict=True):
            start, own_start = int(whole.starts_S[shared]), int(apart.starts_S[own])
            tokens = whole.tokens_T[start : start + whole.lengths[shared]].tolist()
            assert tokens == apart.tokens_T[own_start : own_start + int(apart.lengths_S[own])].tolist()


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 1], [2], [2, 3, 5]])
def test_what_decides_the_random_numbers_of_a_row_is_the_same_in_any_batch(order, write, open_files):
    path = write("a.jsonl", jsonl(ROWS))
    part = open_files(train=path, dev=path, **RELEVANCE).sets["train"]

    def identities(examples):
        batch = collate(part, np.array(examples))
        places = batch.sequences_KB[:, batch.examples_B.tolist().index(2)].tolist()
        example_S, number_S = batch.identities_S()
        return [(int(example_S[place]), int(number_S[place])) for place in places]

    assert identities(order) == identities(range(6)) and identities(order)[1] == (2, 1)


def test_labels_and_queries_of_a_batch_are_those_of_its_rows(write, open_files):
    path = write("a.tsv", "a\tb\t1\na\tc\t0\nd\tb\t2.5\n")
    fields = {"text_a": 0, "text_b": 1, "label": 2}
    for layout in ("pair", "sides"):
        part = open_files(train=path, dev=path, fields=fields, **(RELEVANCE | {"layout": layout})).sets["train"]
        batch = collate(part, np.arange(3))
        by_example = dict(zip(batch.examples_B.tolist(), batch.targets["queries"].tolist(), strict=True))
        labels = dict(zip(batch.examples_B.tolist(), batch.targets["labels"].tolist(), strict=True))
        assert labels == {0: 1.0, 1: 0.0, 2: 2.5} and by_example[0] == by_example[1] != by_example[2]


def test_a_batch_of_shared_sequences_is_filled_up_to_a_shape_that_holds_its_rows(write, open_files):
    path = write("a.jsonl", jsonl(ROWS))
    part = open_files(train=path, dev=path, **RELEVANCE).sets["train"]
    batch = collate(part, np.arange(6))
    full = filled(batch, Shapes([Shape.of(batch)]))
    assert full.sequences_KB.shape[1] >= 6 and full.sequences_KB[:, :6].tolist() == batch.sequences_KB.tolist()
    assert full.filling.rows == 6 and full.targets["labels"][:6].tolist() == batch.targets["labels"].tolist()


@pytest.mark.parametrize("text", ["[deleted]", "{x}", "[12 13] days", "set()"])
def test_a_negative_that_only_looks_like_a_list_stays_a_text(text, write, open_files):
    path = write("a.csv", f"text_a,text_b,negatives\na b,c,{text}\ng,h,k\n")
    assert pairs(open_files(train=path, dev=path, fields=None, **RELEVANCE))[1] == ("a b", text, 0)


def test_an_empty_label_in_a_list_is_a_bad_row(write, open_files):
    path = write("a.jsonl", jsonl([{"text_a": "a", "candidates": ["b", "c"], "label": [1, None]}]))
    with pytest.raises(DataError, match=r"a.jsonl:1.*label.*holds an empty label"):
        open_files(train=path, dev=path, fields=None, **RELEVANCE)


def test_a_list_that_ends_too_early_is_a_bad_row(write, open_files):
    path = write("a.jsonl", jsonl([{"text_a": "a", "text_b": "b", "negatives": '["c", "d"'}]))
    with pytest.raises(DataError, match=r"a.jsonl:1.*negatives.*begins like a list of texts, but is none"):
        open_files(train=path, dev=path, fields=None, **RELEVANCE)
