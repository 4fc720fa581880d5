"""Dropout and its streams of random numbers: what a sequence gets depends neither on its batch nor on what pads it."""

import numpy as np
import pytest
import torch

from nlu.data.collate import Batch
from nlu.data.seeds import stable_seed
from nlu.models.layers.attention import attention_over
from nlu.models.layers.dropout import Dropout, Noise, active, drawing_from, dropout

LENGTHS = {7: 2, 3: 5, 9: 5, 4: 11}
"""tokens by example"""


def noise(*examples: int, seed: int = 1, step: int = 4) -> Noise:
    """Return the streams of a batch of these examples, which stand in order of length."""
    batch = batch_of(list(examples), [LENGTHS[each] for each in examples], [list(range(len(examples)))])
    return Noise(seed, step, batch)


def batch_of(examples: list[int], lengths: list[int], places: list[list[int]]) -> Batch:
    """Return a batch of examples whose sequences stand at these places; its tokens mean nothing."""
    nothing = torch.zeros(sum(lengths), dtype=torch.int64)
    starts_S = torch.tensor([0, *lengths]).cumsum(0)[:-1]
    return Batch(np.array(examples), lengths, nothing, nothing, nothing, starts_S, torch.tensor(places))


def generator(example: int, text: int) -> np.random.SFC64:
    """Return the generator of a sequence in step 4 with seed 1, seeded by SplitMix64 in Python's own numbers."""
    mask = 2**64 - 1

    def mixed(bits: int) -> int:
        bits = (bits ^ bits >> 30) * 0xBF58476D1CE4E5B9 & mask
        bits = (bits ^ bits >> 27) * 0x94D049BB133111EB & mask
        return bits ^ bits >> 31

    state = mixed(mixed(mixed(stable_seed(1, "dropout", 4)) ^ example) ^ text)
    words = [mixed(state + number * 0x9E3779B97F4A7C15 & mask) for number in (1, 2, 3)]
    found = np.random.SFC64(0)
    # What numpy's own seeding does with three words: a counter of 1, and twelve rounds without output.
    found.state = {"bit_generator": "SFC64", "state": {"state": np.array([*words, 1], np.uint64)},
                   "has_uint32": 0, "uinteger": 0}  # fmt: skip
    found.random_raw(12)
    return found


def by_example(streams: Noise, examples: tuple[int, ...], width: int) -> dict[int, list[torch.Tensor]]:
    """Return the masks of two layers and of their vectors, by example."""
    values = torch.ones(sum(streams.lengths), width)
    with drawing_from(streams):
        drawn = [dropout(values, 0.4), dropout(torch.ones(len(examples), width), 0.4), dropout(values, 0.4)]
    pieces = [drawn[0].split(streams.lengths), drawn[1].split(1), drawn[2].split(streams.lengths)]
    return {example: [piece[place] for piece in pieces] for place, example in enumerate(examples)}


@pytest.mark.parametrize("width", [8, 7])
def test_an_example_has_the_same_masks_in_any_batch(width: int) -> None:
    together = by_example(noise(7, 3, 9, 4), (7, 3, 9, 4), width)
    for examples in ((7,), (9, 4), (3, 9)):
        for example, masks in by_example(noise(*examples), examples, width).items():
            assert all(map(torch.equal, masks, together[example]))
    assert not torch.equal(together[3][0], together[9][0]) and not torch.equal(together[3][0], together[3][2])
    for other in (noise(3, seed=2), noise(3, step=5)):
        assert not torch.equal(by_example(other, (3,), width)[3][0], together[3][0])


def test_the_bits_are_those_of_the_generator_of_seed_step_and_example() -> None:
    streams = noise(7, 4)
    for _ in range(2):
        streams.bits([6, 0])
    found = streams.bits([6, 9])
    # A stream advances by whole words of four numbers.
    first, second = (generator(example, 0) for example in (7, 4))
    expected = [first.random_raw(6)[4:].view(np.uint16)[:6], second.random_raw(3).view(np.uint16)[:9]]
    assert np.array_equal(found, np.concatenate(expected))


def test_texts_of_a_pair_in_separate_sequences_have_separate_streams() -> None:
    # The texts of example 5 are sequences 2 and 0, those of example 6 are 1 and 3.
    batch = batch_of([5, 6], [3, 3, 3, 3], [[2, 1], [0, 3]])
    bits = Noise(1, 4, batch).bits([4] * 4).reshape(4, 4)
    for sequence, (example, text) in enumerate([(5, 1), (6, 0), (5, 0), (6, 1)]):
        assert np.array_equal(bits[sequence], generator(example, text).random_raw(1).view(np.uint16))


def test_windows_of_a_text_have_separate_streams() -> None:
    # The windows of example 5 are sequences 2, 0 and 3, the only one of example 6 is 1.
    batch = batch_of([5, 6], [3, 3, 3, 3], [[2, 0, 3, 1]])
    batch.windows_B = np.array([3, 1])
    bits = Noise(1, 4, batch).bits([4] * 4).reshape(4, 4)
    for sequence, (example, window) in enumerate([(5, 1), (6, 0), (5, 0), (5, 2)]):
        assert np.array_equal(bits[sequence], generator(example, window).random_raw(1).view(np.uint16))


def test_streams_go_back_to_where_they_were() -> None:
    streams = noise(7, 3)
    begin = streams.position()
    first = streams.bits([4, 8])
    middle = streams.position()
    second = streams.bits([4, 8])
    assert not np.array_equal(first, second)
    for position, expected in ((middle, second), (begin, first)):
        streams.go_to(position)
        assert np.array_equal(streams.bits([4, 8]), expected)


def test_rows_of_units_and_rows_after_the_last_sequence() -> None:
    streams = noise(7, 3, 4)
    assert streams.rows(3) == [1, 1, 1] and streams.rows(18) == [2, 5, 11]
    assert streams.rows_at(torch.tensor([0, 1, 3, 7, 17])) == [2, 1, 2]
    drop = Dropout(0.5).train()
    with drawing_from(streams):
        longer = drop(torch.ones(21, 64))
    assert torch.equal(longer[18:], torch.full((3, 64), 2.0)), "rows of no sequence stay"
    with drawing_from(noise(7, 3, 4)):
        assert torch.equal(drop(torch.ones(18, 64)), longer[:18])
    with drawing_from(noise(7, 3)):
        units = drop(torch.ones(2, 64), [0, 2])
    with drawing_from(noise(3)):
        assert torch.equal(drop(torch.ones(2, 64), [2]), units)
    assert active() is None


def test_uniform_numbers_fill_their_range() -> None:
    drawn = noise(4).uniform([11], 1000)
    assert drawn.dtype == np.float32 and drawn.shape == (11, 1000)
    assert -1 <= drawn.min() < -0.999 and 0.999 < drawn.max() < 1 and abs(drawn.mean()) < 0.02


@pytest.mark.parametrize("first_only", [False, True])
def test_attention_drops_the_same_weights_of_a_sequence_in_any_batch(first_only: bool) -> None:
    torch.manual_seed(0)
    heads, width = 2, 8
    rows = {example: torch.randn(length, 3 * width) for example, length in LENGTHS.items()}

    def attend(*examples: int) -> dict[int, torch.Tensor]:
        lengths = [LENGTHS[each] for each in examples]
        qkv = torch.cat([rows[each] for each in examples])
        attention = attention_over(lengths, heads, torch.device("cpu"))
        with drawing_from(noise(*examples)):
            if first_only:
                firsts = torch.stack([rows[each][0, :width] for each in examples])
                found = attention.first_token_attention(firsts, qkv[:, width:], 0.5).split(1)
            else:
                found = attention.self_attention(qkv, 0.5).split(lengths)
        return dict(zip(examples, found, strict=True))

    together = attend(7, 3, 9, 4)
    for examples in ((3,), (9, 4)):
        for example, mixed in attend(*examples).items():
            assert torch.equal(mixed, together[example])
    torch.manual_seed(0)
    assert not torch.equal(attention_over([5], heads, torch.device("cpu")).self_attention(rows[3], 0.5), together[3])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("probability", [0.1, 0.3, 0.9])
def test_a_share_is_zeroed_and_the_rest_scaled(dtype, probability) -> None:
    with drawing_from(noise(7, 3, 4)):
        result = dropout(torch.ones(18, 10_000, dtype=dtype), probability)
    assert result.dtype == dtype
    assert (result == 0).float().mean().item() == pytest.approx(probability, abs=0.005)
    kept = result[result != 0]
    assert torch.equal(kept, torch.full_like(kept, 1 / (1 - probability)))


def test_an_element_is_zeroed_by_the_number_of_its_place() -> None:
    drawn = noise(4).bits([11 * 29_999])
    assert (drawn == round(0.3 * 2**16)).any(), "of so many some are the bound itself"
    values = torch.randn(11, 29_999)
    kept = torch.from_numpy(drawn >= round(0.3 * 2**16)).view(11, 29_999)
    with drawing_from(noise(4)):
        torch.testing.assert_close(dropout(values, 0.3), torch.where(kept, values / 0.7, 0.0))


def test_the_module_drops_only_while_training() -> None:
    values, module = torch.randn(10, 10), Dropout(0.5)
    assert not torch.equal(module(values), values)
    assert module.eval()(values) is values
    assert dropout(values, 0.0) is values
