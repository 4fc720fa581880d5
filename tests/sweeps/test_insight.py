"""What the model says about a search: against dense formulas, and against functions whose answer is known."""

import math

import numpy as np
import optuna
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution
from optuna.trial import TrialState, create_trial
from scipy.stats import norm

from nlu.sweeps.brackets import PRUNER
from nlu.sweeps.insight import INTERVAL, effects_of, forecasts_of, surfaces_of, values_at, view_of
from nlu.sweeps.schedulers.encoding import Encoding
from nlu.sweeps.schedulers.freeze_thaw import FreezeThaw
from nlu.sweeps.schedulers.scheduler import Lengths
from nlu.sweeps.steps import VALUES, log_of, standings
from tests.sweeps.studies import study_of
from tests.sweeps.test_schedulers import dense_covariance

LR = FloatDistribution(1e-4, 1.0, log=True)
SPACE = {"lr": LR, "wide": FloatDistribution(0.0, 1.0), "kind": CategoricalDistribution(["a", "b", "c"])}


def study(value, count=40, *, space=SPACE, maximize=True, steps=4, name="none", states=lambda number: "COMPLETE"):
    """A study of trials whose value at an example is that of a function of its parameters and its share of a trial."""
    random = np.random.default_rng(0)
    found = optuna.create_study(direction="maximize" if maximize else "minimize")
    found.set_user_attr(PRUNER, {"name": name, "min_resource": 100, "max_resource": 100 * steps, "parts": 1})
    for number in range(count):
        values = {
            "lr": float(10 ** random.uniform(-4, 0)), "wide": float(random.random()),
            "kind": str(random.choice(list("abc"))),
        }  # fmt: skip
        values = {each: values[each] for each in space}
        state = states(number)
        done = steps if state == "COMPLETE" else 0 if state == "FAIL" else 2
        reports = {100 * step: value(values, step / steps) for step in range(1, done + 1)}
        found.add_trial(
            create_trial(
                state=TrialState[state], value=reports[100 * steps] if state == "COMPLETE" else None, params=values,
                distributions=dict(space), intermediate_values=reports, user_attrs={VALUES: values},
            )
        )  # fmt: skip
    return found


def hill(values, share):
    return (1 - 0.2 * (math.log10(values["lr"]) + 2) ** 2 + 0.02 * values["wide"]) * (1 - 0.5 * math.exp(-3 * share))


def view(found, *, maximize=True, scheduler=None):
    trials = found.get_trials()
    own = standings(trials, maximize=maximize)
    return view_of(trials, own, log_of(trials), part=400, maximize=maximize, scheduler=scheduler)


@pytest.fixture(scope="module")
def of_hill():
    return view(study(hill))


def test_the_interval_holds_eighty_percent():
    assert norm.cdf(INTERVAL) - norm.cdf(-INTERVAL) == pytest.approx(0.8, abs=1e-4)


def test_the_value_follows_the_parameter_that_decides_it(of_hill):
    effects = effects_of(of_hill)
    assert list(effects)[0] == "lr" and effects["lr"] > 0.9 and sum(effects.values()) == pytest.approx(1)
    assert list(effects.values()) == sorted(effects.values(), reverse=True)


def test_effects_are_the_variances_of_mean_predictions(of_hill):
    """Computed again, configuration by configuration."""
    around = [trial.values for trial in of_hill.valued]
    variances = {}
    for name in SPACE:
        values, _ = values_at(SPACE[name], 15)
        means = [
            np.mean([of_hill.predicted([{**each, name: value}])[0] for each in around]) for value in values
        ]  # fmt: skip
        variances[name] = np.var(means)
    expected = {name: each / sum(variances.values()) for name, each in variances.items()}
    assert effects_of(of_hill) == pytest.approx(expected, rel=1e-6)


def test_a_surface_is_near_the_function_that_made_the_trials(of_hill):
    (surface,) = surfaces_of(of_hill, ["lr", "wide"])
    lrs, places = values_at(LR, 25)
    assert surface.x_places == places and (surface.x, surface.y) == ("lr", "wide")
    for row, wide in zip(surface.value_YX, np.linspace(0, 1, 25), strict=True):
        expected = [hill({"lr": lr, "wide": wide}, 1.0) for lr in lrs]
        np.testing.assert_allclose(row[4:21], expected[4:21], atol=0.03)


def test_a_parameter_that_not_all_trials_draw_has_no_surface():
    trials = study_of(lambda number: "COMPLETE", 20).get_trials()
    found = view_of(trials, standings(trials, maximize=True), [], part=4000, maximize=True)
    assert "optimizer.layer_lr_decay" not in found.distributions and "model" in found.distributions
    surfaces = surfaces_of(found, ["optimizer.layer_lr_decay", "model", "optimizer.lr", "model.dropout"])
    assert [(each.x, each.y) for each in surfaces] == [
        ("model", "optimizer.lr"), ("model", "model.dropout"), ("optimizer.lr", "model.dropout")
    ]  # fmt: skip
    assert list(surfaces[0].x_places) == [0.25, 0.75]


@pytest.mark.parametrize("maximize", [True, False])
def test_predicted_curves_equal_the_posterior_by_the_dense_formula(maximize):
    space = {"lr": LR}
    sign = 1 if maximize else -1
    found = study(
        lambda values, share: sign * hill({**values, "wide": 0.0}, share), 10, space=space, maximize=maximize,
        states=lambda number: ("COMPLETE", "RUNNING")[number % 2],
    )  # fmt: skip
    scheduler = FreezeThaw(Lengths(100, 400, 400), Encoding({"lr": [LR]}), lambda suggest: {}, 0)
    own = view(found, maximize=maximize, scheduler=scheduler)
    forecasts = forecasts_of(own)
    curves, kernel, scale = own.model.curves, own.model.kernel, own.model.scale
    at = curves.x_TC[curves.trial_N], curves.time_N, curves.trial_N
    covariance = dense_covariance(kernel, *at, *at) + (np.exp(kernel[-1]) + 1e-6) * np.eye(len(curves.value_N))
    for forecast in forecasts:
        row = forecast.trial
        time_E = np.array(forecast.examples_E) / 400
        wanted = np.repeat(curves.x_TC[[row]], len(time_E), 0), time_E, np.full(len(time_E), row)
        cross = dense_covariance(kernel, *wanted, *at)
        mean_E = cross @ np.linalg.solve(covariance, curves.value_N)
        own_E = np.diag(dense_covariance(kernel, *wanted, *wanted))
        deviation_E = np.sqrt(own_E - np.einsum("en,ne->e", cross, np.linalg.solve(covariance, cross.T)))
        np.testing.assert_allclose(forecast.mean_E, [sign * scale.value(each) for each in mean_E], rtol=1e-5)
        for bound, side in ((forecast.low_E, -sign), (forecast.high_E, sign)):
            expected = [sign * scale.value(each) for each in mean_E + side * INTERVAL * deviation_E]
            np.testing.assert_allclose(bound, expected, rtol=1e-5)
        assert all(low <= mean <= high for low, mean, high in zip(
            forecast.low_E, forecast.mean_E, forecast.high_E, strict=True))  # fmt: skip
        assert forecast.examples_E[-1] == 400 and forecast.examples_E[0] == 100
    ends = [sign * forecast.mean_E[-1] for forecast in forecasts]
    assert ends == sorted(ends, reverse=True) and len(forecasts) == 8


def test_failed_trials_are_no_base_of_predictions_but_their_neighbors_are_bad():
    def value(values, share):
        return 0.5 + 0.01 * values["wide"] * share

    found = study(value, 30, states=lambda number: "FAIL" if number % 3 == 0 else "COMPLETE")
    own = view(found)
    assert len(own.valued) == 20
    failed = [trial.values for trial in own.trials if trial not in own.valued]
    rest = [trial.values for trial in own.valued]
    assert own.predicted(failed).mean() < own.predicted(rest).mean() - 0.001
