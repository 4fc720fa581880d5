"""Random numbers that depend on their key alone, on every machine."""

from nlu.data.seeds import generator, stable_seed, text_hash


def test_a_seed_is_the_same_on_every_machine_and_python():
    assert stable_seed(1, "order", 0) == 660393263250190214
    assert text_hash("好 text") == text_hash("好 text") != text_hash("好 text ")


def test_every_part_of_the_key_counts():
    keys = [(1, "order", 0), (1, "order", 1), (2, "order", 0), (1, "dropout", 0), (1, "order", 0, 0), (1, "order", 10)]
    assert len({stable_seed(*key) for key in keys}) == len(keys)
    assert stable_seed(1, "dropout", 1, 23) != stable_seed(1, "dropout", 12, 3)


def test_a_seed_fits_63_bits_and_makes_the_same_generator_again():
    assert all(0 <= stable_seed(seed, "init") < 2**63 for seed in range(100))
    assert generator(1, "order", 2).random() == generator(1, "order", 2).random() != generator(1, "order", 3).random()
