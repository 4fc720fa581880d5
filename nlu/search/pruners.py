"""The pruners of a search by name, and the one that stops trials: HyperBand (Li et al., JMLR 18 (2018), 185).

A hash assigns each trial to a bracket, in proportion to the budgets of the brackets. Trials are judged as they come
(ASHA, Li et al., MLSys 2020), so none waits for another. Optuna's pruner passes each trial that is among the best
1 / reduction_factor so far, no matter how many have passed. This one also bounds the number that passes (`passes`), so
it keeps to the announced cost, and samplers see the trials of all brackets.

asha and freeze_thaw pause trials instead of stopping them: they are schedulers of the search, `nlu.search.schedulers`.

The lengths of trials in examples seen: the resources of the pruner, the cost of a search, and checks of both.
"""

from __future__ import annotations

import binascii
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nlu.config.checks.validate import show, value_problem
from nlu.config.durations import Clock, parse_duration, parse_interval
from nlu.config.errors import UserError
from nlu.config.nearest import hint
from nlu.config.schema import num_repeats
from nlu.config.sentences import counted
from nlu.config.types import Duration
from nlu.search.goals import is_infeasible
from nlu.search.schedulers.scheduler import FREEZE_THAW, PAUSING, first_decision, rungs
from nlu.search.trial_steps import best_so_far

if TYPE_CHECKING:
    from optuna.storages import BaseStorage
    from optuna.study import Study
    from optuna.trial import FrozenTrial


KEY = "hydra.sweeper.pruner"
HYPERBAND, NONE = "hyperband", "none"
NAMES = (HYPERBAND, *PAUSING, NONE)
GONE = ("successive_halving", "median", "threshold")
"""names of former versions"""
PRUNER = "pruner"
"""user attribute of a study: the specification of its pruner (`nlu.search.pruners.pruner_spec`)"""
RUNG = "rung_{examples}"
"""system attribute of a trial at a rung, a mapping: its `bracket` (named by the first rung of that), its `value`, and
whether it `passed`"""


def problem_of(written: object) -> str | None:
    """Return what is wrong with a pruner as it is written; null is none."""
    if written is None or written in NAMES:
        return None
    if written in GONE:
        return f"{KEY} is {written}, which there is no more; set {KEY}={HYPERBAND}, or asha, which pauses trials"
    return f"{KEY} is {show(written)}, which names no pruner; {hint(str(written), NAMES)}"


@dataclass(frozen=True)
class Bracket:
    """A bracket of HyperBand."""

    number: int
    rungs: tuple[int, ...]
    """examples seen at which trials are judged"""
    budget: int
    """its share of the trials, relative to the budgets of the others"""


def brackets(spec: Mapping[str, Any]) -> list[Bracket]:
    """Return the brackets for the specification of a pruner; none unless it is HyperBand."""
    if spec.get("name") != HYPERBAND:
        return []
    low, high, factor = spec["min_resource"], spec["max_resource"], spec["reduction_factor"]
    # The number of brackets, each of which begins one rung later than the one before.
    count = 1
    while low * factor**count <= high:
        count += 1
    return [
        Bracket(
            number,
            _rungs(low, low * factor**number, high, factor),
            # The paper's number of configurations of a bracket, at which all brackets cost about the same.
            math.ceil(count * factor ** (count - 1 - number) / (count - number)),
        )
        for number in range(count)
    ]


def _rungs(low: int, first: int, high: int, factor: int) -> tuple[int, ...]:
    found = []
    # `low` is rounded down, so the last multiple may lie just before the end of a trial, where a rung is of no use.
    while first + first // low <= high:
        found.append(first)
        first *= factor
    return tuple(found)


def bracket_of(found: Sequence[Bracket], study: str, number: int) -> Bracket:
    """Return the bracket of a trial, a pure function of the study and the number."""
    # CRC-32 and not `hash`, which Python salts in each process.
    drawn = binascii.crc32(f"{study}_{number}".encode()) % sum(bracket.budget for bracket in found)
    for bracket in found:
        drawn -= bracket.budget
        if drawn < 0:
            return bracket
    raise AssertionError("a number below the sum of all budgets falls into one of them")


def passes(value: float, others: Sequence[float], passed: int, factor: int) -> bool:
    """Return whether the next trial passes a rung; greater is better, and no value is NaN.

    `others` are the values of the trials that came before, of which so many have `passed`. A trial passes if it is
    among the best 1 / factor so far; another one with the same value passes with it. Once more than that share of all
    trials have passed, only a new best one passes. About as many trials pass as if they came in random order. Without
    this bound, far more would pass when trials keep getting better, as with a sampler that learns, and the search would
    exceed its announced cost.
    """
    share = (len(others) + 1) // factor
    if passed > share:
        return all(value > other for other in others)
    return sum(other > value for other in others) < max(1, share)


class HalvingPruner:
    """Stops a trial at the first rung of its bracket that it does not pass; without HyperBand it stops none.

    A trial is judged by its best value so far, as at its end; without one it does not pass. With folds that is the mean
    over those that have ended. A fold has ended after its last report, so a rung that this report reaches does not
    count it: all trials of the bracket are judged without it. The decision at a rung is stored as an attribute of the
    trial and never changes, so a job that is killed before it gets the answer gets the same one later. Jobs that reach
    a rung at the same moment do not see each other. If an evaluation reaches several rungs at once, only the last one
    decides: passing each of them would be harder than the share of one rung.
    """

    def __init__(self, spec: Mapping[str, Any], storage: BaseStorage):
        """`storage` is that of the study."""
        self._brackets, self._storage, self._factor = brackets(spec), storage, spec.get("reduction_factor", 0)

    def prune(self, study: Study, trial: FrozenTrial) -> bool:
        """Return whether a trial stops, given its reports so far."""
        if not self._brackets or trial.last_step is None:
            return False
        bracket = bracket_of(self._brackets, study.study_name, trial.number)
        reached = [at for at in bracket.rungs if at <= trial.last_step]
        return bool(reached) and not self._passed(study, bracket.rungs[0], reached[-1], trial)

    def _passed(self, study: Study, bracket: int, at: int, trial: FrozenTrial) -> bool:
        name = RUNG.format(examples=at)
        # Decided before: a job that was killed before it got the answer asks again.
        if name in trial.system_attrs:
            return bool(trial.system_attrs[name]["passed"])
        # From attributes and not from reported values: trials reach a rung at slightly different numbers of examples.
        trials = [other for other in study.get_trials(deepcopy=False) if not is_infeasible(other)]
        attributes = [other.system_attrs.get(name) for other in trials]
        others = [found for found in attributes if found and found["bracket"] == bracket]
        sign = 1 if study.directions[0].name == "MAXIMIZE" else -1
        value = best_so_far(trial, maximize=sign == 1)
        goods = [-math.inf if math.isnan(each) else sign * each for each in (value, *(one["value"] for one in others))]
        # The newest trial is judged against those that came before.
        passed = sum(one["passed"] for one in others)
        found = not math.isnan(value) and passes(goods[0], goods[1:], passed, self._factor)
        study_id = self._storage.get_study_id_from_name(study.study_name)
        trial_id = self._storage.get_trial_id_from_study_id_trial_number(study_id, trial.number)
        self._storage.set_trial_system_attr(trial_id, name, {"bracket": bracket, "value": value, "passed": found})
        return found


def setting_problems(settings: Mapping[str, Any]) -> list[str]:
    """Return what is wrong with the pruner and its resources, regardless of the trials."""
    found = [
        value_problem(f"hydra.sweeper.{key}", Duration | None, settings.get(key))
        for key in ("min_resource", "max_resource", "max_examples")
    ]
    if settings.get("max_examples") is not None and not pauses(settings) and pruner_name(settings) in NAMES:
        # In place of what is wrong with its value, which leaving it out corrects too.
        found[-1] = (
            f"hydra.sweeper.max_examples is {settings['max_examples']}, but only {' and '.join(PAUSING)} keep to it; "
            f"leave it out, or set {KEY}"
        )
    if settings["reduction_factor"] < 2:
        found.append(f"hydra.sweeper.reduction_factor is {settings['reduction_factor']} but must be >= 2; set it to 3")
    found.append(problem_of(settings["pruner"]))
    return [problem for problem in found if problem]


def pruner_name(settings: Mapping[str, Any]) -> Any:
    """Return the pruner as it is written, which may be wrong; null is none."""
    return NONE if settings["pruner"] is None else settings["pruner"]


def pauses(settings: Mapping[str, Any]) -> bool:
    """Return whether the search pauses trials."""
    return pruner_name(settings) in PAUSING


def unsaved(settings: Mapping[str, Any], configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a problem if trials would be paused without a checkpoint to continue from."""
    if not pauses(settings) or all(config["trainer"]["save"] for config in configs):
        return []
    return [
        f"trainer.save is false, but {KEY} pauses trials, which continue from their checkpoint; set "
        f"trainer.save=true, or {KEY}=hyperband"
    ]


def pruner_spec(
    settings: Mapping[str, Any], configs: Sequence[Mapping[str, Any]], num_examples: int | None
) -> dict[str, Any]:
    """Return the specification of a pruner: its name and, unless it is none, its resources in examples seen.

    `configs` are possible configurations of trials of nlu.train. If a duration is a different number of examples in
    some of them, the smallest is used for the first decision and the largest for the end.
    """
    spec: dict[str, Any] = {"name": pruner_name(settings)}
    if spec["name"] == NONE:
        return spec
    spec |= _resources(settings, configs, num_examples)
    if pauses(settings):
        spec |= {"max_examples": _budget(settings, configs, num_examples, spec)}
        spec |= {"parts": max((num_repeats(config) for config in configs), default=1)}
    return spec


def _budget(
    settings: Mapping[str, Any], configs: Sequence[Mapping[str, Any]], num_examples: int | None, spec: Mapping[str, Any]
) -> int | None:
    """Return the examples that all trials together may see; None if only n_trials limits them."""
    written = settings["max_examples"]
    if written is None:
        if spec["name"] != FREEZE_THAW:
            return None
        # A freeze-thaw search has no end of its own. A whole trial can always end.
        return max(spec["max_resource"], settings["n_trials"] * spec["max_resource"] // spec["reduction_factor"])
    found = max(_lengths("hydra.sweeper.max_examples", written, configs, num_examples))
    if found < spec["max_resource"]:
        raise UserError(
            f"hydra.sweeper.max_examples is {written}, {found:,} examples, fewer than a whole trial has, "
            f"{spec['max_resource']:,}; set it higher"
        )
    return found


def _resources(
    settings: Mapping[str, Any], configs: Sequence[Mapping[str, Any]], num_examples: int | None
) -> dict[str, int]:
    low, high, factor = settings["min_resource"], settings["max_resource"], settings["reduction_factor"]
    if not configs and (low is None or high is None):
        raise UserError("hydra.sweeper.min_resource and max_resource are not set; set both, such as 1000ex and 27000ex")
    # Rungs are multiples of min_resource. Rounded up, it would place a rung after the evaluation that should decide.
    first = min(_lengths("trainer.eval_interval", _first_evaluation, configs, num_examples)) if configs else 0
    most = max(_lengths("hydra.sweeper.max_resource", high or _whole_run, configs, num_examples))
    # Before the first evaluation nothing is decided, and a trial that is scored only at its end is never stopped.
    first = min(first, most)
    if low:
        least = max(first, min(_lengths("hydra.sweeper.min_resource", low, configs, num_examples)))
    elif any(config["trainer"].get("eval_warmup") is not None for config in configs):
        least = first
    else:
        least = first_decision(first, most // max(map(num_repeats, configs)))
    whole = max(_lengths("trainer.max_duration", _whole_run, configs, num_examples)) if configs else most
    if most != whole and pauses(settings):
        raise UserError(
            f"hydra.sweeper.max_resource is {high}, {most:,} examples, but a trial has {whole:,}, and "
            f"{KEY}={pruner_name(settings)} pauses trials up to their end; leave it out, and set "
            "trainer.max_duration"
        )
    if least > most:
        raise UserError(
            f"hydra.sweeper.min_resource is {least:,} examples, more than max_resource, {most:,}; set it lower"
        )
    found = {"min_resource": least, "max_resource": most, "reduction_factor": factor}
    return {**found, "interval": first or least} if pauses(settings) else found


def _first_evaluation(trainer: Mapping[str, Any]) -> str:
    """Return the key that says when a trial is first scored."""
    # Evaluations within a warm-up may come earlier, but are too few to compare trials.
    if trainer.get("eval_warmup") is not None:
        return "eval_warmup"
    return "max_duration" if parse_interval(trainer["eval_interval"]) is None else "eval_interval"


def _whole_run(trainer: Mapping[str, Any]) -> str:
    return "max_duration"


def _lengths(key: str, value: Any, configs: Sequence[Mapping[str, Any]], num_examples: int | None) -> list[int]:
    """Return a duration in examples seen under each configuration, rounded down to whole examples.

    `value` is the duration of `key`, or a function that returns the key of a trainer that has it.
    """
    # A program of another package: its trials report examples, but nothing is known of its data.
    if not configs or num_examples is None:
        duration = parse_duration(value)
        if duration.unit != "ex":
            raise UserError(f"{key} is {value}, but only nlu.train has epochs and steps; write 1000ex, for example")
        return [int(duration.amount)]
    found = []
    for config in configs:
        trainer = config["trainer"]
        own = value(trainer) if callable(value) else None
        name, written = (key, value) if own is None else (f"trainer.{own}", trainer[own])
        if (step := _step_examples(trainer)) is None and str(written).endswith("st"):
            raise UserError(
                f"{name} is {written}, but a search compares trials by examples, and how many a step has is not known "
                "before with trainer.batch_tokens or trainer.batch_size=auto; write it in ep or ex"
            )
        # Lengths in epochs and examples are not rounded to whole steps where their examples are not known.
        clock = Clock(num_examples, step or 1)
        # A trial with folds or seeds reports the examples of all its runs, one after another.
        parts = num_repeats(config) if value is _whole_run else 1
        found.append(clock.least_examples(parse_duration(written), parts))
    return found


def _step_examples(trainer: Mapping[str, Any]) -> int | None:
    """Return the examples of a step; None if only the data tell them."""
    if trainer.get("batch_tokens") or trainer["batch_size"] == "auto":
        return None
    step: int = trainer["batch_size"] * trainer["accumulation"]
    return step


def announced(spec: Mapping[str, Any], n_trials: int) -> list[str]:
    """Return the lines that announce the rungs of a search and its cost in full runs."""
    if spec["name"] in PAUSING:
        return _announced_pauses(spec, n_trials)
    if spec["name"] == NONE:
        return [f"pruner: none; at most {counted(n_trials, 'full run')}"]
    lines = [
        f"pruner: {HYPERBAND}, {spec['min_resource']:,} to {spec['max_resource']:,} examples, 1 in "
        f"{spec['reduction_factor']} passes a rung"
    ]
    found = brackets(spec)
    budget, examples = sum(bracket.budget for bracket in found), 0.0
    for bracket in found:
        stops = ", ".join(f"{rung:,}" for rung in bracket.rungs)
        where = f"{'rung' if len(bracket.rungs) == 1 else 'rungs'} at {stops} examples" if stops else "never stopped"
        trials = n_trials * bracket.budget / budget
        examples += expected_examples(bracket, trials, spec)
        lines.append(f"  bracket {bracket.number}: about {trials:.1f} trials, {where}")
    return [*lines, f"  expected cost: {examples / spec['max_resource']:.1f} full runs instead of {n_trials}"]


def expected_examples(bracket: Bracket, trials: float, spec: Mapping[str, Any]) -> float:
    """Return about how many examples so many trials of a bracket see, if they come in random order.

    Each rung is passed by 1 trial in `reduction_factor`, but at least by those that are the best so far, which pass all
    rungs: the k-th trial with the probability 1 / k.
    """
    whole = int(trials)
    best_so_far = sum(1 / number for number in range(1, whole + 1)) + (trials - whole) / (whole + 1)
    examples, before, left = 0.0, 0, trials
    for rung in (*bracket.rungs, spec["max_resource"]):
        examples += max(left, best_so_far) * (rung - before)
        left, before = left / spec["reduction_factor"], rung
    return examples


def _announced_pauses(spec: Mapping[str, Any], n_trials: int) -> list[str]:
    low, high, most = spec["min_resource"], spec["max_resource"], spec["max_examples"]
    cost = f"{counted(n_trials, 'trial')} of up to {high:,} examples"
    if most is not None:
        cost += f", {most:,} examples in all: about {most / high:.1f} full runs"
    if spec["name"] == FREEZE_THAW:
        return [
            f"pruner: freeze_thaw, first steps of {low:,} examples; its model also draws the trials; at most {cost}"
        ]
    stops = ", ".join(f"{rung:,}" for rung in rungs(low, high // spec["parts"], spec["reduction_factor"])[:-1])
    where = f"paused at {stops} examples, 1 in {spec['reduction_factor']} continues" if stops else "never paused"
    return [f"pruner: asha, {where}; at most {cost}"]
