"""Draws from a prior, against numbers that are computed by hand or by scipy."""

import math

import numpy as np
import optuna
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution
from optuna.samplers import RandomSampler
from optuna.trial import TrialState, create_trial
from scipy.stats import kstest, truncnorm

from nlu.search.sampling import WithPrior
from nlu.search.schedulers.encoding import Belief
from tests.search.composed import read_space

LR, KIND = FloatDistribution(1e-5, 1e-1, log=True), CategoricalDistribution(["a", "b", "c"])


def test_numbers_are_truncated_normal_on_their_scale_and_choices_half_the_center():
    belief = Belief({"lr": 1e-4, "kind": "b"})
    random = np.random.default_rng(0)
    positions = [(math.log10(belief.value("lr", LR, random)) + 5) / 4 for _ in range(2000)]
    expected = truncnorm(-1, 3, loc=0.25, scale=0.25)
    assert kstest(positions, expected.cdf).pvalue > 0.01
    kinds = [belief.value("kind", KIND, random) for _ in range(3000)]
    assert kinds.count("b") / 3000 == pytest.approx(1 / 2 + 1 / 6, abs=0.03)


def drawn(centers: dict[str, object], count: int) -> np.ndarray:
    """Return the positions of learning rates that a search draws, between the ends of their interval."""
    study = optuna.create_study(sampler=WithPrior(RandomSampler(seed=0), centers, 0))
    return np.array([(math.log10(study.ask({"lr": LR}).params["lr"]) + 5) / 4 for _ in range(count)])


def test_half_of_the_trials_come_from_the_prior_from_the_first_to_the_last():
    positions = drawn({"lr": 1e-5}, 1600)
    # Even draws lie below a quarter with the probability 1/4, the half normal ones with 0.683.
    assert np.mean(positions < 0.25) == pytest.approx((0.25 + 0.6827) / 2, abs=0.03)
    for part in np.split(positions, 2):
        assert np.mean(part < 0.25) == pytest.approx((0.25 + 0.6827) / 2, abs=0.05)


def test_whether_a_trial_comes_from_the_prior_does_not_depend_on_the_others():
    whole = optuna.create_study(sampler=WithPrior(RandomSampler(seed=0), {"lr": 1e-5, "x": 0.5}, 0))
    values = [whole.ask({"lr": LR, "x": FloatDistribution(0, 1)}).params for _ in range(30)]
    for number in (0, 7, 29):
        alone = optuna.create_study(sampler=WithPrior(RandomSampler(seed=1), {"lr": 1e-5, "x": 0.5}, 0))
        for _ in range(number):
            alone.add_trial(create_trial(state=TrialState.FAIL))
        found = alone.ask({"lr": LR, "x": FloatDistribution(0, 1)}).params
        # Both parameters or none: the other sampler draws other values here.
        assert [found[name] == values[number][name] for name in found] in ([True] * 2, [False] * 2)


def test_a_prior_is_read_from_the_command_line_and_is_a_value_that_can_be_drawn():
    given = [
        "a=tag(log, interval(1e-5,5e-4), prior=1e-4)",
        "b=tag(choice(x,'y z'),prior='y z')",
        "c=tag(range(1,9,2),prior=5)",
        "e=tag(choice(0.0001,0.001),prior=1e-3)",
    ]
    space = read_space(None, {"b=x": {"d": "tag(interval(0,1),prior=0.5)"}}, given)
    assert space.priors == {"a": 1e-4, "b": "y z", "c": 5, "d": 0.5, "e": 0.001}
    assert read_space(None, None, [*given, "a=interval(0,1)", "b=x"]).priors == {"c": 5, "e": 0.001}
