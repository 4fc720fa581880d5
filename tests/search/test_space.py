"""A space is read from YAML and the command line, with every problem at once, and drawn branch by branch."""

import pytest
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra

from nlu.config.choices import conf_dir
from nlu.config.errors import UserError
from tests.search.composed import read_space


def first(name, distribution):
    """Draw the first choice or the low end."""
    return distribution.choices[0] if hasattr(distribution, "choices") else distribution.low


def nothing(key):
    return None


def test_a_branch_is_drawn_with_its_choice_also_through_another_branch():
    when = {
        "b=x": {"c": "choice(1)"},
        "a=p": {"b": "choice(x,y)"},
        "a=q": {"d": "choice(2)"},
        "e=1": {"f": "choice(3)"},
    }
    space = read_space({"a": "choice(p,q)"}, when, [])
    assert space.draw(first, nothing) == {"a": "p", "b": "x", "c": 1}
    assert space.draw(first, {"e": "1"}.get)["f"] == 3


@pytest.mark.parametrize(
    ("params", "when", "arguments", "said"),
    [
        ({"a": "interval(2,1)"}, None, [], "hydra.sweeper.params.a: `low <= high` must hold.*; write choice"),
        (None, None, ["a=tag(log,interval(0,1))"], "`low > 0` must hold for `log=True`"),
        (None, None, ["a=range(1,1)"], "must contain at least one value"),
        (None, None, ["a=tag(log,range(8,18))"], "a range is never logarithmic"),
        (None, {"a": {"b": "choice(1)"}}, [], "is not a condition; write KEY=VALUE"),
        (None, {"a=1": {"b": 3}}, [], "b=3 is not a sweep"),
        ({"a": "choice(x,y)"}, {"a=z": {"b": "choice(1)"}}, [], "a is only drawn from x, y"),
        (None, {"a=1": {"b": "choice(1)"}, "a=2": {"b": "interval(0.5,1)"}}, [], "must be of one kind"),
        ({"b": "choice(1)"}, {"a=1": {"b": "choice(1)"}}, [], "also drawn without a condition"),
    ],
)
def test_a_space_that_cannot_be_drawn_is_refused(params, when, arguments, said):
    with pytest.raises(UserError, match=said):
        read_space(params, when, arguments)


def test_all_problems_are_reported_together():
    with pytest.raises(UserError) as caught:
        read_space({"a": "interval(2,1)"}, {"b": {"c": 1}}, ["d=tag(log,interval(0,1))"])
    assert len(caught.value.problems) == 3


def test_a_glob_draws_from_the_choices_of_a_group_and_is_refused_without_a_loader():
    with initialize_config_dir(config_dir=str(conf_dir())):
        loader = GlobalHydra.instance().config_loader()
        space = read_space({"optimizer": "glob(adamw*)"}, None, ["scheduler=glob(*,exclude=one*)"], loader)
    assert set(space.params["optimizer"].choices) == {"adamw", "adamw_base", "adamw_few", "adamw_scratch"}
    assert set(space.params["scheduler"].choices) == {"constant", "exponential"}
    with pytest.raises(UserError, match=r"scheduler=glob\(\*\): ConfigLoader is not set; write choice"):
        read_space(None, None, ["scheduler=glob(*)"])
