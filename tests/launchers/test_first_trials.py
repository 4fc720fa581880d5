"""What a search tries first: its defaults, given configurations, and the best of former searches; and its priors."""

import pytest

from nlu.sweeps.schedulers.scheduler import PAUSING
from tests.launchers.searches import runs, search, study, trials

LR, KIND = "lr=tag(log,interval(0.001,1))", "kind=choice(a,b)"


def values(folder):
    return [trial.params for trial in trials(folder)]


@pytest.mark.parametrize("pruner", ["none", "hyperband", "asha", "freeze_thaw"])
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


def test_half_of_the_trials_come_from_the_prior_which_a_better_trial_replaces(tmp_path):
    search(tmp_path / "own", "lr=tag(log,'prior=1e-8',interval(1e-9,1))", "hydra.sweeper.n_trials=40")
    found = [each["lr"] for each in values(tmp_path / "own")]
    # Within a quarter of the interval below 1e-6: half of the first trials, but a third of an even draw.
    assert study(tmp_path / "own").user_attrs["sampler"]["prior"] == {"lr": 1e-8}
    assert sum(lr > 1e-4 for lr in found[20:]) > 10
