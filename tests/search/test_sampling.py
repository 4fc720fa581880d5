"""What is drawn for a number depends on seed, number and the trials before, never on breaks."""

import itertools

import optuna
import pytest
from optuna.distributions import FloatDistribution, IntDistribution

from nlu.search.pruners import PRUNER
from nlu.search.sampling import SeededByTrial, grid_point
from nlu.search.space import grid_problems, grid_values
from tests.search.composed import read_space

SPACE = {"x": FloatDistribution(0, 1), "y": IntDistribution(1, 1000)}


def sampler(kind=optuna.samplers.RandomSampler, seed: int = 1) -> SeededByTrial:
    return SeededByTrial(lambda own: kind(seed=own), seed)


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


def test_a_grid_has_each_combination_once_in_the_order_of_its_seed():
    space = read_space({"a": "choice(x,y)", "b": "range(1,4)", "c": "range(0.1,0.4,step=0.1)"}, {}, [])
    first, other = (
        [tuple(grid_point(grid_values(space), seed, number).values()) for number in range(18)] for seed in (1, 2)
    )
    assert sorted(first) == sorted(other) == list(itertools.product("xy", (1, 2, 3), (0.1, 0.2, 0.3)))
    assert first != other != sorted(other)


def test_conditions_intervals_and_priors_are_no_grid():
    space = read_space(
        {"a": "choice(x,y)", "b": "interval(0,1)", "c": "tag(choice(1,2),prior=1)"}, {"a=x": {"d": "choice(1,2)"}}, []
    )
    assert [problem.split()[0] for problem in grid_problems(space)] == ["hydra.sweeper.when", "c", "b"]


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
