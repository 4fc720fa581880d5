"""What the model of freeze_thaw says about any search at its end: importances, surfaces, and predicted curves.

A search by freeze_thaw has the very model with which it would decide next. For any other one, the same model is fitted
to its trials. Axes as in `nlu.sweeps.schedulers.freeze_thaw`; V values of a parameter, B configurations.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from optuna.distributions import BaseDistribution, CategoricalDistribution

from nlu.display.insight import Forecast, Surface
from nlu.sweeps.schedulers.encoding import Encoding
from nlu.sweeps.schedulers.freeze_thaw import FreezeThaw, Model
from nlu.sweeps.schedulers.scheduler import FAILED, Decision, Lengths, Standing

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

GRID = 25
"""the values of a number on an axis of a surface"""
EFFECT_VALUES, EFFECT_TRIALS = 15, 40
"""the values of a number, and the configurations around which it is varied, for its importance"""
FEWEST = 4
"""trials with values from which a surface is predicted"""
MAX_FORECASTS = 8
POINTS = 40
"""the points of a predicted curve"""
INTERVAL = 1.2816
"""standard deviations on each side of the mean for a probability of 80 %"""


@dataclass(frozen=True)
class View:
    """A model with the trials that it learned from; values are as the user sees them."""

    model: Model
    trials: Sequence[Standing]
    part: int
    """the examples of a whole trial, or of its first fold"""
    sign: float
    distributions: Mapping[str, BaseDistribution]
    """of each parameter that all trials draw from one distribution"""

    def predicted(self, configurations: Sequence[Mapping[str, object]]) -> np.ndarray:
        """Return the predicted values B of configurations at the end of a trial."""
        x_BC = self.model.encoding.rows(configurations)
        mean_B, _ = self.model.posterior.at(x_BC, np.full(len(x_BC), -1), np.ones(len(x_BC)))
        return self.values(mean_B)

    def values(self, standard_N: np.ndarray) -> np.ndarray:
        """Return values on the scale of the user."""
        return self.sign * np.array([self.model.scale.value(float(each)) for each in standard_N])

    @property
    def valued(self) -> list[Standing]:
        return [trial for trial in self.trials if trial.state != FAILED and math.isfinite(trial.best)]


def view_of(
    frozen: Sequence[FrozenTrial],
    trials: Sequence[Standing],
    log: Sequence[Decision],
    *,
    part: int | None,
    maximize: bool,
    scheduler: object = None,
) -> View | None:
    """Return the model of a search; None if too few trials have a value, or its parameters cannot be encoded.

    `trials` are those of `frozen` with parameters; `part` are the examples of a whole trial or of its first fold, None
    if unknown; `scheduler` is that of the search.
    """
    values = {trial.number: trial.values for trial in trials}
    seen = max((trial.points[-1][0] for trial in trials if trial.points), default=1)
    part = part or seen
    sign = 1.0 if maximize else -1.0
    # A program that reports nothing on its way has only its value.
    ends = {each.number: sign * each.values[0] for each in frozen if each.values and not each.intermediate_values}
    trials = [
        replace(trial, points=[(part, ends[trial.number])]) if trial.number in ends else trial for trial in trials
    ]
    if sum(math.isfinite(trial.best) for trial in trials) < FEWEST:
        return None
    drawn: dict[str, list[BaseDistribution]] = {}
    for each in frozen:
        for name, distribution in each.distributions.items():
            if distribution not in (held := drawn.setdefault(name, [])):
                held.append(distribution)
    if any(len({isinstance(each, CategoricalDistribution) for each in held}) > 1 for held in drawn.values()):
        return None
    always = [name for name in drawn if all(name in own for own in values.values())]
    if not isinstance(scheduler, FreezeThaw):
        encoding = Encoding(drawn, [name for name in drawn if name not in always])
        scheduler = FreezeThaw(Lengths(1, part, part), encoding, lambda suggest: {}, 0)
        log = []
    single = {name: held[0] for name, held in drawn.items() if len(held) == 1 and name in always}
    return View(scheduler.model(trials, log), trials, part, sign, single)


def values_at(distribution: Any, count: int) -> tuple[list[object], list[float]]:
    """Return values of a parameter, evenly on its scale or all its choices, and their places from 0 to 1."""
    if isinstance(distribution, CategoricalDistribution):
        choices: list[object] = list(distribution.choices)
        return choices, [(place + 0.5) / len(choices) for place in range(len(choices))]
    low, high = float(distribution.low), float(distribution.high)
    if low == high:
        return [low], [0.5]
    places = [float(place) for place in np.linspace(0, 1, count)]
    if distribution.log:
        return [min(max(low * (high / low) ** place, low), high) for place in places], places
    return [low + (high - low) * place for place in places], places


def effects_of(view: View) -> dict[str, float]:
    """Return the share of each parameter in the variance of the predicted values, largest first; empty without any.

    As the main effects of a functional analysis of variance (Hutter et al., ICML 2014): the variance over the range of
    a parameter of the mean prediction. The other parameters are those of up to `EFFECT_TRIALS` trials of the search,
    not of the whole space. A parameter that only some trials have is left out.
    """
    every = max(1, len(view.valued) // EFFECT_TRIALS)
    around = view.valued[::every][:EFFECT_TRIALS]
    found = {}
    for name, distribution in view.distributions.items():
        values, _ = values_at(distribution, EFFECT_VALUES)
        rows = [{**trial.values, name: value} for value in values for trial in around]
        mean_V = view.predicted(rows).reshape(len(values), len(around)).mean(1)
        found[name] = float(mean_V.var())
    total = sum(found.values())
    if not found or total <= 0:
        return {}
    return {name: each / total for name, each in sorted(found.items(), key=lambda pair: -pair[1])}


def surfaces_of(view: View, names: Sequence[str]) -> list[Surface]:
    """Return the surface of each pair of some parameters; the others are those of the best trial."""
    best = max(view.valued, key=lambda trial: (trial.examples >= view.part, trial.best, -trial.number))
    shown = [name for name in names if name in view.distributions]
    found = []
    for place, x in enumerate(shown):
        for y in shown[place + 1 :]:
            x_values, x_places = values_at(view.distributions[x], GRID)
            y_values, y_places = values_at(view.distributions[y], GRID)
            rows = [{**best.values, x: x_value, y: y_value} for y_value in y_values for x_value in x_values]
            value_YX = view.predicted(rows).reshape(len(y_values), len(x_values))
            found.append(Surface(x, y, x_places, y_places, value_YX.tolist()))
    return found


def forecasts_of(view: View) -> list[Forecast]:
    """Return the predicted curves of the trials with the best predictions at their end, best first."""
    row_of = {trial.number: row for row, trial in enumerate(view.trials)}
    rows = np.array([row_of[trial.number] for trial in view.valued])
    curves, posterior = view.model.curves, view.model.posterior
    ends, _ = posterior.at(curves.x_TC[rows], rows, np.ones(len(rows)))
    best = sorted(range(len(rows)), key=lambda place: (-ends[place], rows[place]))[:MAX_FORECASTS]
    return [_forecast(view, int(rows[place])) for place in best]


def _forecast(view: View, row: int) -> Forecast:
    trial = view.trials[row]
    first = min(trial.points[0][0] / view.part, 1.0)
    seen = [min(at / view.part, 1.0) for at, _ in trial.points]
    time_E = np.unique([*np.linspace(first, 1.0, POINTS), *(seen if len(seen) <= POINTS else ())])
    x_EC = np.repeat(view.model.curves.x_TC[[row]], len(time_E), axis=0)
    mean_E, deviation_E = view.model.posterior.at(x_EC, np.full(len(time_E), row), time_E)
    low_E, high_E = (view.values(mean_E + side * INTERVAL * deviation_E) for side in (-view.sign, view.sign))
    return Forecast(
        trial.number, (time_E * view.part).tolist(), view.values(mean_E).tolist(), low_E.tolist(), high_E.tolist()
    )
