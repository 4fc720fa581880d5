"""The settings of a search and its space, as far as they can be judged without composing a trial."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.core.config_loader import ConfigLoader
from omegaconf import DictConfig, OmegaConf

from nlu.config.addresses import address_problems
from nlu.config.checks.validate import show, value_problem
from nlu.config.command_line import read_override
from nlu.config.entry.grid import run_dir_problems
from nlu.config.foreign import key_elsewhere
from nlu.config.nearest import hint
from nlu.config.targets import TARGET
from nlu.search import keeping, resources
from nlu.search.goals import CONSTRAINTS, OBJECTIVES
from nlu.search.schedulers.scheduler import FREEZE_THAW
from nlu.search.slots import LOCAL
from nlu.search.space import Space, grid_problems, space_of
from nlu.search.storage.opening import journal_of, storage_url, url_problems

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
    def hands_trial(self) -> bool:
        """Whether the program reports to its trial; if not, the number that its job returns is the value."""
        return "trial" in self.config

    @property
    def is_run(self) -> bool:
        """Whether the program is nlu.train."""
        return self.hands_trial and "task" in self.config and "trainer" in self.config

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
    return found, [*_problems(found), *_sampler_problems(found), *resources.setting_problems(plain)], of_space


def _given(arguments: Sequence[str], config: DictConfig, key: str) -> object:
    """Return the value that a command gives to a key that is the same in all trials."""
    written = [read_override(text).value() for text in arguments if text.lstrip("+").startswith(f"{key}=")]
    return written[-1] if written else OmegaConf.select(config, key)


def _problems(asked: Settings) -> Iterator[str]:
    settings, hydra = asked.settings, asked.config.hydra
    for key, low in {"n_trials": 1, "n_jobs": 1, "retries": 0, "stop_after_same_failures": 0}.items():
        if settings[key] < low:
            yield f"hydra.sweeper.{key} is {settings[key]} but must be >= {low}; set it to {low}"
    choices = {"on_failure": ["continue", "stop"], "direction": ["maximize", "minimize"], "keep": keeping.KEEP}
    for key, valid in choices.items():
        value = settings[key]
        if value not in valid and not (key == "direction" and value is None):
            instead = key_elsewhere(f"hydra.sweeper.{key}={value}") or hint(str(value), valid)
            yield f"hydra.sweeper.{key} is {value!r} but must be {' or '.join(valid)}; {instead}"
    if not asked.is_run and settings["keep"] == keeping.ONLY_BEST:
        yield "hydra.sweeper.keep is best, but only trials of nlu.train have checkpoints; leave it out"
    pauses, pruner = resources.pauses(settings), resources.pruner_name(settings)
    if not asked.hands_trial and pauses:
        yield (
            f"hydra.sweeper.pruner is {pruner}, which pauses trials, but the program has no key trial; choose "
            "hydra.sweeper.pruner=none"
        )
    for key, written in ((OBJECTIVES, settings["objectives"]), (CONSTRAINTS, settings["constraints"])):
        if written and not asked.hands_trial:
            yield f"{key} is set, but the program has no key trial, so nothing is measured; leave it out"
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
    if asked.is_grid and resources.pruner_name(asked.settings) == FREEZE_THAW:
        return [f"{SAMPLER_GROUP} is grid, but freeze_thaw draws the trials itself; leave it out, or take asha"]
    problem = value_problem("hydra.sweeper.sampler.seed", int | None, written.get("seed"))
    return [*([problem] if problem else []), *(grid_problems(asked.space) if asked.is_grid else [])]
