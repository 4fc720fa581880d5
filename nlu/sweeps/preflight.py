"""What is settled before the first trial: which way is better, how many examples a trial sees, whether all composes."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any

from hydra.core.config_loader import ConfigLoader
from hydra.core.object_type import ObjectType
from omegaconf import DictConfig, OmegaConf
from optuna.distributions import BaseDistribution, CategoricalDistribution

from nlu.config.app import prepare
from nlu.config.durations import Clock, parse_duration, parse_interval
from nlu.config.errors import UserError
from nlu.config.flat import flat
from nlu.config.nearest import hint
from nlu.config.overrides import USER_MISTAKES
from nlu.config.resolve import first_line, resolve
from nlu.config.signature import read_constants
from nlu.config.validate import known_keys
from nlu.config.words import counted
from nlu.sweeps import pruning
from nlu.sweeps.repeats import count_parts
from nlu.sweeps.space import Space, overrides_of, written

MAX_COMBINATIONS = 500
"""Combinations of groups beyond which each choice is tried with the first of the others only."""
Compose = Callable[[Sequence[str]], DictConfig]


def direction_of(configs: Sequence[Mapping[str, Any]], asked: str | None) -> str:
    """Return maximize or minimize, as the metric of the trials asks for.

    Raises UserError where `asked` differs, or where trials would be measured by different metrics.
    """
    metrics = {}
    for config in configs:
        task = read_constants(config["task"]["_target_"])
        metric = config["trainer"]["major_metric"] or task["default_metric"]
        metrics[metric] = "minimize" if metric in task["lower_is_better"] else "maximize"
    if len(metrics) > 1:
        raise UserError(f"trials would be measured by {' and '.join(metrics)}; set trainer.major_metric to one of them")
    ((metric, direction),) = metrics.items()
    if asked is not None and asked != direction:
        raise UserError(
            f"hydra.sweeper.direction is {asked}, but {metric} is better when it is "
            f"{'lower' if direction == 'minimize' else 'higher'}; leave it out, or set trainer.major_metric"
        )
    return direction


def combinations(space: Space, is_group: Callable[[str], bool]) -> list[dict[str, Any]]:
    """Return the choices of groups that trials may have, all of them or, of very many, each one at least once."""
    groups = {
        name: [written(choice) for choice in distribution.choices]
        for name, distribution in space.params.items()
        if isinstance(distribution, CategoricalDistribution) and is_group(name)
    }
    for branch in space.branches:
        for name, distribution in branch.params.items():
            if isinstance(distribution, CategoricalDistribution) and is_group(name):
                groups.setdefault(name, [written(choice) for choice in distribution.choices])
    count = 1
    for choices in groups.values():
        count *= len(choices)
    if count <= MAX_COMBINATIONS:
        return [dict(zip(groups, row, strict=True)) for row in itertools.product(*groups.values())]
    first = {name: choices[0] for name, choices in groups.items()}
    return [{**first, name: choice} for name, choices in groups.items() for choice in choices]


def probes(space: Space, combination: Mapping[str, str], composed: Callable[[str], str | None]) -> Iterator[list[str]]:
    """Yield overrides that together hold, for a combination of groups, each end and each choice of what is drawn."""
    drawn: dict[str, list[Any]] = {}

    def suggest(name: str, distribution: BaseDistribution) -> Any:
        drawn[name] = [combination[name]] if name in combination else ends(distribution)
        return drawn[name][0]

    space.draw(suggest, composed)
    for row in range(max(map(len, drawn.values()), default=1)):
        yield overrides_of({name: values[min(row, len(values) - 1)] for name, values in drawn.items()})


def ends(distribution: BaseDistribution) -> list[Any]:
    """Return all choices, or both ends of an interval."""
    if isinstance(distribution, CategoricalDistribution):
        return list(distribution.choices)
    low, high = distribution.low, distribution.high  # type: ignore[attr-defined]
    return [low] if low == high else [low, high]


def _few(text: str) -> str:
    return text if len(text) <= 200 else "see --cfg job for all keys"


def composition_problems(space: Space, compose: Compose, is_group: Callable[[str], bool], is_run: bool) -> list[str]:
    """Compose and, of a run of ours, validate every combination of groups with the ends of what is drawn.

    Returns every problem once, with the first combination that has it unless all have.
    """
    tried = combinations(space, is_group)
    found: dict[str, list[str]] = {}
    for combination in tried:
        context = " ".join(f"{name}={choice}" for name, choice in combination.items())
        for problem in dict.fromkeys(_problems_of(space, combination, compose, is_run)):
            found.setdefault(problem, []).append(context)
    return [
        problem if len(contexts) == len(tried) else f"{problem} (with {contexts[0]}, where it is chosen; {_ONLY_THERE})"
        for problem, contexts in found.items()
    ]


_ONLY_THERE = "what one choice alone has goes under hydra.sweeper.when"


def _problems_of(space: Space, combination: Mapping[str, str], compose: Compose, is_run: bool) -> Iterator[str]:
    groups = [f"{name}={choice}" for name, choice in combination.items()]
    try:
        base = compose([*space.fixed, *groups])
    except USER_MISTAKES as error:
        yield from _one_by_one(groups, space.fixed, compose, error)
        return
    for overrides in probes(space, combination, lambda key: composed_value(base, key)):
        try:
            composed = compose([*space.fixed, *overrides])
        except USER_MISTAKES as error:
            drawn = [override for override in overrides if override not in groups]
            yield from _one_by_one([*space.fixed, *groups], drawn, compose, error)
            continue
        if is_run:
            try:
                prepare(without_hydra(composed))
            except UserError as error:
                yield from error.problems


def _one_by_one(good: Sequence[str], suspects: Sequence[str], compose: Compose, error: Exception) -> Iterator[str]:
    """Say which of the overrides does not fit, trying each by itself on top of those that do."""
    try:
        base = compose(good)
    except USER_MISTAKES:
        yield _composition_problem(error)
        return
    is_found = False
    for suspect in suspects:
        key = suspect.partition("=")[0]
        try:
            compose([*good, suspect])
        except USER_MISTAKES as own:
            is_found = True
            if str(own).startswith("Could not override"):
                yield f"{key}: there is no such key; {_few(hint(key, known_keys(resolve(without_hydra(base))[0])))}"
            else:
                yield f"{suspect}: {_composition_problem(own)}"
    if not is_found:
        yield _composition_problem(error)


def _composition_problem(error: Exception) -> str:
    return first_line(error if str(error) or error.__cause__ is None else error.__cause__)  # type: ignore[arg-type]


def without_hydra(config: DictConfig) -> DictConfig:
    """Return the part of a composed configuration that is the program's own."""
    plain = OmegaConf.masked_copy(config, [str(key) for key in config if key != "hydra"])
    OmegaConf.set_struct(plain, True)
    return plain


def composed_value(config: DictConfig, key: str) -> str | None:
    """Return a composed choice of a group or value of a key as text; None where there is none."""
    choices = config.hydra.runtime.choices
    if key in choices:
        return None if choices[key] is None else str(choices[key])
    value = OmegaConf.select(config, key)
    return None if value is None else written(value)


def is_group_of(loader: ConfigLoader) -> Callable[[str], bool]:
    """Return whether a key of an override is a config group."""

    def is_group(key: str) -> bool:
        return "." not in key and bool(loader.get_group_options(key, ObjectType.CONFIG) or loader.list_groups(key))

    return is_group


def require_durations(settings: Mapping[str, Any]) -> None:
    """Raise UserError where a resource is no duration, before anything is prepared to convert it."""
    _, parameters = pruning.read(settings["pruner"])
    written = {key: settings[key] for key in ("min_resource", "max_resource")}
    written |= {f"pruner.{key}": value for key, value in parameters.items() if key in pruning.RESOURCES}
    for key, value in written.items():
        if value is not None and not isinstance(value, int):
            try:
                parse_duration(value)
            except UserError as error:
                raise UserError(f"hydra.sweeper.{key} is {error.problems[0]}") from error


def require_order(settings: Mapping[str, Any], configs: Sequence[Mapping[str, Any]]) -> None:
    """Raise UserError where no trial is as long as the first decision, as far as that shows without the data.

    Resources of two units are compared only when the number of examples is known.
    """
    if settings["min_resource"] is None or pruning.read(settings["pruner"])[0] not in pruning.WITH_RUNGS:
        return
    key = "trainer.max_duration" if settings["max_resource"] is None else "hydra.sweeper.max_resource"
    low = parse_duration(settings["min_resource"])
    highs = [(parse_duration(end), parts) for end, parts in _ends(settings, configs)]
    if all(high.unit == low.unit and low.exact > high.exact * parts for high, parts in highs):
        high, parts = max(highs, key=lambda held: held[0].exact * held[1])
        times = f" times {parts} folds and seeds" if parts > 1 else ""
        raise UserError(f"hydra.sweeper.min_resource is {low}, more than {key}, {high}{times}; set it lower")


def _ends(settings: Mapping[str, Any], configs: Sequence[Mapping[str, Any]]) -> list[tuple[Any, int]]:
    """The longest resource of each configuration as it is written, and how many runs of that length it has."""
    if settings["max_resource"] is not None:
        return [(settings["max_resource"], 1)]
    return [(config["trainer"]["max_duration"], count_parts(config)) for config in configs]


def unlike_lengths(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a warning where trials of one length in steps see different numbers of examples; else nothing."""
    in_steps = [config["trainer"] for config in configs if config["trainer"]["max_duration"].endswith("st")]
    sizes = {trainer["batch_size"] * trainer["accumulation"] for trainer in in_steps}
    if len(sizes) < 2:
        return []
    keys = [key for key in ("batch_size", "accumulation") if len({trainer[key] for trainer in in_steps}) > 1]
    named = " and ".join(f"trainer.{key}" for key in keys)
    return [
        f"trainer.max_duration is {in_steps[0]['max_duration']} and trials differ in {named}, so some see "
        f"{max(sizes) / min(sizes):.3g} times the examples of others; write it in ep or ex, which are the same for all"
    ]


def shared_values(base: DictConfig, drawn: Sequence[str]) -> dict[str, str]:
    """Return the composed values that no trial draws, flat and as text, the form in which they are compared."""
    plain, _ = resolve(without_hydra(base))
    own = ("trial", "resume", "dry_run", *drawn)
    return {
        key: repr(value)
        for key, value in flat(plain).items()
        if key not in own and not key.startswith(tuple(f"{name}." for name in own))
    }


def train_examples(overrides: Sequence[str], directories: Sequence[str]) -> int:
    """Build the data store by `nlu.preprocess`, in a process of its own; returns the number of training examples.

    What it says goes to standard error. Raises UserError where it fails.
    """
    arguments = [f"--config-dir={directory}" for directory in directories]
    command = [sys.executable, "-m", "nlu.preprocess", *arguments, *overrides]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env={**os.environ})
    if done.returncode < 0:
        raise UserError(
            f"preparing the data was ended by {signal.Signals(-done.returncode).name}, as a system does that runs out "
            "of memory; nothing is lost: the same command begins it anew"
        )
    if done.returncode:
        raise UserError(
            f"the data cannot be prepared (python -m nlu.preprocess ended with {done.returncode}, see above)"
        )
    return json.loads(done.stdout.splitlines()[-1])["sets"]["train"]["examples"]


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
    if name in pruning.WITH_RUNGS:
        spec |= _resources(settings, configs, num_examples)
    return spec


def _resources(
    settings: Mapping[str, Any], configs: Sequence[Mapping[str, Any]], num_examples: int | None
) -> dict[str, int]:
    low, high, factor = settings["min_resource"], settings["max_resource"], settings["reduction_factor"]
    if not configs and (low is None or high is None):
        raise UserError("hydra.sweeper.min_resource and max_resource are not set; set both, such as 1000ex and 27000ex")
    if factor < 2:
        raise UserError(f"hydra.sweeper.reduction_factor is {factor} but must be >= 2; set it to 3")
    least = min(_lengths("hydra.sweeper.min_resource", low or first_evaluation, configs, num_examples))
    most = max(_lengths("hydra.sweeper.max_resource", high or whole_run, configs, num_examples))
    if low is None:
        # A trial that is scored at its end alone is never stopped.
        least = min(least, most)
    if least > most:
        raise UserError(
            f"hydra.sweeper.min_resource is {least:,} examples, more than max_resource, {most:,}; set it lower"
        )
    least = min(least, most // factor ** _rungs_meant(settings, configs, least, most))
    return {"min_resource": least, "max_resource": most, "reduction_factor": factor}


def _rungs_meant(settings: Mapping[str, Any], configs: Sequence[Mapping[str, Any]], least: int, most: int) -> int:
    """Return how often min_resource, times the factor again and again, goes into max_resource as they are written.

    A run is a little shorter in examples than in steps, and min_resource a little longer, wherever an epoch ends in a
    short step: what is 1 to 27 as written, or in examples but for one step, must not lose its last rung by that.
    """
    factor = settings["reduction_factor"]
    step = max((config["trainer"]["batch_size"] * config["trainer"]["accumulation"] for config in configs), default=0)
    ratios = [Fraction(most, least)]
    # A slack of one step may not make a rung of a run that is hardly longer than a step.
    ratios += [Fraction(most + step, least)] if step * factor <= least else []
    for config in configs:
        low = parse_duration(settings["min_resource"] or first_evaluation(config["trainer"]))
        for end, parts in _ends(settings, [config]):
            high = parse_duration(end)
            ratios += [high.exact * parts / low.exact] if high.unit == low.unit else []
    return max(_powers(ratio, factor) for ratio in ratios)


def _powers(ratio: Fraction, factor: int) -> int:
    count = 0
    while ratio >= factor:
        ratio, count = ratio / factor, count + 1
    return count


def first_evaluation(trainer: Mapping[str, Any]) -> Any:
    interval = trainer["eval_interval"]
    return interval if parse_interval(interval) is not None else trainer["max_duration"]


def whole_run(trainer: Mapping[str, Any]) -> Any:
    return trainer["max_duration"]


def _lengths(key: str, value: Any, configs: Sequence[Mapping[str, Any]], num_examples: int | None) -> list[int]:
    """Return a duration in examples seen, under each of the configurations."""
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
        parts = count_parts(config) if value is whole_run else 1
        found.append(parts * clock.examples(clock.steps(parse_duration(written))))
    return found


def announced(spec: Mapping[str, Any], n_trials: int, sampler: str) -> list[str]:
    """Return the lines that say what a search will cost: brackets, rungs, full-run units, and a warning."""
    found = pruning.brackets(spec, n_trials)
    if not found:
        return [f"pruner: {spec['name']}; at most {counted(n_trials, 'full run')}"]
    lines = [
        f"pruner: {spec['name']}, {spec['min_resource']:,} to {spec['max_resource']:,} examples, 1 in "
        f"{spec['reduction_factor']} passes a rung"
    ]
    for bracket in found:
        stops = ", ".join(f"{rung:,}" for rung in bracket.rungs)
        where = f"{'rung' if len(bracket.rungs) == 1 else 'rungs'} at {stops} examples" if stops else "never stopped"
        lines.append(
            f"  bracket {bracket.number}: about {bracket.share * n_trials:.1f} trials, {where}; "
            f"{bracket.cost:.2f} full runs each"
        )
    cost = sum(bracket.share * bracket.cost for bracket in found) * n_trials
    lines.append(f"  expected cost: {cost:.1f} full runs instead of {n_trials}")
    wanted = pruning.trials_wanted(found)
    if sampler == "tpe" and n_trials < wanted:
        each = f"of each of the {len(found)} brackets " if len(found) > 1 else ""
        lines.append(
            f"warning: TPE draws its first {pruning.TRIALS_PER_BRACKET} trials {each}at random, so with "
            f"n_trials={n_trials} it hardly learns; hydra.sweeper.n_trials={wanted} would do"
        )
    return lines
