"""The rule of PriorBand, against numbers that are computed by hand or by scipy."""

import math

import numpy as np
import optuna
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution
from optuna.samplers import RandomSampler
from optuna.trial import TrialState, create_trial
from scipy.stats import kstest, truncnorm

from nlu.search.brackets import bracket_of, brackets
from nlu.search.priors import WithPrior
from nlu.search.schedulers.belief import Belief
from tests.search.composed import read_space

LR, KIND = FloatDistribution(1e-5, 1e-1, log=True), CategoricalDistribution(["a", "b", "c"])
HYPERBAND = {"name": "hyperband", "min_resource": 100, "max_resource": 900, "reduction_factor": 3}
NONE = {"name": "none"}


def test_numbers_are_truncated_normal_on_their_scale_and_choices_half_the_center():
    belief = Belief({"lr": 1e-4, "kind": "b"})
    random = np.random.default_rng(0)
    positions = [(math.log10(belief.value("lr", LR, random)) + 5) / 4 for _ in range(2000)]
    expected = truncnorm(-1, 3, loc=0.25, scale=0.25)
    assert kstest(positions, expected.cdf).pvalue > 0.01
    kinds = [belief.value("kind", KIND, random) for _ in range(3000)]
    assert kinds.count("b") / 3000 == pytest.approx(1 / 2 + 1 / 6, abs=0.03)
    found = belief.log_density({"lr": 1e-3, "kind": "a", "other": 1e-3}, {"lr": LR, "kind": KIND, "other": LR})
    assert found == pytest.approx(expected.logpdf(0.5) + math.log(1 / 6), abs=1e-9)


def study_of(*values: tuple[float, float]) -> optuna.Study:
    """A study to maximize, with a complete trial for each learning rate and value."""
    study = optuna.create_study(direction="maximize", study_name="s")
    for lr, value in values:
        study.add_trial(create_trial(params={"lr": lr}, distributions={"lr": LR}, value=value))
    return study


def test_the_trust_in_the_prior_grows_with_the_rung_at_which_a_bracket_begins():
    sampler = WithPrior(RandomSampler(seed=0), {"lr": 1e-4}, HYPERBAND, 3, 0)
    found = {bracket_of(brackets(HYPERBAND), "s", number).number: sampler.trust("s", number) for number in range(40)}
    assert found == {0: 1 / 2, 1: 3 / 4, 2: 9 / 10}


def test_without_a_complete_trial_half_of_the_trials_come_from_the_prior():
    study = optuna.create_study(sampler=WithPrior(RandomSampler(seed=0), {"lr": 1e-5}, NONE, 3, 0))
    positions = np.array([(math.log10(study.ask({"lr": LR}).params["lr"]) + 5) / 4 for _ in range(1500)])
    # Even draws lie below a quarter with the probability 1/4, the half normal ones with 0.683.
    assert np.mean(positions < 0.25) == pytest.approx((0.25 + 0.6827) / 2, abs=0.04)


def test_the_share_of_the_prior_is_what_it_makes_of_the_best_trials_weighted_by_rank():
    values = [(1e-2, 0.9), (3e-3, 0.8), (1e-4, 0.3), (1e-5, 0.2), (1e-5, 0.1), (2e-5, 0.1)]
    sampler = WithPrior(RandomSampler(seed=0), {"lr": 1e-5}, NONE, 3, 0)
    best = sampler._best_trials(study_of(*values))
    assert [trial.params["lr"] for trial in best] == [1e-2, 3e-3]
    at = [(math.log10(lr) + 5) / 4 for lr in (1e-2, 3e-3)]
    prior, near = truncnorm(0, 4, loc=0, scale=0.25), truncnorm(-3, 1, loc=at[0], scale=0.25)
    scores = [2 * one.pdf(at[0]) + one.pdf(at[1]) for one in (prior, near)]
    found = sampler.share_of_prior(Belief({"lr": 1e-2}), best)
    assert found == pytest.approx(scores[0] / sum(scores), rel=1e-9) and found < 0.05


def test_a_wrong_prior_gives_way_to_neighbors_of_the_best_trial():
    study = study_of(*[(1e-2, 0.9), (1e-5, 0.2), (1e-5, 0.1)])
    study.sampler = WithPrior(RandomSampler(seed=0), {"lr": 1e-5}, NONE, 3, 0)
    positions = []
    for _ in range(400):
        trial = study.ask({"lr": LR})
        positions.append((math.log10(trial.params["lr"]) + 5) / 4)
        study.tell(trial, state=TrialState.FAIL)
    near = truncnorm(-3, 1, loc=0.75, scale=0.25)
    assert np.mean(np.array(positions) > 0.5) == pytest.approx((0.5 + near.sf(0.5)) / 2, abs=0.06)


def test_a_prior_is_read_from_the_command_line_and_is_a_value_that_can_be_drawn():
    given = [
        "a=tag(log, interval(1e-5,5e-4), prior=1e-4)",
        "b=tag(choice(x,'y z'),prior='y z')",
        "c=tag(range(1,9,2),prior=5)",
    ]
    space = read_space(None, {"b=x": {"d": "tag(interval(0,1),prior=0.5)"}}, given)
    assert space.priors == {"a": 1e-4, "b": "y z", "c": 5, "d": 0.5}
    assert read_space(None, None, [*given, "a=interval(0,1)", "b=x"]).priors == {"c": 5}
