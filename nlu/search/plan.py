"""What a search decides before its first trial: direction, goals, sampler, the length of trials, its study."""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import optuna
from hydra.core.plugins import Plugins
from hydra.types import HydraContext, TaskFunction
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from optuna.samplers import BaseSampler

from nlu.config.compose import compose_job
from nlu.config.errors import UserError
from nlu.jobs.queue import check_without_launch
from nlu.search import preflight, pruners
from nlu.search.goals import GOALS, Direction, Goals, read_goals
from nlu.search.preflight import SAMPLER_GROUP, Compose, Possible, Settings
from nlu.search.pruners import PRUNER
from nlu.search.sampling import SEEDS, SeededByTrial, WithPrior
from nlu.search.schedulers.scheduler import FREEZE_THAW
from nlu.search.slots import Gpus, Need, Slots, need_of, visible_gpus
from nlu.search.space import grid_values, overrides_of
from nlu.search.storage.open_study import open_storage
from nlu.search.storage.patience import PatientStorage
from nlu.search.sweep_folder import FOLDER, SHARED, SPACE, begin_study, held_search, require_same


@dataclass(frozen=True)
class Checked(Settings):
    """What a search was given, found right as far as that needs neither the data nor the storage."""

    compose: Compose
    base: DictConfig
    """the configuration without the search"""
    trials: Sequence[Possible]
    needs: Sequence[Need]
    """of these trials on this machine; none for jobs elsewhere"""
    metric: str
    direction: Direction
    goals: Goals
    seed: int
    drawing: BaseSampler

    @property
    def configs(self) -> list[dict[str, Any]]:
        """The trials as nlu.train reads them; none of another program."""
        return [trial.config for trial in self.trials] if self.is_run else []

    @property
    def n_trials(self) -> int:
        """How many trials end: of a grid no more than it has."""
        n_trials: int = self.settings["n_trials"]
        return min(n_trials, math.prod(map(len, grid_values(self.space).values()))) if self.is_grid else n_trials


@dataclass(frozen=True)
class Plan(Checked):
    """A search before its first trial: what it was given, and all that follows from it."""

    name: str
    """of the study"""
    spec: Mapping[str, Any]
    """of the pruner, with resources in examples"""
    slots: Slots
    storage: PatientStorage
    study: optuna.Study
    study_id: int
    identity: Mapping[str, Any]
    """the attributes by which its study is recognized"""
    warning: str | None
    """what the user should know before the first trial"""

    @property
    def drawn_by(self) -> str:
        """The name of what draws the trials: the sampler, or the pruner that does it itself."""
        return FREEZE_THAW if self.spec["name"] == FREEZE_THAW else self.sampler_name

    def composed_value(self, key: str) -> str | None:
        """Return the value that a key has without the search."""
        return preflight.composed_value(self.base, key)

    def trial_id(self, number: int) -> int:
        """Return the id of a trial in the storage."""
        return self.storage.get_trial_id_from_study_id_trial_number(self.study_id, number)

    def need(self, values: Mapping[str, object]) -> Need:
        """Return what a trial needs of this machine. Raises UserError if the machine has less."""
        if not self.is_local:
            return Need()
        need = need_of(self.compose([*self.space.fixed, *overrides_of(values)]))
        Gpus(visible_gpus()).require(need.gpus)
        return need

    def overrides(self, number: int, attempt: int, launch: int, values: Mapping[str, object]) -> list[str]:
        """Return the overrides of the job of a trial."""
        return _overrides(self, self.name, number, overrides_of(values), attempt, launch)


def plan_search(
    asked: Settings, problems: Sequence[str], of_space: Sequence[str], context: HydraContext, task: TaskFunction
) -> Plan:
    """Check all that needs no trial, what is cheap first, and return the plan.

    `problems` are those of the settings, `of_space` those of the space. Raises UserError with all problems of a step.
    """
    checked = _checked(asked, problems, of_space)
    configs, goals, direction = checked.configs, checked.goals, checked.direction
    least_gpus = min((need.gpus for need in checked.needs), default=1)
    slots = Slots(asked.config, context, task, asked.settings["n_jobs"], least_gpus)
    warning = slots.sentence(asked.settings["n_jobs"])
    # A folder may have been moved or renamed since its search began.
    name = asked.settings["study_name"] or (held_search(asked.folder) or {}).get("study") or asked.folder.name
    # After all checks that need neither the data nor the storage.
    if asked.is_run and (checked.base.dry_run or not asked.is_local):
        launcher = Plugins.instance().instantiate_launcher(
            hydra_context=context, task_function=task, config=asked.config
        )
        jobs = [_overrides(asked, name, number, trial.overrides) for number, trial in enumerate(checked.trials)]
        check_without_launch(launcher, jobs, configs)
    if asked.is_run and checked.base.dry_run:
        _end_dry_run(checked, warning)
    # Before the data are prepared, which may take long: a storage that does not answer, or has another search.
    storage = open_storage(asked.url)
    identity = {
        FOLDER: str(asked.folder.absolute()),
        SHARED: preflight.shared_values(checked.base, asked.space.names),
        GOALS: goals.to_json(),
        PRUNER: {"name": pruners.pruner_name(asked.settings)},
        SPACE: asked.space.described(),
    }
    require_same(asked.folder, name, asked.url, _study_in(storage, name), identity, direction)

    spec = pruners.pruner_spec(asked.settings, configs, _examples(checked) if configs else None)
    sampler = checked.drawing
    if asked.space.priors and spec["name"] != FREEZE_THAW:
        sampler = WithPrior(sampler, asked.space.priors, checked.seed)
    # Without a pruner: only the jobs ask it.
    directions = [direction, *goals.directions]
    create = partial(optuna.create_study, study_name=name, storage=storage, directions=directions, sampler=sampler)
    study = begin_study(asked.folder, name, asked.url, create)
    return Plan(
        **vars(checked),
        name=name,
        spec=spec,
        slots=slots,
        storage=storage,
        study=study,
        study_id=storage.get_study_id_from_name(name),
        identity={**identity, PRUNER: spec},
        warning=warning,
    )


def _checked(asked: Settings, problems: Sequence[str], of_space: Sequence[str]) -> Checked:
    """Compose all trials that may be drawn, and check them and the settings. Raises UserError with all problems."""
    settings, compose = asked.settings, partial(compose_job, asked.loader, asked.config)
    if not of_space and not asked.space.names:
        of_space = ["nothing is drawn; sweep a key, such as 'optimizer.lr=tag(log,interval(1e-5,5e-4))'"]
    trials, of_trials = preflight.possible_trials(asked.space, compose, asked.loader, asked.is_run)
    if of_space or of_trials:
        raise UserError(*problems, *of_space, *of_trials)
    base = compose(asked.space.fixed)
    configs = [trial.config for trial in trials] if asked.is_run else []
    needs = [need_of(trial.composed) for trial in trials] if asked.is_local else []

    found = [*problems, *pruners.unsaved(settings, configs)]
    metric, metrics = preflight.metrics_of_trials(configs)
    with _adding_to(found):
        goals = read_goals(settings["objectives"], settings["constraints"], metric, metrics)
    with _adding_to(found):
        Gpus(visible_gpus()).require(max((need.gpus for need in needs), default=0))
    if not problems:
        with _adding_to(found):
            direction = preflight.direction_of(configs, settings["direction"])
        with _adding_to(found):
            seed, sampler = _sampler(asked, base)
    if found:
        raise UserError(*found)
    return Checked(
        **vars(asked),
        compose=compose,
        base=base,
        trials=trials,
        needs=needs,
        metric=metric,
        direction=direction,
        goals=goals,
        seed=seed,
        drawing=sampler,
    )


@contextmanager
def _adding_to(found: list[str]) -> Iterator[None]:
    """Add the problems of a block to those found so far, so that all are reported together."""
    try:
        yield
    except UserError as error:
        found += error.problems


def _sampler(asked: Settings, base: DictConfig) -> tuple[int, BaseSampler]:
    """Return the seed of a search and its sampler. Raises UserError if it cannot be made."""
    node = asked.settings["sampler"]
    # Without an own one the seed of the run, so that one key makes both the trials and the search repeatable.
    composed = OmegaConf.select(base, "seed") if node.get("seed") is None else node["seed"]
    seed = composed if isinstance(composed, int) else 0
    if asked.is_grid:
        # Each trial is given its values.
        node = {"_target_": "optuna.samplers.RandomSampler"}
    build = instantiate(
        {**node, "_partial_": True},
        _execution_whitelist_=("hydra_plugins.hydra_optuna_sweeper.*", "optuna.samplers.*"),
    )
    try:
        # Built once now, so that a wrong parameter of the sampler is reported before the first trial.
        build(seed=seed % SEEDS)
    except (TypeError, ValueError) as error:
        reason = " ".join(str(error).split()).removesuffix(".")
        raise UserError(
            f"{SAMPLER_GROUP} is {asked.sampler_name}, which cannot be made: {reason}; correct what "
            f"hydra.sweeper.sampler sets, or choose another with {SAMPLER_GROUP}=NAME"
        ) from error
    return seed % SEEDS, SeededByTrial(lambda own_seed: build(seed=own_seed), seed)


def _end_dry_run(checked: Checked, warning: str | None) -> None:
    print(f"# Drawn for each trial: {', '.join(checked.space.names)}")
    if priors := checked.space.priors:
        print(f"# Tried first: {' '.join(overrides_of(priors))}")
    print("# Every combination of groups is valid, at both ends of every interval and with every choice.")
    print("# Nothing was run: the storage was not asked, and the rungs of the pruner depend on the number of rows.")
    if warning is not None:
        print(f"# warning: {warning}")
    raise SystemExit(0)


def _study_in(storage: PatientStorage, name: str) -> optuna.Study | None:
    try:
        return optuna.load_study(study_name=name, storage=storage)
    except KeyError:
        return None


def _examples(checked: Checked) -> int:
    """Return the training examples of a trial, once its data are prepared."""
    trial, sources = checked.trials[0], checked.config.hydra.runtime.config_sources
    directories = [source.path for source in sources if source.provider == "command-line"]
    # Folds of one data set have about the same number of training examples, so one of them is enough.
    one_fold = ["fold=0"] if trial.config["folds"]["count"] is not None and trial.config["fold"] is None else []
    return preflight.train_examples([*checked.space.fixed, *trial.overrides, *one_fold], directories)


def _overrides(
    asked: Settings, name: str, number: int, drawn: Sequence[str], attempt: int = 0, launch: int = 1
) -> list[str]:
    """Return the overrides of the job of a trial of the study `name`."""
    named = f'storage:"{_quoted(asked.url)}",study:"{_quoted(name)}"'
    # The job needs no other connection to the search, which may have ended meanwhile.
    trial = f"trial={{{named},number:{number},attempt:{attempt},launch:{launch}}}"
    resume = ["resume=auto"] if "resume" in asked.config else []
    # The former job is over, also if it could not release the mirror of the run.
    take = ["take=true"] if launch > 1 and "take" in asked.config else []
    return [*asked.space.fixed, *drawn, trial, *resume, *take]


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')
