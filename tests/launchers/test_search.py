"""A search draws, launches, prunes and closes its trials, over launchers that run jobs here and elsewhere."""

import re

import pytest

from tests.few import first
from tests.launchers.searches import ENVIRONMENT, LOCAL, REPOSITORY, outcomes, runs, search, states, trials

DRAWN = "lr=interval(0.001,1)"
RUNGS = "hydra.sweeper.min_resource=100ex hydra.sweeper.max_resource=400ex"
PRIOR = "lr=tag('prior=0.1',interval(0.001,1))"


def lines_with(said: str, text: str) -> list[str]:
    return [line for line in said.splitlines() if text in line]


def test_number_folder_and_job_are_one_and_n_trials_counts_what_finished(tmp_path):
    said = search(tmp_path / "s", DRAWN, "hydra.sweeper.n_trials=3")
    assert states(tmp_path / "s") == ["COMPLETE"] * 3
    for number, outcome in enumerate(outcomes(tmp_path / "s")):
        assert runs(tmp_path / "s", number) == [0] and outcome["value"] == trials(tmp_path / "s")[number].value
    assert len(lines_with(said, "started")) == len(lines_with(said, "finished:")) == 3
    assert (tmp_path / "s/sweep.log").read_text().count("finished:") == 3


@pytest.mark.parametrize("pruner", first(1, ["freeze_thaw", "none"]))
def test_the_first_trial_of_a_search_has_the_values_that_the_user_believes_in(tmp_path, pruner):
    enough = ["hydra.sweeper.max_examples=2000ex"] if pruner == "freeze_thaw" else []
    more = ("kind=choice(a,b)", f"hydra.sweeper.pruner={pruner}", *enough, *RUNGS.split())
    search(tmp_path / "s", PRIOR, *more, "hydra.sweeper.n_trials=1")
    search(tmp_path / "s", PRIOR, *more, "hydra.sweeper.n_trials=3")
    drawn = [trial.params["lr"] for trial in trials(tmp_path / "s")]
    assert drawn[0] == 0.1 and len(set(drawn)) == 3


def test_a_hopeless_trial_is_pruned_at_a_rung_and_the_cost_is_announced(tmp_path):
    said = search(
        tmp_path / "s", DRAWN, "hydra.sweeper.pruner=hyperband", "hydra.sweeper.n_trials=12", "steps=9",
        "hydra.sweeper.min_resource=100ex", "hydra.sweeper.max_resource=900ex",
    )  # fmt: skip
    pruned = [outcome for outcome in outcomes(tmp_path / "s") if outcome["state"] == "pruned"]
    assert len(pruned) >= 3
    assert {outcome["examples"] for outcome in pruned} <= {100, 300, 900}
    assert re.search(r"bracket 0: about [\d.]+ trials, rungs at 100, 300 examples\n", said)
    assert "expected cost:" in said


OTHER_SAMPLERS = [pytest.param(name, marks=pytest.mark.thorough) for name in ("random", "gp")]


@pytest.mark.parametrize("sampler", ["tpe", *OTHER_SAMPLERS])
def test_every_sampler_draws(tmp_path, sampler):
    search(
        tmp_path / "s", DRAWN, "steps=tag(log,interval(1,8))", f"hydra/sweeper/sampler={sampler}",
        "hydra.sweeper.n_trials=4",
    )  # fmt: skip
    drawn = [tuple(trial.params.values()) for trial in trials(tmp_path / "s")]
    assert len(set(drawn)) == 4


EACH_ONCE = first(2, [
    "hydra/sweeper/sampler=random lr=0.1", f"hydra/sweeper/sampler=tpe hydra.sweeper.pruner=asha {RUNGS}",
    "hydra/sweeper/sampler=gp", f"hydra.sweeper.pruner=freeze_thaw {RUNGS}",
])  # fmt: skip


@pytest.mark.parametrize("overrides", EACH_ONCE)
def test_a_search_tries_each_configuration_once_and_ends_after_the_last_one(tmp_path, overrides):
    said = search(
        tmp_path / "s", "lr=choice(0.1,0.2)", "kind=choice(a,b)", "hydra.sweeper.n_trials=8", *overrides.split()
    )
    drawn = [(trial.params.get("lr", 0.1), trial.params["kind"]) for trial in trials(tmp_path / "s")]
    rates = (0.1,) if "lr=0.1" in overrides else (0.1, 0.2)
    assert sorted(drawn) == [(rate, kind) for rate in rates for kind in "ab"]
    assert all(len(runs(tmp_path / "s", number)) >= 1 for number in range(len(drawn)))
    assert said.count("every configuration has been tried, so no new trial begins") == 1


@pytest.mark.thorough
def test_jobs_in_separate_processes_keep_the_slots_filled(tmp_path):
    said = search(tmp_path / "s", DRAWN, *LOCAL, "hydra.sweeper.n_trials=5", "step_s=0.1")
    assert states(tmp_path / "s") == ["COMPLETE"] * 5
    running, most = 0, 0
    for event in re.findall(r"^trial \d+ (started|finished):", said, re.MULTILINE):
        running += 1 if event == "started" else -1
        most = max(most, running)
    assert most == 2
    assert "idle slots:" in said


OTHER = f"""
import sys
import hydra
from hydra.core.config_store import ConfigStore
sys.path.append({str(REPOSITORY / "launchers")!r})
ConfigStore.instance().store(name="other", node={{"x": 1.0}})
@hydra.main(config_path=None, config_name="other")
def main(config):
    return config.x * 2
main()
"""


def test_a_program_that_does_not_report_to_its_trial_is_refused(tmp_path):
    (tmp_path / "other.py").write_text(OTHER)
    said = search(tmp_path / "s", "x=choice(1.0,2.0)", program=[str(tmp_path / "other.py")], status=1)
    assert "a search needs a program that reports to its trial" in said and not (tmp_path / "s").exists()


def test_a_local_trial_that_needs_too_many_gpus_is_refused_before_the_first_trial(tmp_path, monkeypatch):
    monkeypatch.setitem(ENVIRONMENT, "CUDA_VISIBLE_DEVICES", "4,5")
    drawn = ("hydra/launcher=local", "trainer.devices=choice(1,3)")
    said = search(tmp_path / "s", *drawn, status=1)
    assert "trainer.devices is 3, but a trial on this machine can have 2 GPUs only; set trainer.devices to <= 2" in said
    assert "started" not in said and not (tmp_path / "s").exists()
