"""Memory of an opened set does not grow with its tokens or units: 0.1 GB for a million rows (docs/guarantees.md)."""

import tracemalloc

import numpy as np
import pytest

from nlu.data.dataset import Files
from nlu.data.examples import Examples
from nlu.data.facts import describe
from nlu.data.layouts import LAYOUTS
from nlu.data.opening import Store
from nlu.data.store import EncodedRows, Origin, SetWriter, StoredSet
from nlu.data.targets import Tags
from nlu.data.tokenizing import SPECIALS, wordpiece

ROWS, UNITS = 4_000, 50


@pytest.fixture
def tagged(tmp_path):
    """200,000 units in rows of which each has a double."""
    target = Tags(Files(train="", labels=["X"]))
    writer = SetWriter(tmp_path / "train", target.column())
    counts_N = np.full(ROWS, UNITS)
    tags = np.tile(np.arange(ROWS * UNITS // 2) % 3, 2).reshape(ROWS, UNITS)
    encoded = EncodedRows(
        np.ones(ROWS * (UNITS + 2), np.int32), counts_N + 2, counts_N + 2, np.zeros(ROWS, bool),
        np.tile(np.arange(1, UNITS + 1), ROWS), counts_N,
    )  # fmt: skip
    numbers = np.arange(ROWS)
    writer.add(encoded, tags.tolist(), Origin(numbers % (ROWS // 2), numbers, numbers * 0, numbers))
    writer.close()
    return tmp_path, target


def test_opening_and_describing_a_tagged_set_takes_memory_by_rows_not_by_units(tagged, monkeypatch):
    monkeypatch.setattr("nlu.data.store.CHUNK_ROWS", 100)
    folder, target = tagged
    tokenizer = wordpiece(SPECIALS, True, "here")
    describe_once(folder, target, tokenizer)
    tracemalloc.start()
    try:
        store, facts = describe_once(folder, target, tokenizer)
        resident, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert facts["sets"]["train"]["labels"] == {"O": 66_668, "B-X": 66_666, "I-X": 66_666}
    assert facts["sets"]["train"]["conflicts"] == 0 and facts["sets"]["train"]["duplicates"] == ROWS // 2
    assert resident < 100 * ROWS, f"{resident / ROWS:.0f} bytes a row stay"
    # A chunk of rows, and what sorting takes, come on top for a while; by units it would be more than a byte for each.
    assert most < 200 * ROWS, f"{most / ROWS / UNITS:.2f} bytes a unit were taken"


def describe_once(folder, target, tokenizer):
    part = Examples("train", StoredSet.open(folder / "train", ROWS), np.arange(ROWS), target, LAYOUTS["units"])
    meta = {"sets": {}, "dropped_duplicates": 0}
    store = Store(folder, {"train": part}, target, part.layout, tokenizer, meta)
    return store, describe(store)
