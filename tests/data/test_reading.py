"""The texts of examples, read again from their files, and stores that lost something, built again."""

import json
import os
import tracemalloc

import pytest

from nlu.config.errors import DataError
from nlu.data import store as store_module
from nlu.data.prepare import is_good

ROWS = [("a b", "1"), ("c", "0"), (" ", "0"), ("d e f", "1"), ("c", "0"), ("g", "1")]


def texts(part):
    return list(part.texts())


@pytest.mark.parametrize("suffix", ["csv", "tsv", "jsonl", "json"])
def test_texts_come_back_for_exactly_the_examples_in_their_order(write, open_files, suffix):
    records = [{"text": text, "label": label} for text, label in ROWS]
    content = {
        "csv": "text,label\n" + "".join(f'"{text}",{label}\n' for text, label in ROWS),
        "tsv": "text\tlabel\n" + "".join(f"{text}\t{label}\n" for text, label in ROWS),
        "jsonl": "".join(json.dumps(record) + "\n\n" for record in records), "json": json.dumps(records),
    }[suffix]  # fmt: skip
    train = write(f"train.{suffix}", content)
    dev = write(f"dev.{suffix}", content)
    fields = {"text": "text", "label": "label"}
    store = open_files(train=[str(train), str(dev)], dev=dev, fields=fields, on_bad_row="skip", drop_duplicates=True)
    assert texts(store.sets["train"]) == [{"text": text} for text in ("a b", "c", "d e f", "g")]
    assert texts(store.sets["dev"]) == [{"text": text} for text in ("a b", "c", "d e f", "c", "g")]


def test_a_set_that_is_split_off_has_its_own_texts(write, open_files):
    train = write("train.tsv", "".join(f"text {i}\t{i % 2}\n" for i in range(9000)))
    store = open_files(train=train, dev_fraction=0.3, max_rows=8000)
    for part in store.sets.values():
        assert texts(part) == [{"text": f"text {number - 1}"} for number in part.stored.number_N[part.rows_N]]


def test_pairs_tokens_and_characters_come_back_by_their_fields(write, open_files):
    pair = write("pair.tsv", "a\tb c\t1\nd\te\t0\n")
    store = open_files("pair", train=pair, dev=pair, fields={"text_a": 0, "text_b": 1, "label": 2})
    assert texts(store.sets["dev"]) == [{"text_a": "a", "text_b": "b c"}, {"text_a": "d", "text_b": "e"}]
    conll = write("t.conll", "a B-X\nb O\n\n-DOCSTART- O\n\nc O\n")
    store = open_files("units", train=conll, dev=conll, fields={"tokens": 0, "tags": 1})
    assert texts(store.sets["dev"]) == [{"tokens": ["a", "b"]}, {"tokens": ["c"]}]
    spans = write("t.jsonl", '{"text": "ab", "label": {"x": {"a": [[0, 0]]}}}\n')
    store = open_files("units", train=spans, dev=spans, fields={"text": "text", "spans": "label"})
    assert texts(store.sets["dev"]) == [{"text": "ab"}]


def test_only_a_row_that_changed_since_is_shown_without_its_text(write, open_files):
    train = write("train.tsv", "a\t1\nb\t0\nc\t1\nd\t0\n")
    store = open_files(train=train, dev=train)
    train.write_text("a\t1\nB\t0\nc\t1\n")
    assert texts(store.sets["dev"]) == [{"text": "a"}, None, {"text": "c"}, None]
    train.write_text("a\t1\nb\nc\t1\nd\t0\n")
    assert texts(store.sets["dev"]) == [{"text": "a"}, None, {"text": "c"}, {"text": "d"}]
    train.write_bytes(b"a\t1\nb\t0\n\xff\t0\n")
    assert texts(store.sets["dev"])[2:] == [None, None]
    train.unlink()
    assert texts(store.sets["dev"]) == [None] * 4


def test_no_more_of_a_file_is_read_than_the_last_example_needs(write, open_files):
    train = write("train.tsv", "".join(f"text {i}\t{i % 2}\n" for i in range(4000)))
    part = open_files(train=train, dev=train).sets["dev"]
    train.write_bytes(train.read_bytes() + b"\xff\n")
    found = part.texts()
    assert next(found) == {"text": "text 0"}


HARM = {
    "a shard is missing": lambda folder: next((folder / "train").glob("*.arrow")).unlink(),
    "a shard was cut short": lambda folder: os.truncate(next((folder / "train").glob("*.arrow")), 1000),
    "a set is missing": lambda folder: os.rename(folder / "dev", folder / "gone"),
    "it was never marked": lambda folder: (folder / "COMPLETE").unlink(),
    "its facts are cut short": lambda folder: os.truncate(folder / "meta.json", 10),
}


@pytest.mark.parametrize("harm", HARM)
def test_a_store_that_lost_something_is_built_again(write, open_files, empty_cache, monkeypatch, harm):
    monkeypatch.setattr(store_module, "SHARD_ROWS", 30)
    lines = "".join(f"text {i}\t{i % 2}\n" for i in range(100))
    settings = {"train": write("train.tsv", lines), "dev": write("dev.tsv", lines)}
    first = open_files(**settings)
    assert is_good(first.folder), "of two that are built at once the one that is whole stays"
    HARM[harm](first.folder)
    assert not is_good(first.folder)
    again = open_files(**settings)
    assert again.folder == first.folder and [len(part) for part in again.sets.values()] == [100, 100]
    assert texts(again.sets["train"]) == [{"text": f"text {i}"} for i in range(100)]
    assert [path.name for path in (empty_cache / "stores").iterdir()] == [again.folder.name]


def test_texts_come_without_a_list_of_all_rows(write, open_files):
    rows = 30_000
    part = open_files(train=(train := write("train.tsv", "a b\t0\nc d\t1\n" * (rows // 2))), dev=train).sets["dev"]
    assert next(part.texts()) == {"text": "a b"}
    tracemalloc.start()
    try:
        assert sum(found is not None for found in part.texts()) == rows
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # Where the rows lie, as arrays, and what the reader holds; a Python number is 32 bytes, and 8 in its list.
    assert most < 70 * rows, f"{most / rows:.0f} bytes a row"


def test_a_field_that_no_column_is_called_like_is_named_with_the_columns_of_the_file(write, open_files):
    train = write("t.csv", "text_a,sentence,label\na,b,1\nc,d,0\n")
    with pytest.raises(DataError, match=r"needs text_b as well; set data\.fields to .* \(text_a, sentence, label\)$"):
        open_files("pair", train=train, dev=train, fields=None)
    glue = write("glue.tsv", "index\tsentence1\tsentence2\tlabel\n0\ta\tb\t1\n1\tc\td\t0\n")
    store = open_files("pair", train=glue, dev=glue, fields=None)
    assert texts(store.sets["dev"]) == [{"text_a": "a", "text_b": "b"}, {"text_a": "c", "text_b": "d"}]
