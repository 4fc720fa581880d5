"""Searches that pause trials: the loop of a search with jobs in this process, killed at any write and continued."""

import math
import threading
import time
from types import SimpleNamespace

import optuna
import pytest
from hydra.core.utils import JobReturn, JobStatus
from optuna.distributions import CategoricalDistribution, FloatDistribution
from optuna.samplers import RandomSampler, TPESampler

from nlu.config.errors import UserError
from nlu.search import channel, trial_steps
from nlu.search.deciding import Steps
from nlu.search.faults import last_line
from nlu.search.goals import Goals
from nlu.search.loop import Search
from nlu.search.sampling import SeededByTrial
from nlu.search.slots import BASIC, LOCAL, Ended, Gpus, Need
from nlu.search.space import Branch, Space
from nlu.search.storage.open_study import open_storage, storage_url
from nlu.search.storage.patience import PatientStorage
from tests.few import first

LENGTH, STEP_EXAMPLES = 9, 100
SPACE = Space(
    {"lr": FloatDistribution(1e-5, 1e-1, log=True), "model": CategoricalDistribution(["cnn", "bert"])},
    [Branch("model", "bert", {"dropout": FloatDistribution(0.0, 0.5)})],
)
WRITES = ("create_new_trial", "set_trial_user_attr", "set_trial_system_attr", "set_trial_intermediate_value",
          "set_trial_state_values", "set_trial_param")  # fmt: skip


class Killed(BaseException):
    """The process is gone."""


def value_of(values, step: int) -> float:
    """A curve that rises to a height that depends on the parameters."""
    height = 1 - 0.1 * (math.log10(values["lr"]) + 3) ** 2 + 0.2 * values.get("dropout", 0.0)
    return height * (1 - 0.8 * math.exp(-step / (2 + 10 * values.get("dropout", 0.0))))


class World:
    """What outlives a process: the journal, the checkpoints of the jobs, and the steps that they trained."""

    def __init__(
        self, folder, pruner="asha", n_trials=9, count=1, max_examples=None, fails=(),
        sampler=RandomSampler, save_s=0.0, space=SPACE, keep="all",
    ):  # fmt: skip
        self.keep = keep
        self.folder, self.n_trials, self.count, self.fails = folder, n_trials, count, fails
        self.sampler, self.save_s, self.space = sampler, save_s, space
        self.spec = {"name": pruner, "min_resource": STEP_EXAMPLES, "interval": STEP_EXAMPLES, "parts": 1,
                     "max_resource": LENGTH * STEP_EXAMPLES, "reduction_factor": 3,
                     "max_examples": max_examples}  # fmt: skip
        self.saved, self.trained, self.at_once = {}, [], 0
        self.alive, self.doubled, self.best = set(), [], -math.inf

    def search(self) -> None:
        """Start the search, or continue it, as a new process would."""
        url = storage_url(None, self.folder)
        storage = open_storage(url)
        sampler = SeededByTrial(lambda seed: self.sampler(seed=seed), 0)
        study = optuna.create_study(
            study_name="s", storage=storage, direction="maximize", load_if_exists=True, sampler=sampler
        )
        study_id = storage.get_study_id_from_name("s")
        settings = {"stop_after_same_failures": 0, "retries": 0, "on_failure": "continue", "keep": self.keep}
        plan = SimpleNamespace(
            spec=self.spec, space=self.space, composed_value=None, seed=0,
            storage=storage, study=study, study_id=study_id, url=url,
            name="s", folder=self.folder, direction="maximize", n_trials=self.n_trials, n_jobs=self.count, warning=None,
            slots=Jobs(self, url), settings=settings, is_run=False, saves=False, mirror=None,
            sampler_name="random", drawn_by="random", is_grid=False, goals=Goals(), need=lambda values: Need(gpus=0),
            overrides=lambda *launch: launch,
            trial_id=lambda number: storage.get_trial_id_from_study_id_trial_number(study_id, number),
        )  # fmt: skip
        Search(plan).run()

    def trials(self):
        return optuna.load_study(study_name="s", storage=open_storage(storage_url(None, self.folder))).get_trials()

    def outcome(self):
        """All that a search decides: parameters, states, reports, steps and pauses of its trials."""
        return [
            (trial.number, trial.state.name, trial.params, trial.intermediate_values, trial_steps.steps_of(trial),
             trial_steps.pauses_of(trial))
            for trial in self.trials()
        ]  # fmt: skip

    def job(self, url, number, attempt, launch, values) -> int:
        trial = channel.TrialChannel(url, "s", number, attempt, launch)
        try:
            return self.climb(trial, number, values)
        except Exception as error:
            # As `run_trial` does.
            trial.finish(channel.FAILED, error=last_line(error))
            return 1

    def climb(self, trial, number, values) -> int:
        if trial.is_over:
            return 0
        trial.begin()
        step = self.saved.get(number, 0)
        if 0 < step < LENGTH and trial.pauses(step * STEP_EXAMPLES):
            return 75
        while step < LENGTH:
            step += 1
            if number in self.fails and step == 2:
                trial.finish(channel.FAILED, error="out of memory")
                return 1
            trial.report(step * STEP_EXAMPLES, value_of(values, step))
            is_paused = step < LENGTH and trial.pauses(step * STEP_EXAMPLES)
            self.trained.append((number, step))
            # A run saves after its report was answered.
            self.best = max(self.best, value_of(values, step))
            if is_paused and value_of(values, step) == self.best:
                time.sleep(self.save_s)
            self.saved[number] = step
            if is_paused:
                return 75
        trial.finish(channel.COMPLETE, value=value_of(values, step), examples=step * STEP_EXAMPLES)
        return 0


class Jobs:
    """Slots whose jobs are functions: in this thread, or, with several slots, each in another thread."""

    is_local = False

    def __init__(self, world, url):
        self.world, self.url, self.count, self.gpus, self.ended = world, url, world.count, Gpus([]), []
        self.is_threaded = self.count > 1
        self.target = LOCAL if self.is_threaded else BASIC

    def sentence(self, wanted):
        return None

    def open_jobs(self, say):
        return {}

    def launch(self, number, launch, arguments, need):
        def run() -> None:
            if number in self.world.alive:
                self.world.doubled.append(number)
            self.world.alive.add(number)
            self.world.at_once = max(self.world.at_once, len(self.world.alive))
            try:
                status = self.world.job(self.url, *arguments)
            finally:
                self.world.alive.discard(number)
            result = JobReturn(status=JobStatus.COMPLETED)
            result.return_value = status
            self.ended.append(Ended(number, launch, result, None))

        if self.is_threaded:
            threading.Thread(target=run, daemon=True).start()
        else:
            run()

    def next_ended(self, wait_s=0.0):
        return self.ended.pop(0) if self.ended else None

    def wait(self, wait_s):
        if self.is_threaded:
            time.sleep(0.002)

    def freed(self, number):
        self.gpus.give_back(number)


@pytest.fixture
def killed_at(monkeypatch):
    """A function that makes the process end at a write to the storage, counted from 1."""
    counts = {"left": math.inf, "all": 0}

    def patch(name):
        write = getattr(PatientStorage, name)

        def counted(self, *arguments, **named):
            counts["all"] += 1
            counts["left"] -= 1
            if counts["left"] == 0:
                raise Killed
            return write(self, *arguments, **named)

        monkeypatch.setattr(PatientStorage, name, counted)

    for name in WRITES:
        patch(name)

    def kill(write: float) -> int:
        counts["left"], counts["all"] = write, 0
        return counts["all"]

    kill.count = lambda: counts["all"]
    return kill


def unbroken(tmp_path, **options):
    world = World(tmp_path / "unbroken", **options)
    world.folder.mkdir(parents=True)
    world.search()
    return world


def continued(folder, killed_at, write: int, options) -> World:
    """Kill a search at a write, and continue it."""
    world = World(folder, **options)
    folder.mkdir()
    killed_at(write)
    with pytest.raises(Killed):
        world.search()
    channel.answer_here.clear()
    assert any(not trial.state.is_finished() for trial in world.trials()) or len(world.trials()) < world.n_trials
    killed_at(math.inf)
    world.search()
    return world


def tpe(seed):
    """TPE that learns from the fourth trial on."""
    return TPESampler(n_startup_trials=3, seed=seed)


def without_signal(values, step: int) -> float:
    """All trials are equally good, but for noise."""
    return 0.5 + 0.01 * math.sin(1e5 * math.log(values["lr"]) + 7 * step)


@pytest.mark.parametrize(
    ("pruner", "stride", "sampler", "curve"),
    first(2, [
        ("asha", 31, tpe, value_of), ("freeze_thaw", 61, RandomSampler, without_signal),
        ("asha", 11, RandomSampler, value_of), ("freeze_thaw", 23, RandomSampler, value_of),
    ]),
)  # fmt: skip
def test_a_search_that_is_killed_at_any_write_decides_alike(
    tmp_path, monkeypatch, killed_at, pruner, stride, sampler, curve
):
    monkeypatch.setattr(f"{__name__}.value_of", curve)
    max_examples = None if pruner == "asha" else 4000
    options = {"pruner": pruner, "n_trials": 12, "max_examples": max_examples, "sampler": sampler}
    killed_at(math.inf)
    whole = unbroken(tmp_path, **options)
    writes = killed_at.count()
    assert any(state == "COMPLETE" for _, state, *_ in whole.outcome())
    for write in range(1, writes, stride):
        world = continued(tmp_path / f"killed-{write}", killed_at, write, options)
        assert world.outcome() == whole.outcome(), f"killed at write {write}"


def test_paused_trials_are_closed_however_the_end_of_a_search_is_killed(tmp_path, killed_at):
    options = {"n_trials": 4, "keep": "best"}
    killed_at(math.inf)
    whole = unbroken(tmp_path, **options)
    writes = killed_at.count()
    closed = [number for number, state, *_ in whole.outcome() if state == "PRUNED"]
    assert [state for _, state, *_ in whole.outcome() if state != "PRUNED"] == ["COMPLETE"] and len(closed) == 3
    # An outcome, and the state twice, for each of them.
    for write in range(writes - 3 * len(closed) + 1, writes + 1):
        world = continued(tmp_path / f"killed-{write}", killed_at, write, options)
        assert world.outcome() == whole.outcome(), f"killed at write {write}"


FEW = Space(
    {"lr": CategoricalDistribution([1e-3, 1e-2]), "model": CategoricalDistribution(["cnn", "bert"])},
    [Branch("model", "bert", {"dropout": FloatDistribution(0.0, 0.5, step=0.25)})],
)
"""two configurations with a cnn, six with bert"""


@pytest.mark.parametrize("pruner", ["none", "asha", "freeze_thaw"])
def test_a_search_over_few_configurations_tries_each_once_however_it_is_killed(tmp_path, killed_at, pruner):
    options = {"pruner": pruner, "n_trials": 12, "sampler": tpe, "space": FEW}
    killed_at(math.inf)
    whole = unbroken(tmp_path, **options)
    drawn = [(values["lr"], values["model"], values.get("dropout")) for _, _, values, *_ in whole.outcome()]
    assert sorted(drawn, key=str) == sorted(
        [(lr, *rest) for lr in (1e-3, 1e-2) for rest in [("cnn", None), *(("bert", d) for d in (0.0, 0.25, 0.5))]],
        key=str,
    )
    writes = killed_at.count()
    for write in range(1, writes, 29):
        world = continued(tmp_path / f"killed-{write}", killed_at, write, options)
        assert world.outcome() == whole.outcome(), f"killed at write {write}"


def test_a_paused_trial_continues_only_once_its_job_has_saved_and_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(channel, "ANSWER_POLL_S", 0.002)
    # Only the best trial saves slowly, and a slot becomes free meanwhile.
    world = unbroken(tmp_path, n_trials=9, count=3, save_s=0.3)
    assert world.at_once > 1 and not world.doubled
    assert len(world.trained) == len(set(world.trained))
    assert "COMPLETE" in [trial.state.name for trial in world.trials()]


def test_an_error_of_the_search_while_a_job_waits_for_it_costs_no_trial(tmp_path, monkeypatch):
    whole = unbroken(tmp_path)
    world = World(tmp_path / "lost")
    world.folder.mkdir()
    answer = Steps.answer

    def answered(own, number, busy):
        if number == 4:
            raise UserError("the storage is damaged")
        answer(own, number, busy)

    with monkeypatch.context() as patched, pytest.raises(UserError, match="the storage is damaged"):
        patched.setattr(Steps, "answer", answered)
        world.search()
    assert [trial.state.name for trial in world.trials()] == ["WAITING"] * 4 + ["RUNNING"]
    world.search()
    assert world.outcome() == whole.outcome()


def test_a_trial_that_fails_as_it_is_paused_is_closed_though_its_search_was_killed(tmp_path):
    world = unbroken(tmp_path)
    number = next(trial.number for trial in world.trials() if trial.state.name == "WAITING")
    url = storage_url(None, world.folder)
    channel.TrialChannel(url, "s", number).finish(channel.FAILED, error="it could not save")
    world.search()
    assert world.trials()[number].state.name == "FAIL"


def test_asha_continues_the_best_third_of_a_rung_and_the_best_trial_to_its_end(tmp_path):
    world = unbroken(tmp_path)
    reached = {number: max(step for own, step in world.trained if own == number) for number in range(9)}
    first = {trial.number: trial.intermediate_values[100] for trial in world.trials()}
    ranked = sorted(first, key=first.get, reverse=True)
    # 9 trials: 3 of them pass the rung after 1 step, 1 that after 3 steps; the next rung after 3 is the end.
    assert sorted(reached.values(), reverse=True)[:3] == [9, 3, 3]
    assert {number for number in reached if reached[number] > 1} == set(ranked[:3])
    assert [trial.state.name for trial in world.trials()].count("COMPLETE") == 1


@pytest.mark.parametrize("pruner", ["asha", "freeze_thaw"])
def test_several_trials_at_a_time_keep_to_the_budget_and_never_share_a_step(tmp_path, monkeypatch, pruner):
    monkeypatch.setattr(channel, "ANSWER_POLL_S", 0.002)
    world = unbroken(tmp_path, pruner=pruner, n_trials=12, count=3, max_examples=4000)
    assert len(world.trained) == len(set(world.trained))
    assert world.at_once > 1
    spent = STEP_EXAMPLES * len(world.trained)
    assert spent <= 4000 + LENGTH * STEP_EXAMPLES
    best = max(world.trials(), key=lambda trial: max(trial.intermediate_values.values()))
    assert best.state.name == "COMPLETE"


@pytest.mark.parametrize("pruner", ["asha", "freeze_thaw"])
def test_a_paused_trial_is_waiting_in_the_storage_and_runs_again_with_its_next_step(tmp_path, monkeypatch, pruner):
    seen, decide = [], Steps._decision

    def decided(*arguments, **named):
        # Only a trial that has a job, or should have one, may be running.
        running = [trial for trial in world.trials() if trial.state.name == "RUNNING"]
        seen.append(len(running))
        assert len(running) <= 1 and not any(map(trial_steps.is_paused, running))
        return decide(*arguments, **named)

    monkeypatch.setattr(Steps, "_decision", decided)
    world = World(tmp_path / "s", pruner=pruner, n_trials=12, max_examples=4000)
    world.folder.mkdir()
    world.search()
    states = [trial.state.name for trial in world.trials()]
    assert max(seen) == 1 and set(states) == {"COMPLETE", "WAITING"} and states.count("WAITING") >= 7
    # A larger n_trials continues it.
    world.n_trials, world.spec["max_examples"] = 20, 12_000
    world.search()
    assert len(world.trials()) > 12 and {state for _, state, *_ in world.outcome()} == {"COMPLETE", "WAITING"}


def test_a_study_of_the_version_before_whose_paused_trials_are_running_continues(tmp_path, monkeypatch):
    whole, world = (World(tmp_path / name) for name in ("whole", "before"))
    for each in (whole, world):
        each.folder.mkdir()
    whole.search()
    with monkeypatch.context() as patched:
        # It wrote no state for a pause.
        patched.setattr(trial_steps, "follow", lambda *_: None)
        world.search()
    assert [trial.state.name for trial in world.trials()] == ["RUNNING"] * 8 + ["COMPLETE"]
    for each in (whole, world):
        each.n_trials = 12
        each.search()
    assert world.outcome() == whole.outcome()
    assert {trial.state.name for trial in world.trials()} == {"WAITING", "COMPLETE"}


def test_a_failed_trial_is_not_continued_and_the_search_ends(tmp_path):
    world = unbroken(tmp_path, pruner="freeze_thaw", max_examples=4000, fails=(0, 3))
    names = [trial.state.name for trial in world.trials()]
    assert names[0] == names[3] == "FAIL" or (3, 2) not in world.trained
    assert "COMPLETE" in names
    assert (0, 2) not in world.trained
