"""A freeze-thaw search: the next step goes to the trial, paused or new, that most probably improves on the best value.

A Gaussian process over learning curves (`nlu.search.schedulers.process`) predicts each trial. The acquisition is that
of ifBO (Rakotoarison et al. 2024, arXiv:2404.16795): the probability of exceeding the best value by a threshold within
a horizon, both drawn at random for each decision. So some decisions look for a small gain soon, others for a large one
late, and no trade-off has to be set. Unlike there, the trial whose step has just ended continues if a paused one is
likelier by less than 0.1 percentage points: where nothing is likely to improve, trials would otherwise take turns step
by step, and each turn starts a process.

A search begins as one with asha and random configurations, and while few evaluations were seen, a trial that ranks
promote comes before what the model wants. Where the fastest trials are not those that end best, as with the learning
rate of a run of fixed length, a model of first steps only would continue no other ones, and never see its mistake.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.linalg import LinAlgError
from scipy.special import ndtr

from nlu.search.schedulers.encoding import Belief, Encoding, drawn_anywhere, drawn_near
from nlu.search.schedulers.process import Curves, Posterior, fitted, prior, thinned
from nlu.search.schedulers.scheduler import FAILED, NEW, PAUSED, RUNNING, Asha, Decision, Draw, Lengths, Standing
from nlu.search.space import identity

FIRST_TRIALS = 8
"""trials that are drawn at random before the model decides"""
FIRST_RUNS, FIRST_SHARE = 3.0, 0.4
"""over the examples of so many whole trials, but no more than this share of the budget, trials are drawn at random and
continue by ranks only"""
RANKED = 150
"""until so many evaluations were seen, a trial that is promoted by ranks comes before those of the model: in a search
over runs that are scored 16 times, up to the ninth whole trial (benchmarks/RESULTS.md)"""
LEAST_EVALUATIONS = 2
"""the first step of a trial that the model draws"""
EXPLORED = 0.1
"""the share of decisions for a new trial that is drawn at random"""
TRUSTED = 0.5
"""the share of random draws that come from the prior, if there is one: that of PriorBand for trials that begin at the
first rung"""
CANDIDATES, NEAR = 200, 120
"""new configurations that compete at each decision; so many of them are neighbors of the best trials"""
ORIGINS = 5
"""the best trials, whose neighbors compete"""
STEPS = 26
"""the steps of a whole trial, unless it has fewer evaluations"""
POINTS = 6
"""the points of a curve that the model sees, spaced geometrically"""
MOST_POINTS = 600
"""the points of all curves that the model sees: the time of a decision grows with their cube"""
FIT_POINTS, FIT_EVERY, FIT_ITERATIONS = 160, 12, 12
"""the kernel is fitted to at most so many points, once in so many decisions, from its last parameters"""
GAIN = (1e-3, 1e-1)
"""the bounds of the threshold, as a share of the difference between the best trial and the median one"""
LOWEST = -3.0
"""the place on the scale of the model below which all values are alike, such as that of a trial that failed"""
TIE = 1e-3
"""the least difference of chances for which a trial is paused and another one continues, which starts a process"""
MODEL = "model"
"""the rule of its decisions that is no rule of ranks"""
KERNEL = "kernel"
"""in the log of a decision: the logarithms of the kernel's parameters, if they were fitted for it"""


@dataclass(frozen=True)
class Scale:
    """The scale on which the model sees values: 0 for the median trial and 1 for the best one, logarithmic below.

    So differences between good trials stay large, whatever the bad ones and the first evaluations are.
    """

    median: float
    best: float
    unit: float

    @classmethod
    def of(cls, trials: Sequence[Standing]) -> "Scale":
        """Return the scale for the best values of some trials, one of which is finite."""
        found = [trial.best for trial in trials if math.isfinite(trial.best)]
        median, best = float(np.median(found)), max(found)
        # Before trials differ, any unit does; it keeps their evaluations apart.
        unit = best - median or float(np.std([value for each in trials for _, value in each.points])) or 1.0
        return cls(median, best, unit if math.isfinite(unit) else 1.0)

    def standard(self, values_N: np.ndarray) -> np.ndarray:
        """Return values on this scale; those that are not finite are the lowest ones."""
        found_N = (np.where(np.isfinite(values_N), values_N, -1e30) - self.median) / self.unit
        return np.maximum(np.where(found_N < 0, -np.log1p(-np.minimum(found_N, 0)), found_N), LOWEST)


@dataclass(frozen=True)
class Model:
    """What the model learned from some trials; rows of `curves` are their places among them."""

    curves: Curves
    scale: Scale
    kernel: np.ndarray
    posterior: Posterior
    is_fitted: bool
    """whether the kernel was fitted now"""


class FreezeThaw:
    """Axes: M candidates, N points, T trials, C columns."""

    def __init__(
        self,
        lengths: Lengths,
        encoding: Encoding,
        draw: Draw,
        seed: int,
        centers: Mapping[str, object] | None = None,
        *,
        factor: int = 3,
        first_runs: float = FIRST_RUNS,
    ):
        """`centers`: the values of the prior, if there is one. `factor`: of the rungs of the first decisions;
        `first_runs`: the whole trials whose examples they may cost."""
        self._lengths, self._encoding, self._draw, self._seed = lengths, encoding, draw, seed
        self._belief = Belief(centers) if centers else None
        self._steps = max(1, round(lengths.part / lengths.least / STEPS))
        """the evaluations in a step"""
        self._ranks = Asha(lengths, factor)
        self._by_rank_until = min(first_runs * lengths.end, FIRST_SHARE * lengths.budget)

    def decide(self, trials: Sequence[Standing], log: Sequence[Decision], *, may_begin: bool) -> Decision | None:
        """Return the trial that gets the next step, see `Scheduler`."""
        lengths = self._lengths
        random = np.random.default_rng([self._seed, len(log)])
        may_begin = may_begin and lengths.affords(trials, None, self._ranks.rungs[0])
        paused = [trial for trial in trials if trial.state == PAUSED and not trial.part_ends]
        paused = [trial for trial in paused if lengths.affords(trials, trial, lengths.stop(trial, self._steps))]
        seen = sum(len(trial.points) for trial in trials)
        if seen < RANKED and (promoted := self._ranks.promoted(trials)) is not None:
            return promoted
        if may_begin and (len(trials) < FIRST_TRIALS or random.random() < EXPLORED):
            return self._begun(self._random(random), {"rule": "random"})
        if may_begin and lengths.spent(trials) < self._by_rank_until:
            return self._begun(self._random(random), {"rule": NEW})
        if not any(math.isfinite(trial.best) for trial in trials):
            if may_begin:
                return self._begun(self._random(random), {"rule": "random"})
            return self._thawed(paused[0], {"rule": "only"}) if paused else lengths.last_steps(trials)
        new = self._new_candidates(trials, random) if may_begin else []
        if not paused and not new:
            return lengths.last_steps(trials)
        return self._most_probable(trials, log, paused, new, random)

    def _begun(self, values: Mapping[str, object], why: Mapping[str, Any]) -> Decision:
        """Return the first step of a trial: to the first rung, or shorter if the model draws it."""
        first = self._ranks.rungs[0]
        short = self._lengths.stop(None, max(self._steps, LEAST_EVALUATIONS))
        return Decision(min(first, short) if why["rule"] == MODEL else first, values=values, why=why)

    def _thawed(self, trial: Standing, why: Mapping[str, Any]) -> Decision:
        return Decision(self._lengths.stop(trial, self._steps), trial.number, why=why)

    def _new_candidates(self, trials: Sequence[Standing], random: np.random.Generator) -> list[dict[str, object]]:
        seen = [trial for trial in trials if math.isfinite(trial.best)]
        best = sorted(seen, key=lambda trial: (-trial.best, trial.number))[:ORIGINS]
        near = [drawn_near(self._draw, best[int(random.integers(len(best)))].values, random) for _ in range(NEAR)]
        drawn = near + [self._random(random) for _ in range(CANDIDATES - NEAR)]
        # Neighbors gather at the ends of an interval. To train a configuration again costs as much as a new one.
        known = {identity(trial.values) for trial in trials}
        return [values for values in drawn if identity(values) not in known]

    def _random(self, random: np.random.Generator) -> dict[str, object]:
        """Return a configuration drawn at random, from the prior or evenly."""
        if self._belief is not None and random.random() < TRUSTED:
            return self._belief.configuration(self._draw, random)
        return drawn_anywhere(self._draw, random)

    def _most_probable(
        self,
        trials: Sequence[Standing],
        log: Sequence[Decision],
        paused: Sequence[Standing],
        new: Sequence[Mapping[str, object]],
        random: np.random.Generator,
    ) -> Decision:
        """Return the candidate that most probably exceeds the best value."""
        part = self._lengths.part
        model = self._model(trials, log, random)
        scale, posterior = model.scale, model.posterior
        if any(trial.state == RUNNING for trial in trials):
            posterior = Posterior(self._with_pending(model.curves, posterior, trials), model.kernel)
        row_of = {trial.number: row for row, trial in enumerate(trials)}
        trial_M = np.array([row_of[trial.number] for trial in paused] + [-1] * len(new))
        begun_M = np.array([trial.examples / part for trial in paused] + [0.0] * len(new))
        x_MC = self._encoding.rows([*(trial.values for trial in paused), *new])
        horizon = random.uniform(min(1.0, self._lengths.least / part), 1.0)
        gain = math.exp(random.uniform(math.log(GAIN[0]), math.log(GAIN[1])))
        goal = float(scale.standard(np.array([scale.best]))[0]) + gain
        mean_M, deviation_M = posterior.at(x_MC, trial_M, np.minimum(begun_M + horizon, 1.0))
        score_M = (mean_M - goal) / deviation_M
        chance_M = ndtr(score_M)
        chosen = _chosen(paused, score_M, chance_M)
        why = {
            "rule": MODEL,
            "chance": float(chance_M[chosen]),
            **({KERNEL: model.kernel.tolist()} if model.is_fitted else {}),
        }
        return (
            self._thawed(paused[chosen], why) if chosen < len(paused) else self._begun(new[chosen - len(paused)], why)
        )

    def _model(self, trials: Sequence[Standing], log: Sequence[Decision], random: np.random.Generator) -> Model:
        """Return the model of these trials, one of which has a finite value."""
        curves, scale = self._curves(trials)
        kernel, is_fitted = self._kernel(curves, log, random)
        try:
            posterior = Posterior(curves, kernel)
        except LinAlgError:
            # Its noise is small, and points are nearly equal; the prior has more.
            kernel = prior(len(self._encoding.names))[0]
            posterior = Posterior(curves, kernel)
        return Model(curves, scale, kernel, posterior, is_fitted)

    def _curves(self, trials: Sequence[Standing]) -> tuple[Curves, "Scale"]:
        """Return the curves of the trials, on the scale that is returned too."""
        trial_N, time_N, value_N = [], [], []
        for row, (trial, seen) in enumerate(zip(trials, _seen(trials), strict=True)):
            for at in seen:
                examples, value = trial.points[at]
                trial_N.append(row)
                time_N.append(min(examples / self._lengths.part, 1.0))
                value_N.append(value)
            if trial.state == FAILED:
                # So that its neighbors are tried last.
                trial_N.append(row)
                time_N.append(1.0)
                value_N.append(-math.inf)
        scale = Scale.of(trials)
        rows_TC = self._encoding.rows([trial.values for trial in trials])
        curves = Curves(
            rows_TC, self._encoding.parameter_C, np.array(trial_N), np.array(time_N), scale.standard(np.array(value_N))
        )
        return curves, scale

    def _kernel(self, curves: Curves, log: Sequence[Decision], random: np.random.Generator) -> tuple[np.ndarray, bool]:
        """Return the logarithms of the kernel's parameters, and whether they were fitted now."""
        start = prior(len(self._encoding.names))[0]
        fits = [(at, decision.why[KERNEL]) for at, decision in enumerate(log) if KERNEL in decision.why]
        if fits:
            start = np.array(fits[-1][1])
        if fits and len(log) - fits[-1][0] < FIT_EVERY:
            return start, False
        count = len(curves.value_N)
        if count > FIT_POINTS:
            kept = np.sort(random.choice(count, FIT_POINTS, replace=False))
            own = (each[kept] for each in (curves.trial_N, curves.time_N, curves.value_N))
            curves = Curves(curves.x_TC, curves.parameter_C, *own)
        # Rounded as in the log, so that the decisions of a continued search have the same parameters.
        return np.round(fitted(curves, start, FIT_ITERATIONS), 6), True

    def _with_pending(self, curves: Curves, posterior: Posterior, trials: Sequence[Standing]) -> Curves:
        """Return the curves with the steps that run now, as if they had reached what the model predicts."""
        rows = np.array([row for row, trial in enumerate(trials) if trial.state == RUNNING])
        times = np.array([min(trials[row].until / self._lengths.part, 1.0) for row in rows])
        mean, _ = posterior.at(curves.x_TC[rows], rows, times)
        trial_N = np.r_[curves.trial_N, rows]
        order = np.argsort(trial_N, kind="stable")
        time_N, value_N = np.r_[curves.time_N, times][order], np.r_[curves.value_N, mean][order]
        return replace(curves, trial_N=trial_N[order], time_N=time_N, value_N=value_N)


def _chosen(paused: Sequence[Standing], score_M: np.ndarray, chance_M: np.ndarray) -> int:
    """Return the candidate with the best score; if that is a paused trial, the one that asks if it is as likely.

    The candidates are the paused trials and then the new ones, which start a process in any case.
    """
    best = int(np.argmax(score_M))
    asking = next((row for row, trial in enumerate(paused) if trial.asks), None)
    if asking is None or best >= len(paused):
        return best
    return asking if chance_M[best] - chance_M[asking] < TIE else best


def _seen(trials: Sequence[Standing]) -> list[Sequence[int]]:
    """Return the positions of the points of each trial that the model sees, at most `MOST_POINTS` in all.

    If there would be more, the worst trials have their last points only, and then none.
    """
    found: list[Sequence[int]] = [thinned(len(trial.points), POINTS) for trial in trials]
    left = sum(map(len, found)) - MOST_POINTS
    worst_first = sorted(range(len(trials)), key=lambda row: (trials[row].best, -row))
    for kept in (1, 0):
        for row in worst_first:
            if left <= 0:
                return found
            left -= max(0, len(found[row]) - kept)
            found[row] = found[row][-1:] if kept else []
    return found
