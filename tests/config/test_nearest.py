"""A wrong name is answered with the nearest valid one."""

from nlu.config.nearest import hint, nearest

KEYS = ["trainer.batch_size", "trainer.patience", "optimizer.lr", "model.hidden_size", "model"]


def test_a_misspelt_key_is_matched_by_its_last_part_rather_than_by_its_group():
    assert nearest("trainer.batchsize", KEYS) == ["trainer.batch_size"]


def test_a_key_without_its_group_finds_its_full_name():
    assert nearest("lr", KEYS) == ["optimizer.lr"]


def test_a_misspelt_group_finds_the_key_of_the_right_one():
    assert nearest("optimiser.lr", KEYS) == ["optimizer.lr"]


def test_a_name_of_another_group_is_near_only_by_a_few_typing_errors():
    valid = ["scheduler.anneal", "scheduler.chanels", "model.kernel_sizes"]
    assert nearest("model.channels", valid) == ["scheduler.chanels"]
    assert nearest("channels", valid) == ["scheduler.chanels"]
    assert nearest("trainer.dropout_", ["model.dropout", "model.head_dropout"]) == ["model.dropout"]


def test_names_of_the_same_group_come_first_unless_only_the_group_is_wrong():
    valid = ["scheduler.chanels", "model.channel_sizes", "encoder.channels"]
    assert nearest("model.channels", valid) == ["encoder.channels", "model.channel_sizes", "scheduler.chanels"]


def test_all_names_are_listed_when_none_is_near():
    assert hint("zzz", ["b", "a"]) == "valid: a, b"
    assert hint("zzz", []) == "nothing to choose from"
