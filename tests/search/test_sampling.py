"""What is drawn for a number depends on seed, number and the trials before, never on breaks."""

import math

import optuna
import pytest
from optuna.distributions import FloatDistribution, IntDistribution

from nlu.search.pruners import PRUNER
from nlu.search.sampling import SeededByTrial, drawing

LOG = FloatDistribution(1e-4, 1e-1, log=True)
SPACE = {"x": FloatDistribution(0, 1), "y": IntDistribution(1, 1000)}


def sampler(kind=optuna.samplers.RandomSampler, seed: int = 1, **more) -> SeededByTrial:
    return SeededByTrial(lambda own: kind(seed=own), seed, **more)


def draw(study: optuna.Study, count: int) -> list[dict]:
    drawn = []
    for _ in range(count):
        trial = study.ask(SPACE)
        study.tell(trial, trial.params["x"])
        drawn.append(trial.params)
    return drawn


@pytest.mark.parametrize("kind", [optuna.samplers.RandomSampler, optuna.samplers.TPESampler])
def test_a_broken_search_draws_what_an_unbroken_one_does(kind):
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    unbroken = draw(optuna.create_study(sampler=sampler(kind)), 14)
    storage = optuna.storages.InMemoryStorage()
    drawn = []
    for count in (3, 1, 10):
        study = optuna.create_study(study_name="s", storage=storage, sampler=sampler(kind), load_if_exists=True)
        drawn += draw(study, count)
    assert drawn == unbroken
    assert len({params["x"] for params in drawn}) == 14


def test_a_quasi_random_draw_that_a_kill_cut_off_is_drawn_again():
    quasi_random = sampler(optuna.samplers.QMCSampler, one_sequence=True, independent=optuna.samplers.RandomSampler)
    study, space = optuna.create_study(sampler=quasi_random), {"x": FloatDistribution(0, 1)}
    study.add_trial(optuna.trial.create_trial(value=0.0, params={"x": 0.3}, distributions=space))
    for number, point in enumerate([0.0, 0.5, 0.75, 0.25], start=1):
        study._storage.create_new_trial(study._study_id)
        for _ in range(2):
            assert drawing(study, study.trials[number], {})("x", space["x"]) == point


def test_the_ends_of_a_logarithmic_interval_are_drawn_as_they_are_written():
    class AtEnds(optuna.samplers.RandomSampler):
        """As Gaussian processes do."""

        def infer_relative_search_space(self, study, trial):
            return {"low": LOG}

        def sample_relative(self, study, trial, search_space):
            return {"low": math.exp(math.log(1e-4))}

        def sample_independent(self, study, trial, param_name, param_distribution):
            return math.exp(math.log(1e-4)) if param_name == "alone" else 0.0123

    trial = optuna.create_study(sampler=sampler(AtEnds)).ask({"alone": LOG, "inner": LOG, "low": LOG})
    assert trial.params == {"alone": 1e-4, "inner": 0.0123, "low": 1e-4} and math.exp(math.log(1e-4)) != 1e-4


@pytest.mark.parametrize(
    "pruner",
    [{"name": "hyperband", "min_resource": 250, "max_resource": 2000, "reduction_factor": 2}, {"name": "none"}],
)
def test_a_pruned_trial_that_saw_a_batch_more_does_not_outrank_a_better_one(pruner):
    # Trials of batch sizes 24 and 48 come to the rung at 500 after 504 and 528 examples, others just then.
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    # The name decides the bracket of each trial.
    study = optuna.create_study(study_name="s", direction="maximize", sampler=sampler(optuna.samplers.TPESampler))
    study.set_user_attr(PRUNER, pruner)
    space = {"x": FloatDistribution(0, 1)}
    for number in range(30):
        is_good = number % 5 == 0
        x, value, examples = (0.9, 0.95, 500) if is_good else (0.1, 0.10, 528)
        values = {examples // 2: value / 2, examples: value}
        study.add_trial(
            optuna.trial.create_trial(
                state=optuna.trial.TrialState.PRUNED, params={"x": x + number / 1000}, distributions=space,
                intermediate_values=values, value=value,
            )
        )  # fmt: skip
    drawn = [study.ask(space).params["x"] for _ in range(20)]
    assert sum(x > 0.5 for x in drawn) >= 15, drawn
    assert max(study.trials[5].intermediate_values) == 500, "the study itself keeps what was reported"
