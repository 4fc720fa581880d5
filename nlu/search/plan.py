"""What a search decides before its first trial: settings, space, sampler and pruner, study."""

import math
import uuid
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import optuna
from hydra.core.plugins import Plugins
from hydra.types import HydraContext, TaskFunction
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from optuna.samplers import BaseSampler, RandomSampler

from nlu.config.compose import Jobs
from nlu.config.entry.app import prepare
from nlu.config.errors import UserError
from nlu.config.resolving import without_hydra
from nlu.jobs.queue import check_without_launch
from nlu.search import folder as _folder
from nlu.search import preflight, resources
from nlu.search._goals import goal_warnings, goals_of
from nlu.search.first import defaults
from nlu.search.goals import GOALS
from nlu.search.identity import FOLDER, SHARED, SPACE, refuse_another, short_name
from nlu.search.priors import WithPrior
from nlu.search.pruners import PRUNER
from nlu.search.sampling import SEEDS, SeededByTrial
from nlu.search.settings import FREEZE_THAW, SAMPLERS, SearchSettings
from nlu.search.slots import Gpus, Need, Slots, need_of, visible_gpus
from nlu.search.space import grid_values, overrides_of
from nlu.search.storage.opening import open_storage
from nlu.search.storage.patience import PatientStorage


class SearchPlan(SearchSettings):
    """A search before its first trial; `prepare` completes it."""

    def __init__(
        self,
        settings: dict[str, Any],
        arguments: list[str],
        context: HydraContext,
        task: TaskFunction,
        config: DictConfig,
    ):
        super().__init__(settings, arguments, config, context.config_loader)
        self.context, self.task = context, task
        self.warnings: list[str] = []
        """what the user should know before the first trial"""

    def prepare(self) -> None:
        """Decide everything that needs no trial. Raises UserError with all problems of a step."""
        # A folder may have been moved or renamed since its search began.
        self.name = self.settings["study_name"] or _folder.held_name(self.folder) or self.folder.name
        self._compose = compose = Jobs(self.context.config_loader, self.config).compose
        is_group = preflight.is_group_of(self.loader)
        found = self.problems()
        if self.is_space_whole and not self.space.names:
            found.append("nothing is drawn; sweep a key, such as 'optimizer.lr=tag(log,interval(1e-5,5e-4))'")
        may_build = not found
        of_trials = preflight.composition_problems(self.space, compose, self.loader, self.is_run)
        if of_trials or not self.is_space_whole:
            raise UserError(*found, *of_trials)
        self.base = compose(list(self.space.fixed))
        probes = self._probes(is_group)
        configs = (
            [prepare(without_hydra(compose([*self.space.fixed, *probe]))) for probe in probes] if self.is_run else []
        )
        found += self._problems_of_trials(configs, are_settings_right=may_build)
        least_gpus = 1
        if self._is_local:
            needs = [need_of(compose([*self.space.fixed, *probe])) for probe in probes]
            least_gpus = min(need.gpus for need in needs)
            found += self._gpu_problems(needs)
        sampler: BaseSampler | None = None
        if may_build:
            try:
                sampler = self._built_sampler()
            except UserError as error:
                found += error.problems
        if found:
            raise UserError(*found)
        assert sampler is not None, "without a problem it was built"
        self.slots = Slots(self.config, self.context, self.task, self.n_jobs, least_gpus)
        if (sentence := self.slots.sentence(self.n_jobs)) is not None:
            self.warnings.append(sentence)
        pruner = resources.pruner_name(self.settings)
        assert pruner is not None, "a wrong one was reported"
        self.warnings += goal_warnings(self.goals, pruner)
        # After all checks that need neither the data nor the storage.
        if self.is_run and self.base.dry_run:
            self._end_dry_run(configs, probes)
        if self.is_run and not self._is_local:
            self._check_launch(configs, probes)
        # Before the data are prepared, which may take long: a storage that does not answer is reported at once.
        storage = open_storage(self.url)
        self._refuse_another(storage)
        examples = self._count_examples(probes[0], configs[0]) if configs else None
        self.spec = resources.pruner_spec(self.settings, configs, examples)
        self.warnings += resources.without_rungs(self.spec)
        if self.centers and pruner != FREEZE_THAW:
            sampler = WithPrior(sampler, self.centers, self.seed)
        self.sampler = sampler
        self._open_study(storage)

    def _problems_of_trials(self, configs: Sequence[dict[str, Any]], *, are_settings_right: bool) -> list[str]:
        """Return what is wrong with the settings for these trials; sets what follows from both."""
        found = resources.unsaved(self.settings, configs)
        if are_settings_right:
            try:
                asked = self.settings["direction"]
                self.direction: preflight.Direction = (
                    preflight.direction_of(configs, asked) if configs else asked or "minimize"
                )
            except UserError as error:
                found = [*error.problems, *found]
        self.metric = preflight.metrics_of_trials(configs)[0] if configs else "value"
        try:
            self.goals = goals_of(self.settings, configs, hands_trial=self.hands_trial)
        except UserError as error:
            found += error.problems
        try:
            self.first = defaults(self.space, self.composed_value) if self.settings["use_defaults"] else {}
            self.centers = {**self.first, **self.space.priors}
        except UserError as error:
            found += error.problems
        return found

    @property
    def drawn_by(self) -> str:
        """The name of what draws the trials: the sampler, or the pruner that does it itself."""
        return FREEZE_THAW if self.spec["name"] == FREEZE_THAW else self.sampler_name

    def composed_value(self, key: str) -> str | None:
        """Return the value that a key has without the search."""
        return preflight.composed_value(self.base, key)

    def _check_launch(self, configs: list[dict[str, Any]], probes: list[list[str]]) -> None:
        """Check what a launch of these trials would check before it hands them over. Raises UserError."""
        launcher = Plugins.instance().instantiate_launcher(
            hydra_context=self.context, task_function=self.task, config=self.config
        )
        check_without_launch(launcher, [self._of_trial(number, probe) for number, probe in enumerate(probes)], configs)

    def _end_dry_run(self, configs: list[dict[str, Any]], probes: list[list[str]]) -> None:
        self._check_launch(configs, probes)
        print(f"# Drawn for each trial: {', '.join(self.space.names)}")
        if self.first:
            print(f"# Tried first: {' '.join(overrides_of(self.first))}")
        print("# Every combination of groups is valid, at both ends of every interval and with every choice.")
        print("# Nothing was run: the storage was not asked, and the rungs of the pruner depend on the number of rows.")
        for warning in self.warnings:
            print(f"# warning: {warning}")
        raise SystemExit(0)

    def _probes(self, is_group: Callable[[str], bool]) -> list[list[str]]:
        """Return values of trials: both ends of intervals and all choices, for every combination of groups."""
        value_of = self.composed_value
        tried = preflight.combinations(self.space, is_group)
        return [probe for combination in tried for probe in preflight.probes(self.space, combination, value_of)]

    def _built_sampler(self) -> SeededByTrial:
        node = self.settings["sampler"]
        build = instantiate(
            {**node, "_partial_": True},
            _execution_whitelist_=("hydra_plugins.hydra_optuna_sweeper.*", "optuna.samplers.*"),
        )
        seed = node.get("seed")
        # The seed of the run, so that one key makes both the trials and the search repeatable.
        if seed is None:
            composed = OmegaConf.select(self.base, "seed")
            seed = composed if isinstance(composed, int) else 0
        kind = node["_target_"].rpartition(".")[2]
        self.seed = seed % SEEDS
        if self._is_grid:
            values = grid_values(self.space)
            self.n_trials = min(self.n_trials, math.prod(map(len, values.values())))
            build = partial(build, values)
        try:
            # Built once now, so that a wrong parameter of the sampler is reported before the first trial.
            build(seed=self.seed)
        except (TypeError, ValueError) as error:
            chosen = self.config.hydra.runtime.choices[SAMPLERS]
            reason = " ".join(str(error).split()).removesuffix(".")
            raise UserError(
                f"{SAMPLERS} is {chosen}, which cannot be made: {reason}; correct what hydra.sweeper.sampler sets, or "
                f"choose another with {SAMPLERS}=NAME"
            ) from error
        self.sampler_name = short_name(kind)
        is_quasi_random = kind == "QMCSampler"
        return SeededByTrial(
            lambda own_seed: build(seed=own_seed),
            seed,
            one_sequence=self._is_grid or is_quasi_random,
            independent=(lambda own_seed: RandomSampler(seed=own_seed)) if is_quasi_random else None,
        )

    def _count_examples(self, overrides: list[str], config: dict[str, Any]) -> int:
        directories = [
            source.path for source in self.config.hydra.runtime.config_sources if source.provider == "command-line"
        ]
        # Folds of one data set have about the same number of training examples, so one of them is enough.
        one_fold = ["fold=0"] if config["folds"]["count"] is not None and config["fold"] is None else []
        return preflight.train_examples([*self.space.fixed, *overrides, *one_fold], directories)

    def _refuse_another(self, storage: PatientStorage) -> optuna.Study | None:
        """Return this search if the storage has it; None if it has none of this name.

        Raises UserError if folder or storage has another search, as far as that is known without the data.
        """
        _folder.require_same_id(self.folder, self.name, self.url, self._found_id(storage))
        try:
            study = optuna.load_study(study_name=self.name, storage=storage)
        except KeyError:
            return None
        now = {**self._identity(), PRUNER: {"name": resources.pruner_name(self.settings)}}
        return study if self._require_same(study, now) else None

    def _require_same(self, study: optuna.Study, now: Mapping[str, Any]) -> bool:
        """Return whether a study is this search, False for a new one; raises UserError for another search."""
        if any(name not in study.user_attrs for name in (SPACE, SHARED, FOLDER, _folder.ID)):
            return False
        refuse_another(study, f"the study {self.name} in {self.url}", now, self.direction, self.settings)
        return True

    def _identity(self) -> dict[str, Any]:
        """Return what identifies this search and is known without the data."""
        return {
            FOLDER: str(self.folder.absolute()),
            SHARED: preflight.shared_values(self.base, self.space.names),
            **({GOALS: self.goals.to_json()} if self.goals.quantities else {}),
            SPACE: self.space.described(),
        }

    def _open_study(self, storage: PatientStorage) -> None:
        _folder.require_same_id(self.folder, self.name, self.url, self._found_id(storage))
        # Without a pruner: only the jobs ask it.
        self.study = optuna.create_study(
            study_name=self.name,
            storage=storage,
            directions=[self.direction, *self.goals.directions],
            load_if_exists=True,
            sampler=self.sampler,
        )
        self.storage, self.study_id = storage, storage.get_study_id_from_name(self.name)
        attributes = self.study.user_attrs
        identity = self._identity()
        # The space is written last: if it is there, a kill has not cut off the others.
        space = identity.pop(SPACE)
        now = {
            **identity,
            PRUNER: self.spec,
            _folder.ID: attributes.get(_folder.ID) or uuid.uuid4().hex,
            SPACE: space,
        }
        self._require_same(self.study, now)
        # Written only once this search is the holder of the study; see `settle`.
        self._settled = {key: value for key, value in now.items() if attributes.get(key) != value}

    def settle(self) -> None:
        """Write the identity of this search into study and folder; from now on they belong together."""
        # For Optuna's figures and dashboard.
        names = [self.metric, *self.goals.objectives]
        if self.study.metric_names != names:
            self.study.set_metric_names(names)
        for key, value in self._settled.items():
            self.study.set_user_attr(key, value)
        _folder.keep(self.folder, self.name, self.url, self.study.user_attrs[_folder.ID])

    def trial_id(self, number: int) -> int:
        """Return the id of a trial in the storage."""
        return self.storage.get_trial_id_from_study_id_trial_number(self.study_id, number)

    def _found_id(self, storage: PatientStorage) -> str | None:
        """Return the id of the study of this name in the storage, or None."""
        try:
            return optuna.load_study(study_name=self.name, storage=storage).user_attrs.get(_folder.ID)
        except KeyError:
            return None

    def need(self, values: dict[str, Any]) -> Need:
        """Return what a trial needs of this machine. Raises UserError if the machine has less."""
        if not self._is_local:
            return Need()
        need = need_of(self._compose([*self.space.fixed, *overrides_of(values)]))
        if problems := self._gpu_problems([need]):
            raise UserError(*problems)
        return need

    def _gpu_problems(self, needs: Sequence[Need]) -> list[str]:
        """Return why trials with these needs could not run on this machine."""
        try:
            Gpus(visible_gpus()).require(max(need.gpus for need in needs))
        except UserError as error:
            return error.problems
        return []

    def overrides(self, number: int, attempt: int, launch: int, values: dict[str, Any]) -> list[str]:
        """Return the overrides of the job of a trial."""
        return self._of_trial(number, overrides_of(values), attempt, launch)

    def _of_trial(self, number: int, drawn: Sequence[str], attempt: int = 0, launch: int = 1) -> list[str]:
        found = [*self.space.fixed, *drawn]
        if self.hands_trial:
            named = f'storage:"{_quoted(self.url)}",study:"{_quoted(self.name)}"'
            # The job needs no other connection to the search, which may have ended meanwhile.
            found.append(f"trial={{{named},number:{number},attempt:{attempt},launch:{launch}}}")
            found += ["resume=auto"] if "resume" in self.config else []
            # The former job is over, also if it could not release the mirror of the run.
            found += ["take=true"] if launch > 1 and "take" in self.config else []
        return found


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')
