"""What was written is what is gathered, whatever the shards."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nlu.data import store
from nlu.data.encoding import Encoded
from nlu.data.ragged import ranges, starts_of
from nlu.data.store import SetWriter, StoredSet

NUMBER_ROWS = 40


def flat(rows):
    return np.array([value for row in rows for value in row], np.int32), np.array([len(row) for row in rows], np.int64)


def chunk_of(rows):
    """Encoded rows and their labels, from dicts of plain values."""
    (tokens, lengths_N), (words, word_counts_N), (tags, tag_counts_N) = (
        flat([row[name] for row in rows]) for name in ("tokens", "words", "tags")
    )
    columns = {name: np.array([row[name] for row in rows]) for name in ("boundary", "label", "hash", "file", "number")}
    encoded = Encoded(
        tokens, lengths_N, columns["boundary"], np.zeros(len(rows), bool), words=words, word_counts_N=word_counts_N
    )
    return encoded, {
        "label_N": columns["label"], "tags": tags, "tag_counts_N": tag_counts_N, "text_hash_N": columns["hash"],
        "group_N": columns["hash"] + 1, "file_N": columns["file"], "number_N": columns["number"],
    }  # fmt: skip


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)

    def ragged():
        return rng.integers(0, 7, rng.integers(0, 6)).tolist()

    return [
        {"tokens": ragged(), "words": ragged(), "tags": ragged(), "boundary": i % 5, "label": i % 3, "hash": i << 40,
         "file": i % 2, "number": i + 1}
        for i in range(NUMBER_ROWS)
    ]  # fmt: skip


@pytest.fixture(scope="module", params=[7, 40, 65_536], ids=lambda rows: f"shards of {rows}")
def shard_rows(request):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "SHARD_ROWS", request.param)
        yield request.param


@pytest.fixture(scope="module")
def folder(rows, shard_rows, tmp_path_factory):
    folder = tmp_path_factory.mktemp("stored") / "train"
    writer = SetWriter(folder)
    for start, end in ((0, 3), (3, 20), (20, 21), (21, NUMBER_ROWS)):
        writer.add(*chunk_of(rows[start:end]))
    writer.close()
    assert writer.rows == NUMBER_ROWS
    return folder


def test_shards_are_full_but_for_the_last(folder, shard_rows):
    assert len(list(folder.iterdir())) == -(-NUMBER_ROWS // shard_rows)
    assert not list(folder.glob("*.tmp"))


def test_the_columns_come_back_in_file_order(folder, rows):
    stored = StoredSet(folder, None)
    assert len(stored) == NUMBER_ROWS
    assert stored.lengths_N.tolist() == [len(row["tokens"]) for row in rows]
    for column, name in (("labels_N", "label"), ("text_hash_N", "hash"), ("number_N", "number"), ("file_N", "file")):
        assert getattr(stored, column).tolist() == [row[name] for row in rows]


@given(picked=st.lists(st.integers(0, NUMBER_ROWS - 1), max_size=12))
def test_any_rows_are_gathered_in_the_order_asked_for(folder, rows, picked):
    stored, rows_B = StoredSet(folder, None), np.array(picked, np.int64)
    assert stored.tokens(rows_B).tolist() == flat([rows[i]["tokens"] for i in picked])[0].tolist()
    assert stored.boundaries(rows_B).tolist() == [rows[i]["boundary"] for i in picked]
    for gathered, name in ((stored.words(rows_B), "words"), (stored.tags(rows_B), "tags")):
        values, counts_B = flat([rows[i][name] for i in picked])
        assert gathered[0].tolist() == values.tolist() and gathered[1].tolist() == counts_B.tolist()


def test_labels_and_tags_are_renumbered_by_the_remap(folder, rows):
    remap = [6, 5, 4, 3, 2, 1, 0]
    stored = StoredSet(folder, remap)
    assert stored.labels_N.tolist() == [remap[row["label"]] for row in rows]
    assert stored.tags(np.arange(9))[0].tolist() == [remap[tag] for row in rows[:9] for tag in row["tags"]]


def test_the_absent_label_of_tagged_rows_is_not_renumbered(tmp_path, rows):
    writer = SetWriter(tmp_path / "train")
    writer.add(*chunk_of([{**row, "label": -1} for row in rows]))
    writer.close()
    assert set(StoredSet(tmp_path / "train", [1, 0, 2, 3, 4, 5, 6]).labels_N) == {-1}


def test_targets_are_equal_exactly_for_equal_labels_or_equal_tags(tmp_path, rows):
    for name, label in (("by_label", None), ("by_tags", -1)):
        made = [{**row, "label": row["label"] if label is None else label} for row in [*rows, *rows[:5]]]
        writer = SetWriter(tmp_path / name)
        writer.add(*chunk_of(made))
        writer.close()
        keys = [row["label"] if label is None else tuple(row["tags"]) for row in made]
        targets_N = StoredSet(tmp_path / name, None).targets(np.arange(len(made))).tolist()
        assert [[a == b for b in targets_N] for a in targets_N] == [[a == b for b in keys] for a in keys]


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 5)), max_size=8))
def test_ranges_concatenates_a_range_for_each_row(pairs):
    starts_N, lengths_N = (np.array([pair[i] for pair in pairs], np.int64) for i in (0, 1))
    assert ranges(starts_N, lengths_N).tolist() == [start + i for start, length in pairs for i in range(length)]
    assert starts_of(lengths_N).tolist() == [sum(length for _, length in pairs[:n]) for n in range(len(pairs))]
