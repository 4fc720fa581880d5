"""The settings of a search and its space, as far as they can be judged without composing a trial.

The steps before the first trial: the direction, the composition of all trials, the number of examples.
"""

import itertools
import json
import math
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.core.config_loader import ConfigLoader
from hydra.core.object_type import ObjectType
from omegaconf import DictConfig, OmegaConf
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution

from nlu.config.addresses import address_problems
from nlu.config.checks.composition_faults import choice_problem
from nlu.config.checks.validate import show, value_problem
from nlu.config.command_line import read_override
from nlu.config.entry.app import prepare
from nlu.config.entry.grid import run_dir_problems
from nlu.config.errors import UserError
from nlu.config.foreign import key_elsewhere
from nlu.config.keys import facts_of
from nlu.config.mixtures import is_composite, metrics_of, own_name
from nlu.config.nearest import hint
from nlu.config.redaction import without_secrets
from nlu.config.resolving import resolve, without_hydra
from nlu.config.schema import flat, has_effect
from nlu.config.stopping import STOPPED
from nlu.config.targets import TARGET
from nlu.search import closing, pruners
from nlu.search.goals import OBJECTIVES, Direction
from nlu.search.schedulers.scheduler import FREEZE_THAW
from nlu.search.slots import LOCAL
from nlu.search.space import Space, grid_problems, overrides_of, space_of, written
from nlu.search.storage.open_study import journal_of, storage_url, url_problems

SAMPLER_GROUP = "hydra/sweeper/sampler"
SAMPLERS = ("tpe", "random", "grid", "gp")
SUBDIRS = ("${hydra:job.num}", "${hydra.job.num}")
"""what names the folder of a trial, in the words of nlu and of Hydra"""


@dataclass(frozen=True)
class Settings:
    """What a search was given."""

    settings: Mapping[str, Any]
    """of hydra.sweeper"""
    config: DictConfig
    """of the command, with the node `hydra`"""
    loader: ConfigLoader
    space: Space
    folder: Path
    mirror: str | None
    """the object store that keeps the folder and, unless a storage is set, the journal"""
    take: bool
    """whether that store is taken from a search that has not released it"""
    url: str
    """of the storage"""

    @property
    def is_run(self) -> bool:
        """Whether the program is nlu.train."""
        return "task" in self.config and "trainer" in self.config

    @property
    def is_local(self) -> bool:
        return str(self.config.hydra.launcher._target_) == LOCAL

    @property
    def sampler_name(self) -> str:
        """That of its class; empty for one that is no choice of the group."""
        sampler = self.settings["sampler"]
        target = sampler["_target_"].rpartition(".")[2] if isinstance(sampler, dict) else ""
        return target.removesuffix("Sampler").lower()

    @property
    def is_grid(self) -> bool:
        return self.sampler_name == "grid"


def read_settings(
    sweeper: Mapping[str, Any], arguments: Sequence[str], config: DictConfig, loader: ConfigLoader
) -> tuple[Settings, list[str], list[str]]:
    """Return what a search was given, the problems of its settings, and those of its space.

    `sweeper` has the keys of hydra.sweeper, `arguments` are the overrides of the trials. The space lacks what is wrong,
    and then has no conditions.
    """
    plain: dict[str, Any] = {
        key: OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value
        for key, value in sweeper.items()
        if key != TARGET
    }
    space, of_space = space_of(plain["params"], plain["when"], arguments, loader)
    if of_space:
        space.branches = []
    folder, mirror = Path(str(config.hydra.sweep.dir)), _given(arguments, config, "mirror")
    if not isinstance(mirror, str) or address_problems(mirror, "mirror"):
        # A wrong address is refused with all other problems, when the configuration of the trials is checked.
        mirror = None
    take = _given(arguments, config, "take") is True
    url = storage_url(plain["storage"] or journal_of(mirror), folder)
    found = Settings(plain, config, loader, space, folder, mirror, take, url)
    return found, [*_problems(found), *_sampler_problems(found), *pruners.setting_problems(plain)], of_space


def _given(arguments: Sequence[str], config: DictConfig, key: str) -> object:
    """Return the value that a command gives to a key that is the same in all trials."""
    written = [read_override(text).value() for text in arguments if text.lstrip("+").startswith(f"{key}=")]
    return written[-1] if written else OmegaConf.select(config, key)


def _problems(asked: Settings) -> Iterator[str]:
    settings, hydra = asked.settings, asked.config.hydra
    for key, low in {"n_trials": 1, "n_jobs": 1, "retries": 0, "stop_after_same_failures": 0}.items():
        if settings[key] < low:
            yield f"hydra.sweeper.{key} is {settings[key]} but must be >= {low}; set it to {low}"
    choices = {"on_failure": ["continue", "stop"], "direction": ["maximize", "minimize"], "keep": closing.KEEP}
    for key, valid in choices.items():
        value = settings[key]
        if value not in valid and not (key == "direction" and value is None):
            instead = key_elsewhere(f"hydra.sweeper.{key}={value}") or hint(str(value), valid)
            yield f"hydra.sweeper.{key} is {value!r} but must be {' or '.join(valid)}; {instead}"
    if not asked.is_run and settings["keep"] == closing.ONLY_BEST:
        yield "hydra.sweeper.keep is best, but only trials of nlu.train have checkpoints; leave it out"
    pauses, pruner = pruners.pauses(settings), pruners.pruner_name(settings)
    if "trial" not in asked.config:
        yield "a search needs a program that reports to its trial, with the key trial; use python -m nlu.train"
    if settings["objectives"] and pauses:
        yield (
            f"hydra.sweeper.pruner is {pruner}, which continues the trials with the best value only, but {OBJECTIVES} "
            "is set too; choose hydra.sweeper.pruner=none"
        )
    sweep: Any = OmegaConf.to_container(hydra.sweep, resolve=False)
    if sweep["subdir"] not in SUBDIRS:
        yield f"hydra.sweep.subdir is {sweep['subdir']}, but the folder of a trial is its number; leave it out"
    if hydra.launcher.get("wait") is False:
        yield (
            "hydra.launcher.wait is false, but a search draws its next trials from the results of the last ones; "
            "leave it out, and start the search where it can keep running, in tmux or as a job"
        )
    yield from run_dir_problems(asked.config)
    yield from url_problems(asked.url, settings["n_jobs"])


def _sampler_problems(asked: Settings) -> list[str]:
    written, name = asked.settings["sampler"], asked.sampler_name
    if not name:
        remedy = f"{SAMPLER_GROUP}={written or 'tpe'}"
        return [f"hydra.sweeper.sampler is {show(written)}, but a sampler is the choice of a group; write {remedy}"]
    if name not in SAMPLERS:
        chosen = asked.config.hydra.runtime.choices[SAMPLER_GROUP]
        return [f"{SAMPLER_GROUP} is {chosen}, but a search has {', '.join(SAMPLERS)}; choose one of these"]
    if asked.is_grid and pruners.pruner_name(asked.settings) == FREEZE_THAW:
        return [f"{SAMPLER_GROUP} is grid, but freeze_thaw draws the trials itself; leave it out, or take asha"]
    problem = value_problem("hydra.sweeper.sampler.seed", int | None, written.get("seed"))
    return [*([problem] if problem else []), *(grid_problems(asked.space) if asked.is_grid else [])]


MAX_COMBINATIONS = 500
"""above this number of combinations of groups, each choice is only tried with the first choices of the others"""
Compose = Callable[[Sequence[str]], DictConfig]


def direction_of(configs: Sequence[Mapping[str, Any]], asked: str | None) -> Direction:
    """Return the direction of the metric of the trials; of another program, without configurations, the one `asked`.

    Raises UserError if `asked` is another direction, or if trials have different metrics.
    """
    if not configs:
        return "maximize" if asked == "maximize" else "minimize"
    if len(metrics := dict.fromkeys(metrics_of_trials([config])[0] for config in configs)) > 1:
        raise UserError(f"trials would be measured by {' and '.join(metrics)}; set trainer.major_metric to one of them")
    metric, known = metrics_of_trials(configs)
    direction: Direction = "maximize" if known[metric] else "minimize"
    if asked is not None and asked != direction:
        raise UserError(
            f"hydra.sweeper.direction is {asked}, but {metric} is better when it is "
            f"{'lower' if direction == 'minimize' else 'higher'}; leave it out, or set trainer.major_metric"
        )
    return direction


def metrics_of_trials(configs: Sequence[Mapping[str, Any]]) -> tuple[str, dict[str, bool]]:
    """Return the metric of trials, and by name the metrics that all of them have, with whether more is better.

    Of several tasks together only the metric itself is known, of another program no metric.
    """
    metric, found = "value", list[dict[str, bool]]()
    for config in configs:
        task = facts_of(config["task"]["_target_"])
        metric = config["trainer"]["major_metric"] or task["default_metric"]
        names = [metric] if is_composite(config) else [metric, *metrics_of(config["task"], task)]
        found.append({name: own_name(name) not in task["lower_is_better"] for name in names})
    shared = found[0].items() if found else ()
    return metric, {name: more for name, more in shared if all(name in other for other in found)}


def combinations(space: Space, is_group: Callable[[str], bool]) -> list[dict[str, str]]:
    """Return the combinations of groups of the trials: all, or if there are too many, each choice at least once."""
    groups: dict[str, list[str]] = {}
    for params in (space.params, *(branch.params for branch in space.branches)):
        for name, distribution in params.items():
            if isinstance(distribution, CategoricalDistribution) and is_group(name):
                groups.setdefault(name, [written(choice) for choice in distribution.choices])
    if math.prod(map(len, groups.values())) <= MAX_COMBINATIONS:
        return [dict(zip(groups, row, strict=True)) for row in itertools.product(*groups.values())]
    first = {name: choices[0] for name, choices in groups.items()}
    return [{**first, name: choice} for name, choices in groups.items() for choice in choices]


def probes(space: Space, combination: Mapping[str, str], composed: Callable[[str], str | None]) -> Iterator[list[str]]:
    """Yield overrides for a combination of groups that together cover both ends and all choices of each parameter."""
    drawn: dict[str, list[object]] = {}

    def suggest(name: str, distribution: BaseDistribution) -> object:
        drawn[name] = [combination[name]] if name in combination else ends(distribution)
        return drawn[name][0]

    space.draw(suggest, composed)
    # One row has the first value of every parameter, the next one their second, and so on: all values occur without all
    # combinations.
    for row in range(max(map(len, drawn.values()), default=1)):
        yield overrides_of({name: values[min(row, len(values) - 1)] for name, values in drawn.items()})


def ends(distribution: BaseDistribution) -> list[object]:
    """Return all choices of a distribution, or both ends of an interval."""
    if isinstance(distribution, CategoricalDistribution):
        return list(distribution.choices)
    assert isinstance(distribution, FloatDistribution | IntDistribution), "there are three kinds of distribution"
    low, high = distribution.low, distribution.high
    return [low] if low == high else [low, high]


@dataclass(frozen=True)
class Possible:
    """A trial that a search may draw."""

    overrides: list[str]
    composed: DictConfig
    config: dict[str, Any]
    """as nlu.train reads it; empty for another program"""


def possible_trials(
    space: Space, compose: Compose, loader: ConfigLoader, is_run: bool
) -> tuple[list[Possible], list[str]]:
    """Compose every combination of groups with the ends of all intervals; validate them for nlu.train (`is_run`).

    Also returns each problem once, with the first combination that has it unless all have it.
    """
    possible = combinations(space, is_group_of(loader))
    chosen = dict.fromkeys(pair for combination in possible for pair in combination.items())
    # A choice that does not exist would fail in every combination; it is reported once, and not composed.
    wrong = {pair: problem for pair in chosen if (problem := choice_problem(*pair, loader.get_group_options))}
    tried = [combination for combination in possible if not wrong.keys() & combination.items()]
    trials: list[Possible] = []
    found: dict[str, list[str]] = {}
    for combination in tried:
        context = " ".join(f"{name}={choice}" for name, choice in combination.items())
        for problem in dict.fromkeys(_try(space, combination, compose, is_run, trials)):
            found.setdefault(problem, []).append(context)
    return trials, [*wrong.values()] + [
        problem if len(contexts) == len(tried) else f"{problem} (with {contexts[0]}; {_ONLY_THERE})"
        for problem, contexts in found.items()
    ]


_ONLY_THERE = "keys that only one choice has belong under hydra.sweeper.when"


def _try(
    space: Space, combination: Mapping[str, str], compose: Compose, is_run: bool, trials: list[Possible]
) -> Iterator[str]:
    """Add the trials of a combination that can be composed; yields the problems of the others."""
    groups = [f"{name}={choice}" for name, choice in combination.items()]
    try:
        base = compose([*space.fixed, *groups])
    except UserError as error:
        yield from error.problems
        return
    for overrides in probes(space, combination, lambda key: composed_value(base, key)):
        try:
            composed = compose([*space.fixed, *overrides])
            config = prepare(without_hydra(composed)) if is_run else {}
        except UserError as error:
            yield from error.problems
            continue
        trials.append(Possible(overrides, composed, config))
        if is_run and (stop_after := config["trainer"]["stop_after"]) is not None:
            yield (
                f"trainer.stop_after is {stop_after}, but a trial that stops there has no result; leave it out, or set "
                "trainer.max_duration"
            )


def composed_value(config: DictConfig, key: str) -> str | None:
    """Return the choice of a group or the value of a key as text, None if it has none."""
    choices = config.hydra.runtime.choices
    if key in choices:
        return None if choices[key] is None else str(choices[key])
    value = OmegaConf.select(config, key)
    return None if value is None else written(value)


def is_group_of(loader: ConfigLoader) -> Callable[[str], bool]:
    """Return a function that tells whether a key is a config group."""

    def is_group(key: str) -> bool:
        return "." not in key and bool(loader.get_group_options(key, ObjectType.CONFIG) or loader.list_groups(key))

    return is_group


def shared_values(base: DictConfig, drawn: Sequence[str]) -> dict[str, str]:
    """Return the values that all trials share, by dotted key and as text, to be compared."""
    plain, _ = resolve(without_hydra(base))
    return {
        key: repr(value)
        for key, value in flat(without_secrets(plain)).items()
        if has_effect(key) and key not in drawn and not key.startswith(tuple(f"{name}." for name in drawn))
    }


def train_examples(overrides: Sequence[str], directories: Sequence[str]) -> int:
    """Build the data store with `nlu.preprocess` in a separate process; returns the number of training examples.

    Its messages go to standard error. Raises UserError if it fails.
    """
    arguments = [f"--config-dir={directory}" for directory in directories]
    command = [sys.executable, "-m", "nlu.preprocess", *arguments, *overrides]
    # In a separate process, so that its memory is free again before the trials start.
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode in STOPPED or done.returncode < 0:
        how = "was stopped" if done.returncode > 0 else f"was ended by {signal.Signals(-done.returncode).name}"
        raise UserError(f"preparing the data {how}; nothing is lost: the same command starts it again")
    if done.returncode:
        raise UserError(
            f"the data cannot be prepared (python -m nlu.preprocess ended with {done.returncode}, see above)"
        )
    # The last line: a library may print something before.
    facts = json.loads(done.stdout.splitlines()[-1])
    # A mixture has separate facts for each set.
    return sum(one["sets"]["train"]["examples"] for one in facts.get("members", {"": facts}).values())
