"""The search: ask, launch, wait, tell; every decision is in the storage, so that it can be broken off anywhere."""

import contextlib
import fcntl
import os
import queue
import signal
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import optuna
from hydra.types import HydraContext, TaskFunction
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from optuna.exceptions import ExperimentalWarning
from optuna.samplers import RandomSampler
from optuna.trial import FrozenTrial, Trial, TrialState

from nlu.config.app import prepare
from nlu.config.errors import UserError
from nlu.config.nearest import hint
from nlu.sweeps import preflight, pruning
from nlu.sweeps.channel import COMPLETE, OUTCOME, PRUNED, PRUNER, STOPPED, last_line
from nlu.sweeps.sampling import SeededByTrial
from nlu.sweeps.space import overrides_of, read_space, require_grid, space_differences
from nlu.sweeps.storage import open_storage, storage_url, url_problems

from ._board import Board, Idle, parameters
from ._slots import Ended, Slots, quiet_launchers

SPACE, FIXED, FOLDER = "space", "fixed", "folder"
"""user attributes of a study: what is drawn, the overrides that all trials share, the sweep folder"""
VALUES, ATTEMPT = "values", "attempt"
"""user attributes of a trial: what was drawn, once that is complete; how often it has failed so far"""
LOCK = ".sweep.lock"
POLL_S = {"journal": 0.1, "sqlite": 0.2}
POLL_REMOTE_S = 1.0
LOST_MAX = 3
"""How often a job may vanish without a word, and without having got any further, before its trial has failed."""
STOP_WAIT_S = 60.0
FINISHED = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL)


def sweep(
    settings: dict[str, Any], arguments: list[str], context: HydraContext, task: TaskFunction, config: DictConfig
) -> None:
    """Run a search to its end, or go on with the one in its folder. Raises UserError before the first trial."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    warnings.simplefilter("ignore", ExperimentalWarning)
    quiet_launchers()
    search = Search(settings, arguments, context, task, config)
    with hold(search.folder):
        search.prepare()
        search.run()
        search.summarize()


@contextlib.contextmanager
def hold(folder: Path) -> Iterator[None]:
    """Hold the sweep folder for this process. UserError where another process sweeps into it."""
    made_here = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder / LOCK, os.O_CREAT | os.O_RDWR, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            made_here = False
            raise UserError(
                f"hydra.sweep.dir is {folder}, and another search is running in it; wait for it, stop it, or choose "
                "another hydra.sweep.dir"
            ) from None
        yield
    finally:
        if made_here and not any(path.is_dir() or path.stat().st_size for path in folder.iterdir()):
            # Refused before anything was settled.
            for path in folder.iterdir():
                path.unlink()
            folder.rmdir()
        os.close(descriptor)


@dataclass
class Running:
    """A trial whose job was launched here."""

    frozen: FrozenTrial
    attempt: int
    examples_at_launch: int
    lost: int = 0


@dataclass
class Search:
    """One search, from its configuration to its end."""

    settings: dict[str, Any]
    arguments: list[str]
    context: HydraContext
    task: TaskFunction
    config: DictConfig
    running: dict[int, Running] = field(default_factory=dict)
    waiting: list[int] = field(default_factory=list)
    """numbers that were asked for, and have no job: of a search that was broken off, or to be started again"""
    stopping: int | None = None
    """the signal that asked to stop"""

    def __post_init__(self) -> None:
        self.settings = {
            key: OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value
            for key, value in self.settings.items()
        }
        self.n_trials, self.n_jobs = int(self.settings["n_trials"]), int(self.settings["n_jobs"])
        self.folder = Path(str(self.config.hydra.sweep.dir))
        self.hands_trial = "trial" in self.config
        """the program reports to its trial; of any other the number that its job returns is the value"""
        self.is_run = self.hands_trial and "task" in self.config and "trainer" in self.config
        """the program is nlu.train"""
        self.url = storage_url(self.settings["storage"], self.folder)
        self.name = self.settings["study_name"] or self.folder.name
        self.lost: Counter[int] = Counter()

    # ---- before the first trial

    def prepare(self) -> None:
        """Settle everything that can be settled without a trial. Raises UserError with all problems of a step."""
        self._check_settings()
        self.space = read_space(self.settings["params"], self.settings["when"], self.arguments)
        if not self.space.names:
            raise UserError("nothing is drawn; sweep a key, such as 'optimizer.lr=tag(log,interval(1e-5,5e-4))'")
        compose = partial(self.context.config_loader.load_sweep_config, self.config)
        is_group = preflight.is_group_of(self.context.config_loader)
        if found := preflight.composition_problems(
            self.space, lambda extra: compose(list(extra)), is_group, self.is_run
        ):
            raise UserError(*found)
        self.base = compose(list(self.space.fixed))
        if self.is_run and self.base.dry_run:
            tried = len(preflight.combinations(self.space, is_group))
            print(f"# Drawn for each trial: {', '.join(self.space.names)}")
            print(f"# {tried} combination(s) of groups compose and are valid at both ends of every interval and with "
                  "every choice. Nothing was run or read.")  # fmt: skip
            raise SystemExit(0)
        probes = self._probes(is_group)
        configs = [self._plain(compose([*self.space.fixed, *probe])) for probe in probes] if self.is_run else []
        self.direction = (
            preflight.direction_of(configs, self.settings["direction"]) if configs
            else self.settings["direction"] or "minimize"
        )  # fmt: skip
        self._build_sampler()
        self.slots = Slots(self.config, self.context, self.task, self.n_jobs)
        storage = open_storage(self.url)
        examples = self._count_examples(probes[0], configs[0]) if configs else None
        self.spec = preflight.pruner_spec(self.settings, configs, examples)
        self._open_study(storage)

    def _check_settings(self) -> None:
        found = []
        for key, low in (("n_trials", 1), ("n_jobs", 1), ("retries", 0), ("stop_after_same_failures", 0)):
            if self.settings[key] < low:
                found.append(f"hydra.sweeper.{key} is {self.settings[key]} but must be >= {low}")
        if self.settings["on_failure"] not in ("continue", "stop"):
            found.append(f"hydra.sweeper.on_failure is {self.settings['on_failure']!r} but must be continue or stop")
        if self.settings["direction"] not in (None, "maximize", "minimize"):
            found.append(
                f"hydra.sweeper.direction is {self.settings['direction']!r}; "
                f"{hint(str(self.settings['direction']), ['maximize', 'minimize'])}"
            )
        subdir = OmegaConf.to_container(self.config.hydra.sweep, resolve=False)["subdir"]  # type: ignore[index, call-overload]
        if "hydra:job.num" not in subdir and "hydra.job.num" not in subdir:
            found.append(
                f"hydra.sweep.subdir is {subdir}, but a trial's folder must be found by its number; leave it out"
            )
        found += url_problems(self.url, self.n_jobs)
        if found:
            raise UserError(*found)
        preflight.require_durations(self.settings)

    def _probes(self, is_group: Callable[[str], bool]) -> list[list[str]]:
        """Return what trials may hold: of each combination of groups both ends of what is drawn, and all choices."""
        value_of = partial(preflight.composed_value, self.base)
        tried = preflight.combinations(self.space, is_group)
        return [probe for combination in tried for probe in preflight.probes(self.space, combination, value_of)]

    @staticmethod
    def _plain(composed: DictConfig) -> dict[str, Any]:
        return prepare(preflight.without_hydra(composed))

    def _build_sampler(self) -> None:
        node = self.settings["sampler"]
        build = instantiate(
            {**node, "_partial_": True},
            _execution_whitelist_=("hydra_plugins.hydra_optuna_sweeper.*", "optuna.samplers.*"),
        )
        seed = node.get("seed")
        if seed is None:
            composed = OmegaConf.select(self.base, "seed")
            seed = composed if isinstance(composed, int) else 0
        kind = node["_target_"].rpartition(".")[2]
        is_grid = kind == "GridSampler"
        if is_grid:
            values = require_grid(self.space)
            size = 1
            for choices in values.values():
                size *= len(choices)
            self.n_trials = min(self.n_trials, size)
            build = partial(build, values)
        self.sampler_name = kind.removesuffix("Sampler").lower()
        is_quasi_random = kind == "QMCSampler"
        self.sampler = SeededByTrial(
            lambda own_seed: build(seed=own_seed), seed, one_sequence=is_grid or is_quasi_random,
            alone=(lambda own_seed: RandomSampler(seed=own_seed)) if is_quasi_random else None,
        )  # fmt: skip

    def _count_examples(self, overrides: list[str], config: dict[str, Any]) -> int:
        directories = [
            source.path for source in self.config.hydra.runtime.config_sources if source.provider == "command-line"
        ]
        one_fold = ["fold=0"] if config["folds"]["count"] is not None and config["fold"] is None else []
        return preflight.train_examples([*self.space.fixed, *overrides, *one_fold], directories)

    def _open_study(self, storage: Any) -> None:
        self.study = optuna.create_study(
            study_name=self.name, storage=storage, direction=self.direction, load_if_exists=True, sampler=self.sampler,
            pruner=pruning.build(self.spec),
        )  # fmt: skip
        self.storage = storage
        attributes = self.study.user_attrs
        now = {
            SPACE: self.space.described(), FIXED: sorted(self.space.fixed), FOLDER: str(self.folder.absolute()),
            PRUNER: self.spec,
        }  # fmt: skip
        if SPACE in attributes:
            self._refuse_another(attributes, now)
        for key, value in now.items():
            if attributes.get(key) != value:
                self.study.set_user_attr(key, value)

    def _refuse_another(self, before: dict[str, Any], now: dict[str, Any]) -> None:
        where = f"the study {self.name} in {self.url}"
        if before[FOLDER] != now[FOLDER]:
            raise UserError(
                f"{where} belongs to the sweep folder {before[FOLDER]}, not {now[FOLDER]}; set hydra.sweep.dir to that "
                "folder to go on with it, or hydra.sweeper.study_name to another name"
            )
        if self.study.direction.name.lower() != self.direction:
            raise UserError(f"{where} is to {self.study.direction.name.lower()}, this search to {self.direction}")
        if found := space_differences(before[SPACE], now[SPACE]):
            raise UserError(
                f"{where} draws from another space; write the same to go on with it, or choose another "
                "hydra.sweep.dir or hydra.sweeper.study_name",
                *found,
            )
        there, here = (set(part) for part in (before[FIXED], now[FIXED]))
        if there != here:
            raise UserError(
                f"{where} shares other overrides among its trials; write the same to go on with it, or choose another "
                "hydra.sweep.dir or hydra.sweeper.study_name",
                *(f"{text}: only there" for text in sorted(there - here)),
                *(f"{text}: only here" for text in sorted(here - there)),
            )

    # ---- the loop

    def run(self) -> None:
        """Keep all slots filled until n_trials are finished."""
        trials = self._trials()
        finished = [trial for trial in trials if trial.state in FINISHED]
        self.waiting = [trial.number for trial in trials if trial.state == TrialState.RUNNING]
        self.asked = len(trials)
        self.idle = Idle(self.slots.count)
        with Board(self.folder, self.n_trials, with_bar=self.slots.is_threaded) as self.board, self._signals():
            self._announce(len(finished))
            try:
                self._loop()
            except UserError:
                self._end_jobs()
                raise
            if self.stopping is not None:
                self._end_jobs()
                self.board.say(f"stopped; the same command with hydra.sweep.dir={self.folder} goes on")
                raise SystemExit(130 if self.stopping == signal.SIGINT else 75)
            if self.slots.is_threaded:
                self.board.say(f"idle slots: {self.idle.share:.1%} of the time in which trials remained")

    def _loop(self) -> None:
        while self.stopping is None:
            self._collect()
            self._fill()
            self.idle.changed(len(self.running), self._remaining())
            if not self.running:
                break
            self._wait()

    def _announce(self, finished: int) -> None:
        say = self.board.say
        say(f"search {self.name}: {self.n_trials} trials, {self.slots.count} at a time, {self.sampler_name}, "
            f"{self.direction} ({self.folder})")  # fmt: skip
        for line in preflight.announced(self.spec, self.n_trials, self.sampler_name):
            say(line, style="yellow" if line.startswith("warning") else None)
        if (sentence := self.slots.sentence(self.n_jobs)) is not None:
            say(f"warning: {sentence}", style="yellow")
        if finished or self.waiting:
            say(f"going on: {finished} trials are finished, {len(self.waiting)} were begun")
        else:
            say(f"to go on after a break: the same command with hydra.sweep.dir={self.folder}")

    def _remaining(self) -> int:
        return len(self.waiting) + max(0, self.n_trials - self.asked)

    def _fill(self) -> None:
        while len(self.running) < self.slots.count and self.stopping is None and self._remaining() > 0:
            if self.waiting:
                number = self.waiting.pop(0)
            else:
                number = self.study.ask().number
                self.asked += 1
            self._start(number)
            if not self.slots.is_threaded:
                self._collect()

    def _start(self, number: int) -> None:
        frozen = self._drawn(number)
        if OUTCOME in frozen.user_attrs and self._is_current(frozen):
            self._close(frozen)
            return
        attempt = frozen.user_attrs.get(ATTEMPT, 0)
        self.running[number] = Running(frozen, attempt, frozen.last_step or 0)
        self.idle.changed(len(self.running), self._remaining())
        begun = "goes on" if frozen.last_step is not None or attempt else "started"
        self.board.say(f"trial {number} {begun}: {parameters(frozen.user_attrs[VALUES])}")
        self.slots.launch(number, attempt, self._overrides(number, attempt, frozen.user_attrs[VALUES]))

    def _drawn(self, number: int) -> FrozenTrial:
        """Return a trial with all its values: those of one that was broken off while it was drawn are drawn again."""
        trial_id = self.storage.get_trial_id_from_study_id_trial_number(self.study._study_id, number)
        frozen = self.storage.get_trial(trial_id)
        if VALUES not in frozen.user_attrs:
            trial = Trial(self.study, trial_id)
            values = self.space.draw(trial._suggest, partial(preflight.composed_value, self.base))
            trial.set_user_attr(VALUES, values)
            frozen = self.storage.get_trial(trial_id)
        return frozen

    def _overrides(self, number: int, attempt: int, values: dict[str, Any]) -> list[str]:
        overrides = [*self.space.fixed, *overrides_of(values)]
        if self.hands_trial:
            handed = f'{{storage:"{_quoted(self.url)}",study:"{_quoted(self.name)}",number:{number},attempt:{attempt}}}'
            overrides += [f"trial={handed}", *(["resume=auto"] if "resume" in self.config else [])]
        return overrides

    def _wait(self) -> None:
        """Sleep until a launch returns, an outcome appears, or a while has passed."""
        seconds = POLL_S.get(self.url.partition("://")[0], POLL_REMOTE_S)
        with contextlib.suppress(queue.Empty):
            ended = self.slots.ended.get(timeout=seconds)
            self.slots.ended.put(ended)

    def _collect(self) -> None:
        """Close every trial whose outcome is there, and deal with launches that ended without one."""
        launches = []
        with contextlib.suppress(queue.Empty):
            while True:
                launches.append(self.slots.ended.get_nowait())
        # A launch that has returned wrote its outcome before: reading now misses none.
        for frozen in self._trials():
            if frozen.number in self.running and self._is_current(frozen):
                self._close(frozen)
        for ended in launches:
            running = self.running.get(ended.number)
            if running is not None and running.attempt == ended.attempt:
                self._ended_without_outcome(ended)

    @staticmethod
    def _is_current(frozen: FrozenTrial) -> bool:
        return frozen.user_attrs.get(OUTCOME, {}).get("attempt", -1) >= frozen.user_attrs.get(ATTEMPT, 0)

    def _close(self, frozen: FrozenTrial) -> None:
        """Tell the study what became of a trial, or start it again if it failed and may."""
        outcome, number = frozen.user_attrs[OUTCOME], frozen.number
        self.running.pop(number, None)
        self.slots.freed(number)
        self.idle.changed(len(self.running), self._remaining(), outcome.get("ended_s"))
        if outcome["state"] == COMPLETE:
            self._tell(number, state=TrialState.COMPLETE, values=outcome["value"])
        elif outcome["state"] == PRUNED:
            self._tell(number, state=TrialState.PRUNED)
        else:
            self._failed(frozen, outcome)
            return
        examples = f" after {outcome['examples']:,} examples" if outcome.get("examples") else ""
        word = "finished" if outcome["state"] == COMPLETE else "pruned"
        value = f"{outcome['value']:.6g}" if outcome["value"] is not None else "no value"
        self.board.say(f"trial {number} {word}: {value}{examples}, {outcome['wall_s']:.0f} s; best {self._best()}")
        self._show_progress()

    def _failed(self, frozen: FrozenTrial, outcome: dict[str, Any]) -> None:
        number, attempt = frozen.number, outcome["attempt"]
        retries = self.settings["retries"]
        again = attempt < retries
        self.board.say(
            f"trial {number} failed: {parameters(frozen.user_attrs.get(VALUES, {}))}: {outcome['error']} "
            f"({outcome['log'] or 'no log'})" + (f"; trying again, {attempt + 1} of {retries}" if again else ""),
            style="red",
        )
        if again:
            self.storage.set_trial_user_attr(frozen._trial_id, ATTEMPT, attempt + 1)
            self.waiting.insert(0, number)
            return
        self._tell(number, state=TrialState.FAIL)
        self._show_progress()
        if self.settings["on_failure"] == "stop":
            raise UserError(f"trial {number} failed, and hydra.sweeper.on_failure is stop: {outcome['error']}")
        self._stop_if_all_fail_alike()

    def _stop_if_all_fail_alike(self) -> None:
        limit = self.settings["stop_after_same_failures"]
        ended = [trial for trial in self._trials() if trial.state in FINISHED]
        errors = [trial.user_attrs.get(OUTCOME, {}).get("error") for trial in ended if trial.state == TrialState.FAIL]
        if limit and len(ended) == len(errors) >= limit and len(set(errors)) == 1:
            raise UserError(
                f"the first {len(errors)} trials all failed with: {errors[0]}; correct it, and begin in another "
                "hydra.sweep.dir; hydra.sweeper.stop_after_same_failures=0 would go on all the same"
            )

    def _ended_without_outcome(self, ended: Ended) -> None:
        running = self.running.pop(ended.number)
        self.slots.freed(ended.number)
        self.idle.changed(len(self.running), self._remaining())
        frozen = self.storage.get_trial(running.frozen._trial_id)
        if not self.hands_trial:
            self._close(self._with_outcome(frozen, ended))
        elif ended.value in STOPPED:
            self.waiting.insert(0, ended.number)
            if not self.slots.is_threaded:
                self.stopping = signal.SIGINT if ended.value == 130 else signal.SIGTERM
        elif ended.never_began:
            raise UserError(
                f"{self.slots.target.rpartition('.')[2]} cannot run what this search hands it, a single job with "
                f"hydra.sweep.subdir={ended.number}: {_reason(ended)}; choose another hydra/launcher"
            )
        elif self._may_be_lost_again(frozen, running):
            self.waiting.insert(0, ended.number)
            self.board.say(f"trial {ended.number}: its job is gone ({_reason(ended)}); it goes on from its checkpoint")
        else:
            self._close(self._with_outcome(frozen, ended))

    def _may_be_lost_again(self, frozen: FrozenTrial, running: Running) -> bool:
        got_further = (frozen.last_step or 0) > running.examples_at_launch
        self.lost[frozen.number] = 0 if got_further else self.lost[frozen.number] + 1
        return self.lost[frozen.number] < LOST_MAX

    def _with_outcome(self, frozen: FrozenTrial, ended: Ended) -> FrozenTrial:
        """Write the outcome of a job that could not: one of another program, or one that died."""
        value, error = None, "" if ended.failure is None else last_line(ended.failure)
        if not self.hands_trial and ended.failure is None:
            try:
                value = float(ended.value)
            except (TypeError, ValueError):
                error = f"the job returned {ended.value!r}, but must return a number"
        elif not error:
            error = f"the job ended without a word, {LOST_MAX} times without getting any further"
        outcome = {
            "state": "failed" if error else COMPLETE, "attempt": ended.attempt, "value": value, "examples": None,
            "wall_s": (time.time() - frozen.datetime_start.timestamp()) if frozen.datetime_start else 0.0,
            "ended_s": time.time(), "folder": str(self.folder / str(frozen.number)), "error": error, "log": None,
        }  # fmt: skip
        self.storage.set_trial_user_attr(frozen._trial_id, OUTCOME, outcome)
        return self.storage.get_trial(frozen._trial_id)

    def _tell(self, number: int, **what: Any) -> None:
        self.study.tell(number, skip_if_finished=True, **what)

    def _trials(self) -> list[FrozenTrial]:
        return self.study.get_trials(deepcopy=False)

    def _best(self) -> str:
        try:
            best = self.study.best_trial
        except ValueError:
            return "none yet"
        return f"{best.value:.6g} (trial {best.number})"

    def _show_progress(self) -> None:
        self.board.progress(sum(trial.state in FINISHED for trial in self._trials()), self._best())

    # ---- the end

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """Have SIGTERM, SIGUSR1 and Ctrl-C end the search in order, where its jobs run in processes of their own."""
        if not self.slots.is_threaded:
            yield
            return
        before = {
            number: signal.signal(number, self._asked_to_stop)
            for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)
        }
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _asked_to_stop(self, number: int, frame: Any) -> None:
        if self.stopping is not None:
            raise KeyboardInterrupt
        self.stopping = number

    def _end_jobs(self) -> None:
        """Have local jobs save their state and end; those on other machines go on, and are found again."""
        if not (self.slots.is_local and self.running):
            return
        self.board.say(f"{len(self.running)} trials save their state and end")
        terminate_jobs()
        deadline_s = time.monotonic() + STOP_WAIT_S
        while self.running and time.monotonic() < deadline_s:
            with contextlib.suppress(queue.Empty):
                self.running.pop(self.slots.ended.get(timeout=1.0).number, None)

    def summarize(self) -> None:
        """Write the table, the best configuration and the figures."""
        from nlu.sweeps.summary import write_summary

        write_summary(self.study, self.folder)


def terminate_jobs() -> None:
    """Send SIGTERM to the processes that submitit's local launcher started from here, which pass it on."""
    children = Path(f"/proc/{os.getpid()}/task")
    for listing in children.glob("*/children"):
        for child in listing.read_text().split():
            with contextlib.suppress(OSError):
                if b"submitit" in Path(f"/proc/{child}/cmdline").read_bytes():
                    os.kill(int(child), signal.SIGTERM)


def _reason(ended: Ended) -> str:
    return last_line(ended.failure) if ended.failure is not None else f"it returned {ended.value!r}"


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')
