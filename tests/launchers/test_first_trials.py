"""The first trial of a search with use_defaults."""

import pytest

from nlu.config.errors import UserError
from nlu.search.first import defaults
from nlu.search.schedulers.scheduler import PAUSING
from tests.few import first
from tests.launchers.searches import runs, search, trials
from tests.search.composed import read_space

LR, KIND = "lr=tag(log,interval(0.001,1))", "kind=choice(a,b)"


@pytest.mark.parametrize("pruner", first(2, ["hyperband", "freeze_thaw", "none", "asha"]))
def test_the_defaults_come_first_once_also_in_a_search_that_continues(tmp_path, pruner):
    enough = ["hydra.sweeper.max_examples=2000ex"] if pruner in PAUSING else []
    more = (
        LR, KIND, "hydra.sweeper.use_defaults=true", f"hydra.sweeper.pruner={pruner}", *enough,
        "hydra.sweeper.min_resource=100ex", "hydra.sweeper.max_resource=400ex",
    )  # fmt: skip
    search(tmp_path / "own", *more, "hydra.sweeper.n_trials=1")
    search(tmp_path / "own", *more, "hydra.sweeper.n_trials=4")
    found = [trial.params for trial in trials(tmp_path / "own")]
    assert found[0] == {"lr": 0.1, "kind": "a"} and len({each["lr"] for each in found}) == 4
    assert runs(tmp_path / "own", 0)[0] == 0 and runs(tmp_path / "own", 0).count(0) == 1


def test_the_defaults_are_those_of_the_conditions_that_hold():
    when = {"kind=a": {"units": "int(interval(1,4))"}, "kind=b": {"units": "int(interval(100,400))"}}
    values = {"kind": "b", "units": "200"}
    assert defaults(read_space(None, when, [KIND]), values.get) == {"kind": "b", "units": 200}
    given = read_space(None, when, ["kind=tag(choice(a,b),prior=a)"])
    assert given.priors == {"kind": "a"}
    with pytest.raises(UserError, match=r"units is 200 without the search, which is not in interval\(1, 4\)"):
        defaults(given, values.get)


def test_a_default_of_null_is_drawn_if_the_sweep_has_it():
    assert defaults(read_space(None, None, ["a=null,3"]), lambda key: None) == {"a": "null"}
    with pytest.raises(UserError, match=r"a is null without the search, which is not in interval\(0.0, 1.0\); give it"):
        defaults(read_space(None, None, ["a=interval(0,1)"]), lambda key: None)
