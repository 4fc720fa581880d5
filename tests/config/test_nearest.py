"""A wrong name is answered with the nearest valid one."""

from nlu.config.nearest import hint, nearest

KEYS = ["trainer.batch_size", "trainer.patience", "optimizer.lr", "model.hidden_size", "model"]


def test_a_misspelt_key_is_matched_by_its_last_part_rather_than_by_its_group():
    assert nearest("trainer.batchsize", KEYS) == ["trainer.batch_size"]


def test_a_misspelt_group_finds_the_key_of_the_right_one():
    assert nearest("optimiser.lr", KEYS) == ["optimizer.lr"]


def test_all_names_are_listed_when_none_is_near():
    assert hint("zzz", ["b", "a"]) == "valid: a, b"
    assert hint("zzz", []) == "nothing to choose from"
