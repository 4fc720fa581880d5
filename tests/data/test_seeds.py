"""Random numbers that depend only on their key, on every machine."""

import hashlib

import numpy as np

from nlu.data.seeds import generator, stable_seed, text_hash, text_hashes, uniforms


def test_a_seed_is_the_same_on_every_machine_and_python():
    assert stable_seed(1, "order", 0) == 660393263250190214
    assert text_hash("好 text") == text_hash("好 text") != text_hash("好 text ")


def test_hashes_of_many_texts_are_those_of_each_text():
    texts = ["好 text", "", "a\tb", "\U0001f600"]
    expected = [int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") // 2 for text in texts]
    assert text_hashes(iter(texts)).tolist() == expected == [text_hash(text) for text in texts]
    assert text_hashes([]).shape == (0,)


def test_every_part_of_the_key_counts():
    keys = [(1, "order", 0), (1, "order", 1), (2, "order", 0), (1, "dropout", 0), (1, "order", 0, 0), (1, "order", 10)]
    assert len({stable_seed(*key) for key in keys}) == len(keys)
    assert stable_seed(1, "dropout", 1, 23) != stable_seed(1, "dropout", 12, 3)


def test_a_seed_fits_63_bits_and_makes_the_same_generator_again():
    assert all(0 <= stable_seed(seed, "init") < 2**63 for seed in range(100))
    assert generator(1, "order", 2).random() == generator(1, "order", 2).random() != generator(1, "order", 3).random()


def splitmix64(seed: int, count: int) -> list[int]:
    """The generator as its paper has it, in whole numbers of Python."""
    found, state, most = [], seed, 2**64 - 1
    for _ in range(count):
        state = (state + 0x9E3779B97F4A7C15) & most
        bits = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & most
        bits = ((bits ^ (bits >> 27)) * 0x94D049BB133111EB) & most
        found.append(bits ^ (bits >> 31))
    return found


def test_uniform_numbers_are_those_of_splitmix64_in_any_order():
    # The first numbers for this seed that the generator's authors publish.
    assert splitmix64(1234567, 2) == [6457827717110365317, 3203168211198807973]

    def mixed(bits):
        return splitmix64((bits - 0x9E3779B97F4A7C15) % 2**64, 1)[0]

    examples, places = np.divmod(np.random.default_rng(0).permutation(60), 12)
    found = uniforms(3, "masks", 2, example_T=examples, place_T=places)
    begin = mixed(stable_seed(3, "masks", 2))
    for example, place, value in zip(examples.tolist(), places.tolist(), found.tolist(), strict=True):
        assert value == (splitmix64(mixed(begin ^ example), place + 1)[place] >> 11) / 2**53


def test_uniform_numbers_are_even_and_independent_over_examples_places_and_epochs():
    examples, places = np.divmod(np.arange(40_000), 40)
    first, second = (uniforms(1, "masks", epoch, example_T=examples, place_T=places) for epoch in (0, 1))
    counts = np.histogram(first, bins=20, range=(0, 1))[0]
    # Chi square with 19 degrees of freedom is above 44 once in a thousand times.
    assert ((counts - 2000) ** 2 / 2000).sum() < 44
    pairs = [(first, second), (first[:-1], first[1:]), (first[:-40], first[40:])]
    assert all(abs(np.corrcoef(one, other)[0, 1]) < 0.02 for one, other in pairs)
