"""What is drawn for a number depends on seed, number and the trials before, never on breaks."""

import itertools

import optuna
import pytest
from optuna.distributions import FloatDistribution, IntDistribution

from nlu.search.pruners import PRUNER
from nlu.search.sampling import Grid, SeededByTrial
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


def test_a_grid_gives_each_combination_once_in_the_order_of_its_seed_also_after_a_break():
    space = read_space({"a": "choice(x,y)", "b": "range(1,4)", "c": "range(0.1,0.4,step=0.1)"}, {}, [])
    values, drawn = grid_values(space), {1: [], 2: []}
    for seed, found in drawn.items():
        storage = optuna.storages.InMemoryStorage()
        for count in (5, 13):
            grid = Grid(values, seed)
            study = optuna.create_study(study_name="s", storage=storage, sampler=grid, load_if_exists=True)
            found += [tuple(study.ask(space.params).params.values()) for _ in range(count)]
    assert sorted(drawn[1]) == sorted(drawn[2]) == list(itertools.product("xy", (1, 2, 3), (0.1, 0.2, 0.3)))
    assert drawn[1] != drawn[2] != sorted(drawn[2])


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
