"""The rules between groups, on the shipped configuration: what is at the limit fits, what is beyond it is refused."""

import pytest

from nlu.config import validate


@pytest.fixture
def problems_of(composer):
    """Return a function that gives the problems of the default configuration with overrides."""
    return lambda *overrides: composer.problems_of(composer.plain(*overrides))


@pytest.mark.parametrize(("positions", "max_len"), [("64", 64), ("null", 512)])
def test_rows_may_be_as_long_as_the_model_has_positions_and_no_longer(problems_of, positions, max_len):
    model = ["model=bert_tiny", "model.pretrained=null", f"model.max_positions={positions}"]
    assert problems_of(*model, f"data.max_len={max_len}") == []
    (problem,) = problems_of(*model, f"data.max_len={max_len + 1}")
    assert problem == f"data.max_len is {max_len + 1}, but the model has {max_len} positions; set it lower"


def test_a_bug_in_a_rule_between_groups_is_not_taken_for_a_valid_configuration(composer, monkeypatch):
    def raise_bug(config):
        raise KeyError("a bug")

    monkeypatch.setattr(validate, "cross_problems", raise_bug)
    with pytest.raises(KeyError, match="a bug"):
        composer.problems_of(composer.plain())
