"""What a search tries first: its defaults, given configurations, and the best of former searches; and its priors."""

from types import SimpleNamespace

import pytest
from nlu.search.first import first_trials
from nlu.search.identity import refuse_another

from nlu.config.errors import UserError
from nlu.search.schedulers.scheduler import PAUSING
from tests.few import first
from tests.launchers.searches import runs, search, trials
from tests.search.composed import read_space

LR, KIND = "lr=tag(log,interval(0.001,1))", "kind=choice(a,b)"


def values(folder):
    return [trial.params for trial in trials(folder)]


@pytest.mark.parametrize("pruner", first(2, ["hyperband", "freeze_thaw", "none", "asha"]))
def test_the_defaults_come_first_then_what_is_given_then_what_is_drawn(tmp_path, pruner):
    enough = ["hydra.sweeper.max_examples=2000ex"] if pruner in PAUSING else []
    search(
        tmp_path / "own", LR, KIND, "hydra.sweeper.use_defaults=true", *enough,
        "hydra.sweeper.enqueue=[{lr:0.02},{kind:b,lr:0.5}]",
        "hydra.sweeper.n_trials=5", f"hydra.sweeper.pruner={pruner}", "hydra.sweeper.min_resource=100ex",
        "hydra.sweeper.max_resource=400ex",
    )  # fmt: skip
    found = values(tmp_path / "own")
    assert found[0] == {"lr": 0.1, "kind": "a"} and found[2] == {"lr": 0.5, "kind": "b"}
    assert found[1]["lr"] == 0.02 and found[1]["kind"] in ("a", "b")
    assert len({each["lr"] for each in found}) == 5


def test_a_killed_search_tries_the_same_first_trials_once(tmp_path):
    more = (LR, "hydra.sweeper.use_defaults=true", "hydra.sweeper.enqueue=[{lr:0.02},{lr:0.03}]")
    search(tmp_path / "own", *more, "hydra.sweeper.n_trials=2")
    search(tmp_path / "own", *more, "hydra.sweeper.n_trials=4")
    assert [each["lr"] for each in values(tmp_path / "own")[:3]] == [0.1, 0.02, 0.03]
    assert [len(runs(tmp_path / "own", number)) for number in range(4)] == [1, 1, 1, 1]


def test_a_warm_start_tries_the_best_of_former_searches_also_after_these_are_gone(tmp_path):
    search(tmp_path / "former", LR, KIND, "hydra.sweeper.n_trials=6")
    ranked = sorted(trials(tmp_path / "former"), key=lambda trial: abs(trial.params["lr"] - 0.01))
    more = ("lr=tag(log,interval(0.0001,2))", f"hydra.sweeper.warm_start=[{tmp_path}/former]")
    search(tmp_path / "own", *more, "hydra.sweeper.n_trials=2")
    (tmp_path / "former").rename(tmp_path / "gone")
    search(tmp_path / "own", *more, "hydra.sweeper.n_trials=4")
    found = [each["lr"] for each in values(tmp_path / "own")]
    assert found[:3] == [trial.params["lr"] for trial in ranked[:3]] and found[3] not in found[:3]


WHEN = {"kind=a": {"units": "int(interval(1,4))"}, "kind=b": {"units": "int(interval(100,400))"}}
NO_FIRST = {"use_defaults": False, "enqueue": None, "warm_start": None}


def first(*given, when=WHEN, composed=lambda key: None, arguments=(KIND,), **settings):
    space = read_space(None, when, list(arguments))
    return first_trials({**NO_FIRST, "enqueue": list(given), **settings}, space, composed, print, has_begun=False)


def test_a_conditional_key_is_given_with_its_condition_and_from_its_range():
    assert first({"kind": "b", "units": 200}) == [{"kind": "b", "units": 200}]
    for given, said in (
        ({"units": 200}, "units is only drawn where kind=a or kind=b; add that to the entry"),
        ({"kind": "a", "units": 200}, r"units is 200, which is not in interval\(1, 4\)"),
    ):
        with pytest.raises(UserError, match=said):
            first(given)
    # A condition on a key that is not drawn holds or does not.
    assert first({"units": 3}, composed=lambda key: "a", arguments=(LR,)) == [{"units": 3}]


@pytest.mark.parametrize(("old", "new"), [("asha", "hyperband"), ("none", "freeze_thaw"), ("asha", "freeze_thaw")])
def test_a_search_never_changes_between_pausing_trials_and_stopping_them(old, new):
    def attributes(pruner):
        return {"folder": "f", "space": {}, "shared": {}, "pruner": {"name": pruner}}

    study = SimpleNamespace(user_attrs=attributes(old), direction=SimpleNamespace(name="MAXIMIZE"))
    settings = {"storage": None, "study_name": None}
    if old == "asha" and new == "freeze_thaw":
        refuse_another(study, "the study s", attributes(new), "maximize", settings)
        return
    with pytest.raises(UserError, match=f"the study s has the pruner {old}, this search {new}"):
        refuse_another(study, "the study s", attributes(new), "maximize", settings)


def test_a_search_of_a_version_without_a_key_that_has_no_effect_continues():
    same = {"folder": "f", "space": {}, "pruner": {"name": "asha"}}
    before = {**same, "shared": {"trainer.timeout_min": "120", "seed": "1"}}
    study = SimpleNamespace(user_attrs=before, direction=SimpleNamespace(name="MAXIMIZE"))
    now = {"trainer.timeout_min": "120.0", "plugins": "[]", "seed": "1"}
    settings = {"storage": None, "study_name": None}
    refuse_another(study, "the study s", {**same, "shared": now}, "maximize", settings)
    with pytest.raises(UserError, match="seed: 1 there, 2 here"):
        refuse_another(study, "the study s", {**same, "shared": {**now, "seed": "2"}}, "maximize", settings)
