"""What is used of libraries that they do not promise to keep: when it was read, and what is done without it."""

from importlib.metadata import version
from pathlib import Path

import optuna
import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra_plugins.hydra_optuna_sweeper._impl import OptunaSweeperImpl
from optuna.distributions import BaseDistribution
from optuna.trial import TrialState

from nlu.search import sampling
from nlu.search.sampling import SeededByTrial, drawing
from nlu.search.space import distribution_of, values_of
from nlu.search.trial_steps import pause_of

READ_IN = {
    "optuna": "5.0.0",
    "submitit": "1.5.4",
    "hydra-optuna-sweeper": "1.4.0rc3",
}
CONSTRAINTS = Path(__file__).parents[2] / "constraints.txt"


@pytest.mark.parametrize("name", READ_IN)
def test_the_version_is_the_one_that_was_read(name):
    assert version(name) == READ_IN[name], f"what is private of {name} is to be read again"
    assert f"{name}=={READ_IN[name]}" in CONSTRAINTS.read_text().splitlines()


def test_samplers_see_levels_as_long_as_optuna_reads_trials_in_one_place(monkeypatch):
    study = optuna.create_study()
    for state, steps in (
        (TrialState.PRUNED, {3: 0.25, 7: 0.5}),
        (TrialState.COMPLETE, {3: 0.5}),
        (TrialState.PRUNED, {}),
        (TrialState.RUNNING, {3: 0.125}),
        (TrialState.WAITING, {3: 0.125, 7: 0.5, 9: 0.25}),
    ):
        value = 1.0 if state.is_finished() else None
        paused = dict([pause_of(9, 1)]) if state == TrialState.WAITING else {}
        study.add_trial(
            optuna.trial.create_trial(state=state, value=value, intermediate_values=steps, system_attrs=paused)
        )
    seen = sampling.levelled(study, lambda trial: len(trial.intermediate_values))
    # Of a search that minimizes the least is the best. A paused trial waits, and is seen as a pruned one.
    assert [(trial.state.name, trial.intermediate_values) for trial in seen._get_trials()] == [
        ("PRUNED", {2: 0.25}), ("COMPLETE", {3: 0.5}), ("PRUNED", {}), ("RUNNING", {3: 0.125}), ("PRUNED", {3: 0.125}),
    ]  # fmt: skip
    assert study.trials[0].intermediate_values == {3: 0.25, 7: 0.5} and study.trials[4].state == TrialState.WAITING
    assert seen.direction == study.direction
    monkeypatch.delattr(optuna.Study, "_get_trials")
    assert sampling.levelled(study, lambda trial: 0) is study


def test_samplers_read_the_trials_again_once_they_are_forgotten(monkeypatch):
    study = optuna.create_study()
    study.add_trial(optuna.trial.create_trial(state=TrialState.COMPLETE, value=1.0))
    assert len(study._get_trials(use_cache=True)) == 1
    study.add_trial(optuna.trial.create_trial(state=TrialState.COMPLETE, value=1.0))
    assert len(study._get_trials(use_cache=True)) == 1
    sampling.forget_trials(study)
    assert len(study._get_trials(use_cache=True)) == 2
    monkeypatch.delattr(study, "_thread_local")
    sampling.forget_trials(study)


OVERRIDES = [
    "x=choice(a,b)", "x=1,2", "x=1,2.5,null", "x=range(1,4)", "x=range(4,0,-2)", "x=range(0,1,0.1)",
    "x=range(1,0,-0.3)", "x=range(0.1,0.35,0.1)", "x=range(5)", "x=float(range(1,4))", "x=sort(3,1,2)",
    "x=range(1e17,1.0000000000000004e17,2.5)", "x=interval(1,2)", "x=int(interval(1,9))",
    "x=tag(log,interval(1e-5,1))", "x=tag(log,int(interval(1,8)))",
]  # fmt: skip


def read(text: str) -> BaseDistribution:
    return distribution_of(OverridesParser.create().parse_overrides([text])[0])


@pytest.mark.parametrize("text", OVERRIDES)
def test_a_grid_has_the_values_that_hydras_own_sweeper_gives_it(text):
    if (values := values_of(read(text))) is not None:
        assert list(values) == list(OptunaSweeperImpl._to_grid_sampler_choices(read(text)))


@pytest.mark.parametrize("text", OVERRIDES)
def test_a_parameter_is_drawn_as_a_trial_of_optuna_draws_it_but_not_written(text):
    distribution = read(text)
    study = optuna.create_study(sampler=SeededByTrial(lambda seed: optuna.samplers.TPESampler(seed=seed), 0))
    for number in range(12):
        trial = study.ask()
        value = drawing(study, study.get_trials()[number], {})("x", distribution)
        assert trial.params == {}
        assert value == trial._suggest("x", distribution) and trial.params == {"x": value}
        study.tell(trial, number % 5)
