"""How long trials are, in examples seen: what the pruner decides by, what a search costs, and what cannot be."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

from nlu.config.checks.values import broken_rule
from nlu.config.durations import Clock, parse_duration, parse_interval
from nlu.config.errors import UserError
from nlu.config.schema import num_repeats
from nlu.config.words import counted
from nlu.sweeps import pruning
from nlu.sweeps.brackets import WITH_RUNGS, brackets, cost

RANDOM_TRIALS = 10
"""Trials that TPE draws at random before it learns anything (its n_startup_trials)."""


def setting_problems(settings: Mapping[str, Any]) -> list[str]:
    """Return what is wrong with the pruner and its resources by themselves, whatever the trials are."""
    found = [
        broken_rule(f"hydra.sweeper.{key}", ast.Constant("Duration | None"), settings[key])
        for key in ("min_resource", "max_resource")
    ]
    if settings["reduction_factor"] < 2:
        found.append(f"hydra.sweeper.reduction_factor is {settings['reduction_factor']} but must be >= 2; set it to 3")
    try:
        pruning.read(settings["pruner"])
    except UserError as error:
        found += error.problems
    return [problem for problem in found if problem]


def order_problems(settings: Mapping[str, Any], configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a problem where no trial is as long as the first decision, as far as that shows without the data.

    Resources of two units are compared only when the number of examples is known.
    """
    if not configs or settings["min_resource"] is None or not _has_rungs(settings):
        return []
    key = "trainer.max_duration" if settings["max_resource"] is None else "hydra.sweeper.max_resource"
    low = parse_duration(settings["min_resource"])
    highs = [(parse_duration(end), parts) for end, parts in _ends(settings, configs)]
    if not all(high.unit == low.unit and low.exact > high.exact * parts for high, parts in highs):
        return []
    high, parts = max(highs, key=lambda held: held[0].exact * held[1])
    times = f" times {parts} folds and seeds" if parts > 1 else ""
    return [f"hydra.sweeper.min_resource is {low}, more than {key}, {high}{times}; set it lower"]


def too_short(settings: Mapping[str, Any], configs: Sequence[Mapping[str, Any]], num_examples: int | None) -> list[str]:
    """Return a warning where max_resource has passed before any trial is scored; else nothing.

    Without `num_examples` only resources of one unit are compared.
    """
    written = settings["max_resource"]
    if written is None or not configs or not _has_rungs(settings):
        return []
    firsts = [first_evaluation(config["trainer"]) for config in configs]
    if num_examples is None:
        most = parse_duration(written)
        is_over = all(first.unit == most.unit and most.exact < first.exact for first in map(parse_duration, firsts))
    else:
        ends = _lengths("hydra.sweeper.max_resource", written, configs, num_examples)
        scored = _lengths("trainer.eval_interval", first_evaluation, configs, num_examples)
        is_over = max(ends) < min(scored)
    if not is_over:
        return []
    return [
        f"hydra.sweeper.max_resource is {written}, but trials are first scored after {firsts[0]} "
        "(trainer.eval_interval), so none is stopped by then; set it higher, or score more often"
    ]


def _has_rungs(settings: Mapping[str, Any]) -> bool:
    return pruning.read(settings["pruner"])[0] in WITH_RUNGS


def _ends(settings: Mapping[str, Any], configs: Sequence[Mapping[str, Any]]) -> list[tuple[Any, int]]:
    """The longest resource of each configuration as it is written, and how many runs of that length it has."""
    if settings["max_resource"] is not None:
        return [(settings["max_resource"], 1)]
    return [(config["trainer"]["max_duration"], num_repeats(config)) for config in configs]


def unlike_lengths(settings: Mapping[str, Any], configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return warnings where a length in steps is another number of examples in some trials than in others."""
    found = [_unlike("max_duration", configs, "see")]
    if _has_rungs(settings):
        found.append(_unlike("eval_interval", configs, "are judged after"))
    return [warning for warning in found if warning]


def _unlike(key: str, configs: Sequence[Mapping[str, Any]], what_some_do: str) -> str | None:
    in_steps = [config["trainer"] for config in configs if str(config["trainer"][key]).endswith("st")]
    sizes = {trainer["batch_size"] * trainer["accumulation"] for trainer in in_steps}
    if len(sizes) < 2:
        return None
    factors = ("batch_size", "accumulation")
    differing = [factor for factor in factors if len({trainer[factor] for trainer in in_steps}) > 1]
    named = " and ".join(f"trainer.{factor}" for factor in differing)
    return (
        f"trainer.{key} is {in_steps[0][key]} and trials differ in {named}, so some {what_some_do} "
        f"{max(sizes) / min(sizes):.3g} times the examples of others; write it in ep or ex, which are the same for all"
    )


def pruner_spec(
    settings: Mapping[str, Any], configs: Sequence[Mapping[str, Any]], num_examples: int | None
) -> dict[str, Any]:
    """Return the pruner as `nlu.sweeps.pruning.build` takes it, with every resource in examples seen.

    `configs` are configurations that trials may have, of a run of ours: where they differ in how many examples a
    duration is, the least counts for the first decision and the most for the end.
    """
    name, parameters = pruning.read(settings["pruner"])
    spec: dict[str, Any] = {"name": name}
    for key, value in parameters.items():
        if key in pruning.RESOURCES and not isinstance(value, int):
            value = min(_lengths(f"hydra.sweeper.pruner.{key}", value, configs, num_examples))
        spec[key] = value
    if name == "median":
        scored = _lengths("trainer.eval_interval", first_evaluation, configs, num_examples) if configs else [1]
        spec["eval_interval"] = min(scored)
    if name in WITH_RUNGS:
        spec |= _resources(settings, configs, num_examples)
    return spec


def raised(settings: Mapping[str, Any], configs: Sequence[Mapping[str, Any]], num_examples: int | None) -> list[str]:
    """Return a warning where min_resource as written is below the first evaluation, which then counts; else nothing."""
    low = settings["min_resource"]
    if low is None or not configs or num_examples is None or not _has_rungs(settings):
        return []
    written = min(_lengths("hydra.sweeper.min_resource", low, configs, num_examples))
    scored = min(_lengths("trainer.eval_interval", first_evaluation, configs, num_examples))
    if written >= scored:
        return []
    return [
        f"hydra.sweeper.min_resource is {low}, but trials are first scored after {scored:,} examples "
        "(trainer.eval_interval), so it is taken for that; score more often, or leave it out"
    ]


def _resources(
    settings: Mapping[str, Any], configs: Sequence[Mapping[str, Any]], num_examples: int | None
) -> dict[str, int]:
    if raised(settings, configs, num_examples):
        settings = {**settings, "min_resource": None}
    low, high, factor = settings["min_resource"], settings["max_resource"], settings["reduction_factor"]
    if not configs and (low is None or high is None):
        raise UserError("hydra.sweeper.min_resource and max_resource are not set; set both, such as 1000ex and 27000ex")
    # Rungs are multiples of min_resource: rounded up, it would put a rung behind the evaluation that is meant for it.
    least = min(_lengths("hydra.sweeper.min_resource", low or first_evaluation, configs, num_examples, rounded=False))
    most = max(_lengths("hydra.sweeper.max_resource", high or whole_run, configs, num_examples, rounded=False))
    if low is None:
        # A trial that is scored at its end alone is never stopped.
        least = min(least, most)
    if least > most:
        raise UserError(
            f"hydra.sweeper.min_resource is {least:,} examples, more than max_resource, {most:,}; set it lower"
        )
    least = min(least, most // factor ** _rungs_meant(factor, configs, least, most))
    return {"min_resource": least, "max_resource": most, "reduction_factor": factor}


def _rungs_meant(factor: int, configs: Sequence[Mapping[str, Any]], least: int, most: int) -> int:
    """Return how many times min_resource can be multiplied by the factor and stay within max_resource and a step more.

    A run in steps is a little shorter wherever an epoch ends in a short one: what is 1 to 27 but for that must not lose
    its last rung by it.
    """
    step = max((config["trainer"]["batch_size"] * config["trainer"]["accumulation"] for config in configs), default=0)
    # A slack of one step may not make a rung of a run that is hardly longer than a step.
    ratio = Fraction(most + step if step * factor <= least else most, least)
    count = 0
    while ratio >= factor:
        ratio, count = ratio / factor, count + 1
    return count


def first_evaluation(trainer: Mapping[str, Any]) -> Any:
    interval = trainer["eval_interval"]
    return interval if parse_interval(interval) is not None else trainer["max_duration"]


def whole_run(trainer: Mapping[str, Any]) -> Any:
    return trainer["max_duration"]


def _lengths(
    key: str, value: Any, configs: Sequence[Mapping[str, Any]], num_examples: int | None, rounded: bool = True
) -> list[int]:
    """Return a duration in examples seen, under each of the configurations: up to whole steps where `rounded`, else
    down to whole examples."""
    if not configs or num_examples is None:
        duration = parse_duration(value)
        if duration.unit != "ex":
            raise UserError(f"{key} is {value}, but only a run of nlu has epochs and steps; write 1000ex, for example")
        return [int(duration.amount)]
    found = []
    for config in configs:
        trainer = config["trainer"]
        clock = Clock(num_examples, trainer["batch_size"] * trainer["accumulation"])
        written = value(trainer) if callable(value) else value
        parts = num_repeats(config) if value is whole_run else 1
        duration = parse_duration(written)
        found.append(
            parts * clock.examples(clock.steps(duration)) if rounded else clock.least_examples(duration, parts)
        )
    return found


def without_rungs(spec: Mapping[str, Any]) -> list[str]:
    """Return a warning where a pruner with rungs has none to stop a trial at; else nothing."""
    if spec["name"] not in WITH_RUNGS or spec["min_resource"] < spec["max_resource"]:
        return []
    return [
        f"no trial is stopped early, since min_resource is max_resource, {spec['min_resource']:,} examples; score more "
        "often by trainer.eval_interval, set hydra.sweeper.min_resource lower or max_resource higher"
    ]


def announced(spec: Mapping[str, Any], n_trials: int, sampler: str) -> list[str]:
    """Return the lines that say what a search will cost: brackets, rungs, full-run units, and a warning."""
    found = brackets(spec)
    if not found:
        return [f"pruner: {spec['name']}; at most {counted(n_trials, 'full run')}"]
    lines = [
        f"pruner: {spec['name']}, {spec['min_resource']:,} to {spec['max_resource']:,} examples, 1 in "
        f"{spec['reduction_factor']} passes a rung"
    ]
    budget, total = sum(bracket.budget for bracket in found), 0.0
    for bracket in found:
        stops = ", ".join(f"{rung:,}" for rung in bracket.rungs)
        where = f"{'rung' if len(bracket.rungs) == 1 else 'rungs'} at {stops} examples" if stops else "never stopped"
        trials = n_trials * bracket.budget / budget
        each_cost = cost(bracket, trials, spec)
        total += trials * each_cost
        lines.append(f"  bracket {bracket.number}: about {trials:.1f} trials, {where}; {each_cost:.2f} full runs each")
    lines.append(f"  expected cost: {total:.1f} full runs instead of {n_trials}")
    wanted = RANDOM_TRIALS * len(found)
    if sampler == "tpe" and n_trials < wanted:
        lines.append(
            f"warning: {counted(n_trials, 'trial')} are few for {counted(len(found), 'bracket')} and TPE, which draws "
            f"its first {RANDOM_TRIALS} at random; hydra.sweeper.n_trials={wanted} would do"
        )
    return lines
