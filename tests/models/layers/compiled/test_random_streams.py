"""Streams in C are NumPy's generators."""

from typing import Any

import numpy as np
import pytest

from nlu.models.layers import noise
from nlu.models.layers.compiled.random_streams import CompiledStreams, draw_in_c
from nlu.models.layers.noise import Noise, drawing_from
from tests.models.layers.compiled.machine import compiles_training

pytestmark = pytest.mark.needs(compiles_training, "no compiler, or no AVX-512 with bf16")


class Seeded(np.random.bit_generator.ISeedSequence):
    def __init__(self, words: np.ndarray):
        self._words = words

    def generate_state(self, n_words: int, dtype: object = np.uint32) -> np.ndarray:
        return self._words


@pytest.mark.parametrize("count", [1, 7, 8, 9, 16, 21])
def test_streams_have_the_numbers_of_numpy_for_any_counts(count: int) -> None:
    rng = np.random.default_rng(count)
    seeds = rng.integers(0, 2**63, (count, 3), dtype=np.uint64)
    seeds[0] = 2**64 - 1
    ours = CompiledStreams(seeds)
    theirs = [np.random.SFC64(Seeded(words)) for words in seeds]  # type: ignore[arg-type]
    for _ in range(3):
        counts = rng.integers(0, 300, count).tolist()
        counts[0] = 0
        expected = [
            generator.random_raw(-(-wanted // 4)).view(np.uint16)[:wanted]
            for generator, wanted in zip(theirs, counts, strict=True)
        ]
        assert np.array_equal(ours.bits(counts), np.concatenate(expected))
    if count > 2:
        some = ours.bits([5, 70], first=1)
        expected = [theirs[1].random_raw(2).view(np.uint16)[:5], theirs[2].random_raw(18).view(np.uint16)[:70]]
        assert np.array_equal(some, np.concatenate(expected))


def test_a_position_can_be_restored() -> None:
    streams = CompiledStreams(np.arange(9, dtype=np.uint64).reshape(3, 3))
    streams.bits([4, 8, 12])
    here = streams.position()
    following = streams.bits([40, 8, 1])
    streams.go_to(here)
    assert np.array_equal(streams.bits([40, 8, 1]), following)


def test_a_step_draws_the_same_numbers_in_c(corpus: Any) -> None:
    batch = corpus("pair", [3, 9, 20]).batch()
    ours, theirs, begun = (Noise(7, 2, batch) for _ in range(3))
    expected = theirs.bits([8, 10, 100]), theirs.bits([1, 2, 3])
    with drawing_from(ours):
        draw_in_c()
        assert noise.active() is ours
    assert np.array_equal(ours.bits([8, 10, 100]), expected[0]) and np.array_equal(ours.bits([1, 2, 3]), expected[1])
    # What was drawn before is not drawn again.
    assert np.array_equal(begun.bits([8, 10, 100]), expected[0])
    with drawing_from(begun):
        draw_in_c()
    assert np.array_equal(begun.bits([1, 2, 3]), expected[1])
