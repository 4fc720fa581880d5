"""A checksum changes with any byte, and with the order of chunks and names."""

import numpy as np
import pytest

from nlu.storage.tensors import checksum


@pytest.mark.parametrize("size", [1, 7, 32_768, 100_003])
def test_any_changed_byte_changes_it(size):
    whole = np.random.default_rng(0).integers(0, 256, size, np.uint8)
    before = checksum([("a", whole)])
    for place in {0, size // 2, size - 1}:
        changed = whole.copy()
        changed[place] ^= 4
        assert checksum([("a", changed)]) != before
    assert checksum([("a", whole.copy())]) == before


def test_exchanged_chunks_and_exchanged_names_change_it():
    parts = np.arange(4 * 8192, dtype=np.float32).reshape(4, 8192)
    assert checksum([("a", parts)]) != checksum([("a", parts[[1, 0, 2, 3]])])
    one, two = np.ones(1), np.zeros(1)
    assert checksum([("a", one), ("b", two)]) != checksum([("a", two), ("b", one)])


def test_it_does_not_depend_on_how_the_values_lie_in_memory():
    values = np.arange(60_000, dtype=np.int32).reshape(200, 300)
    assert checksum([("a", values[::2])]) == checksum([("a", values[::2].copy())])
    assert checksum([("a", np.array(3.0))]) == checksum([("a", np.array([3.0]))])
