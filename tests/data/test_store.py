"""Gathered rows equal the written ones for any size of shards."""

import random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nlu.data import store
from nlu.data.arrays import ranges, starts_of
from nlu.data.store import EncodedRows, Misfit, Origin, SetWriter, StoreDamaged, StoredSet, mapped

NUMBER_ROWS = 40


def flat(rows):
    return np.array([value for row in rows for value in row], np.int32), np.array([len(row) for row in rows], np.int64)


def chunk_of(rows):
    """EncodedRows rows, their targets and origins, from dicts of plain values."""
    (tokens, lengths_N), (words, word_counts_N) = (flat([row[name] for row in rows]) for name in ("tokens", "words"))
    columns = {name: np.array([row[name] for row in rows]) for name in ("boundary", "hash", "file", "number")}
    encoded = EncodedRows(
        tokens, lengths_N, columns["boundary"], np.zeros(len(rows), bool), words=words, word_counts_N=word_counts_N
    )
    origin = Origin(columns["hash"], columns["hash"] + 1, columns["file"], columns["number"])
    return encoded, [row["target"] for row in rows], origin


def written(folder, rows, kind=pa.int32()):  # noqa: B008
    writer = SetWriter(folder, kind)
    for start, end in ((0, 3), (3, 20), (20, 21), (21, len(rows))):
        writer.add(*chunk_of(rows[start:end]))
    writer.close()
    assert writer.rows == len(rows)
    return folder


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)

    def ragged():
        return rng.integers(0, 7, rng.integers(0, 6)).tolist()

    return [
        {"tokens": ragged(), "words": ragged(), "boundary": i % 5, "target": i % 3, "hash": i << 40,
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
    return written(tmp_path_factory.mktemp("stored") / "train", rows)


def test_all_shards_except_the_last_are_full(folder, shard_rows):
    assert len(list(folder.iterdir())) == -(-NUMBER_ROWS // shard_rows)
    assert not list(folder.glob("*.tmp"))


def test_the_columns_come_back_in_file_order(folder, rows):
    stored = StoredSet.open(folder, NUMBER_ROWS)
    assert len(stored) == NUMBER_ROWS
    assert stored.lengths_N.tolist() == [len(row["tokens"]) for row in rows]
    files_N = stored.scalars("file", np.arange(NUMBER_ROWS))
    for column_N, name in ((stored.text_hash_N, "hash"), (stored.number_N, "number"), (files_N, "file")):
        assert column_N.tolist() == [row[name] for row in rows]


@given(picked=st.lists(st.integers(0, NUMBER_ROWS - 1), max_size=12))
def test_any_rows_are_gathered_in_the_requested_order(folder, rows, picked):
    stored, rows_B = StoredSet.open(folder), np.array(picked, np.int64)
    assert stored.tokens(rows_B).tolist() == flat([rows[i]["tokens"] for i in picked])[0].tolist()
    assert stored.boundaries(rows_B).tolist() == [rows[i]["boundary"] for i in picked]
    assert stored.scalars("target", rows_B).tolist() == [rows[i]["target"] for i in picked]
    values, counts_B = flat([rows[i]["words"] for i in picked])
    gathered = stored.lists("words", rows_B)
    assert gathered[0].tolist() == values.tolist()
    assert gathered[1].tolist() == stored.counts("words", rows_B).tolist() == counts_B.tolist()


@pytest.mark.parametrize(
    ("kind", "of_row"),
    [(pa.float64(), lambda i: i / 3), (pa.list_(pa.int32()), lambda i: [i % 4] * (i % 3)),
     (pa.int64(), lambda i: i << 40), (pa.list_(pa.float64()), lambda i: [i / 3, 1 - i / 3] * (i % 3)),
     (pa.list_(pa.int64()), lambda i: [i << 40]), (pa.list_(pa.float32()), lambda i: [0.5, i / 4])],
    ids=["a number", "several", "a large number", "shares", "large numbers", "small shares"],
)  # fmt: skip
def test_a_target_is_read_in_the_type_in_which_it_was_written(rows, shard_rows, tmp_path, kind, of_row):
    targets = [of_row(i) for i in range(NUMBER_ROWS)]
    made = [{**row, "target": target} for row, target in zip(rows, targets, strict=True)]
    stored, rows_B = StoredSet.open(written(tmp_path / "train", made, kind)), np.array([38, 0, 8, 7, 39])
    if pa.types.is_list(kind):
        values, counts_B = stored.lists("target", rows_B)
        assert [part.tolist() for part in np.split(values, np.cumsum(counts_B)[:-1])] == [targets[i] for i in rows_B]
    else:
        assert stored.scalars("target", rows_B).tolist() == [targets[i] for i in rows_B]


@pytest.mark.parametrize(
    ("kind", "value"),
    [(pa.int32(), 0.5), (pa.int32(), 1 << 31), (pa.int64(), float("nan")), (pa.int32(), "1"), (pa.float32(), 1e300),
     (pa.float64(), (1 << 53) + 1), (pa.int8(), 1 << 80)],
    ids=["a share", "too large", "no number", "a text", "too large a float", "too many digits", "huge"],
)  # fmt: skip
def test_a_target_that_its_column_cannot_hold_is_refused_at_its_row(rows, tmp_path, kind, value):
    targets = [0, 1, value, value, *[1] * (NUMBER_ROWS - 4)]
    for name, column, own in (("one", kind, targets), ("lists", pa.list_(kind), [[0, target] for target in targets])):
        made = [{**row, "target": target} for row, target in zip(rows, own, strict=True)]
        with pytest.raises(Misfit) as caught:
            SetWriter(tmp_path / name, column).add(*chunk_of(made))
        assert caught.value.row == 2 and str(caught.value.value) == str(value)


def test_targets_are_renumbered_by_the_remap(rows, shard_rows, tmp_path):
    remap, rows_B = [6, 5, 4, 3, 2, 1, 0], np.arange(9)
    made = [{**row, "target": row["words"]} for row in rows]
    for name, kind, own in (("one", pa.int32(), rows), ("lists", pa.list_(pa.int32()), made)):
        stored = StoredSet.open(written(tmp_path / name, own, kind), NUMBER_ROWS, remap)
        if name == "one":
            assert stored.scalars("target", rows_B).tolist() == [remap[row["target"]] for row in rows[:9]]
        else:
            wanted = [remap[value] for row in made[:9] for value in row["target"]]
            assert stored.lists("target", rows_B)[0].tolist() == wanted
            assert stored.lists("words", rows_B)[0].tolist() == [value for row in rows[:9] for value in row["words"]]


def test_rows_without_a_target_are_stored_without(rows, tmp_path):
    stored = StoredSet.open(written(tmp_path / "train", [{**row, "target": None} for row in rows], None), NUMBER_ROWS)
    assert stored.tokens(np.array([5])).tolist() == rows[5]["tokens"]


@pytest.mark.parametrize("harm", ["missing", "first missing", "cut short", "emptied", "not a shard"])
def test_a_set_that_lost_rows_is_not_opened(rows, tmp_path, monkeypatch, harm):
    monkeypatch.setattr(store, "SHARD_ROWS", 7)
    folder = written(tmp_path / "train", rows)
    shards = sorted(folder.iterdir())
    if "missing" in harm:
        shards[0 if "first" in harm else -1].unlink()
    else:
        content = shards[1].read_bytes()
        shards[1].write_bytes({"cut short": content[: len(content) // 2], "emptied": b""}.get(harm, b"x" * 4096))
    with pytest.raises(StoreDamaged, match=str(folder)):
        StoredSet.open(folder, NUMBER_ROWS)


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 5)), max_size=8))
def test_ranges_concatenates_a_range_for_each_row(pairs):
    starts_N, lengths_N = (np.array([pair[i] for pair in pairs], np.int64) for i in (0, 1))
    assert ranges(starts_N, lengths_N).tolist() == [start + i for start, length in pairs for i in range(length)]
    assert starts_of(lengths_N).tolist() == [sum(length for _, length in pairs[:n]) for n in range(len(pairs))]


def test_a_changed_byte_of_a_shard_is_damage_or_changes_nothing(rows, tmp_path):
    rng = random.Random(0)
    path = written(tmp_path / "train", rows) / "00000.arrow"
    whole, all_N = path.read_bytes(), np.arange(len(rows))
    refused = 0
    for _ in range(150):
        changed = bytearray(whole)
        changed[rng.randrange(len(whole))] ^= 1 << rng.randrange(8)
        # Another file, since the first one is mapped.
        other = tmp_path / "changed.arrow"
        other.unlink(missing_ok=True)
        other.write_bytes(changed)
        try:
            found = StoredSet([mapped(other)])
        except StoreDamaged:
            refused += 1
            continue
        assert found.tokens(all_N).tolist() == [token for row in rows for token in row["tokens"]]
        assert found.scalars("target", all_N).tolist() == [row["target"] for row in rows]
    assert refused > 75
