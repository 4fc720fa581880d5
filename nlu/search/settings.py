"""The settings of a search and its space, as far as they can be judged without composing a trial."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.core.config_loader import ConfigLoader
from hydra.core.object_type import ObjectType
from omegaconf import DictConfig, OmegaConf

from nlu.config.addresses import address_problems
from nlu.config.checks.reading import read_override
from nlu.config.checks.values import show
from nlu.config.entry.grid import run_dir_problems
from nlu.config.foreign import key_elsewhere
from nlu.config.nearest import hint
from nlu.config.targets import TARGET
from nlu.search import first, keeping, resources
from nlu.search.slots import LOCAL
from nlu.search.space import grid_problems, space_of
from nlu.search.storage.opening import journal_of, storage_url, url_problems

SAMPLERS = "hydra/sweeper/sampler"
SUBDIRS = ("${hydra:job.num}", "${hydra.job.num}")
"""what names the folder of a trial, in the words of nlu and of Hydra"""
FREEZE_THAW = "freeze_thaw"
"""the pruner that draws the trials itself"""


@dataclass
class SearchSettings:
    """What a search was given. The configuration has the node `hydra`."""

    settings: dict[str, Any]
    """of hydra.sweeper"""
    arguments: list[str]
    """the overrides of its trials"""
    config: DictConfig
    loader: ConfigLoader

    @classmethod
    def of(cls, config: DictConfig, arguments: list[str], loader: ConfigLoader) -> "SearchSettings":
        """Return those of a configuration from which no sweeper was made."""
        return cls(
            {str(key): value for key, value in config.hydra.sweeper.items() if key != TARGET}, arguments, config, loader
        )

    def __post_init__(self) -> None:
        self.settings = {
            key: OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value
            for key, value in self.settings.items()
        }
        self.n_trials, self.n_jobs = int(self.settings["n_trials"]), int(self.settings["n_jobs"])
        self.folder = Path(str(self.config.hydra.sweep.dir))
        self.hands_trial = "trial" in self.config
        """whether the program reports to its trial; if not, the number that its job returns is the value"""
        self.is_run = self.hands_trial and "task" in self.config and "trainer" in self.config
        """whether the program is nlu.train"""
        self.mirror = _mirror(self.arguments, self.config)
        """the object store that keeps the folder and, unless a storage is set, the journal"""
        self.take = _given(self.arguments, self.config, "take") is True
        """whether that store is taken from a search that has not released it"""
        self.url = storage_url(self.settings["storage"] or journal_of(self.mirror), self.folder)

    def problems(self) -> list[str]:
        """Return what is wrong with the settings and the space, without composing a trial; sets `space`.

        The space lacks what is wrong, and then has no conditions.
        """
        found = self._setting_problems()
        self.space, of_space = space_of(self.settings["params"], self.settings["when"], self.arguments, self.loader)
        self.is_space_whole = not of_space
        if of_space:
            self.space.branches = []
        elif self._is_grid:
            found += grid_problems(self.space)
        return found + of_space

    def _setting_problems(self) -> list[str]:
        found = []
        lows = {"n_trials": 1, "n_jobs": 1, "retries": 0, "stop_after_same_failures": 0}
        for key, low in lows.items():
            if self.settings[key] < low:
                found.append(f"hydra.sweeper.{key} is {self.settings[key]} but must be >= {low}; set it to {low}")
        choices = {"on_failure": ["continue", "stop"], "direction": ["maximize", "minimize"], "keep": keeping.KEEP}
        for key, valid in choices.items():
            value = self.settings[key]
            if value not in valid and not (key == "direction" and value is None):
                instead = key_elsewhere(f"hydra.sweeper.{key}={value}") or hint(str(value), valid)
                found.append(f"hydra.sweeper.{key} is {value!r} but must be {' or '.join(valid)}; {instead}")
        if not self.is_run and self.settings["keep"] == keeping.ONLY_BEST:
            found.append("hydra.sweeper.keep is best, but only trials of nlu.train have checkpoints; leave it out")
        if not self.hands_trial and resources.pauses(self.settings):
            found.append(
                f"hydra.sweeper.pruner is {show(self.settings['pruner'])}, which pauses trials, but the program has no "
                "key trial; choose hydra.sweeper.pruner=none"
            )
        sweep: Any = OmegaConf.to_container(self.config.hydra.sweep, resolve=False)
        if sweep["subdir"] not in SUBDIRS:
            found.append(
                f"hydra.sweep.subdir is {sweep['subdir']}, but the folder of a trial is its number; leave it out"
            )
        if self.config.hydra.launcher.get("wait") is False:
            found.append(
                "hydra.launcher.wait is false, but a search draws its next trials from the results of the last ones; "
                "leave it out, and start the search where it can keep running, in tmux or as a job"
            )
        found += run_dir_problems(self.config)
        found += url_problems(self.url, self.n_jobs)
        return found + self._sampler_problems() + resources.setting_problems(self.settings)

    def _sampler_problems(self) -> list[str]:
        sampler = self.settings["sampler"]
        if self._is_grid and resources.pruner_name(self.settings) == FREEZE_THAW:
            return [f"{SAMPLERS} is grid, but freeze_thaw draws the trials itself; leave it out, or take asha"]
        if self._is_grid and self.settings["use_defaults"]:
            return [f"{first.KEY} is set, but {SAMPLERS}=grid tries every combination; leave it out"]
        if isinstance(sampler, dict) and sampler["_target_"].endswith(".CmaEsSampler"):
            return [f"{SAMPLERS} is cmaes, which a search no longer has; choose {SAMPLERS}=gp, or tpe"]
        if isinstance(sampler, dict):
            return [
                f"hydra.sweeper.sampler.{key} is {value} but must be >= 0; set it to such a number"
                for key, value in sampler.items()
                if key.startswith("n_") and isinstance(value, int) and value < 0
            ]
        names = [name for name in self.loader.get_group_options(SAMPLERS, ObjectType.CONFIG) if name != "cmaes"]
        remedy = f"{SAMPLERS}={sampler}" if sampler in names else f"{SAMPLERS}=NAME; {hint(str(sampler), names)}"
        return [f"hydra.sweeper.sampler is {show(sampler)}, but a sampler is the choice of a group; write {remedy}"]

    @property
    def _is_grid(self) -> bool:
        sampler = self.settings["sampler"]
        return isinstance(sampler, dict) and sampler["_target_"].endswith(".GridSampler")

    @property
    def _is_local(self) -> bool:
        return str(self.config.hydra.launcher._target_) == LOCAL


def _given(arguments: Sequence[str], config: DictConfig, key: str) -> object:
    """Return the value that a command gives to a key that is the same in all trials."""
    written = [read_override(text).value() for text in arguments if text.lstrip("+").startswith(f"{key}=")]
    return written[-1] if written else OmegaConf.select(config, key)


def _mirror(arguments: Sequence[str], config: DictConfig) -> str | None:
    """Return the mirror of the search, which has a folder for each trial."""
    mirror = _given(arguments, config, "mirror")
    # A wrong address is refused with all other problems, when the configuration of the trials is checked.
    return mirror if isinstance(mirror, str) and not address_problems(mirror, "mirror") else None
