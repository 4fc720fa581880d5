"""Searches that pause trials: the loop of a search with jobs in this process, killed at any write and continued."""

import math
import threading
import time
from types import SimpleNamespace

import optuna
import pytest
from hydra.core.utils import JobReturn, JobStatus
from hydra_plugins.hyperband_sweeper._impl import Search
from hydra_plugins.hyperband_sweeper._slots import BASIC, LOCAL, Ended, Gpus, Need
from optuna.distributions import CategoricalDistribution, FloatDistribution
from optuna.samplers import RandomSampler

from nlu.sweeps import channel, steps
from nlu.sweeps.patience import PatientStorage
from nlu.sweeps.sampling import SeededByTrial
from nlu.sweeps.space import Branch, Space
from nlu.sweeps.storage import open_storage, storage_url

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

    def __init__(self, folder, pruner="asha", n_trials=9, count=1, max_examples=None, fails=(), until_plateau=None):
        self.folder, self.n_trials, self.count, self.fails = folder, n_trials, count, fails
        self.until_plateau = until_plateau
        self.spec = {"name": pruner, "min_resource": STEP_EXAMPLES, "max_resource": LENGTH * STEP_EXAMPLES,
                     "reduction_factor": 3, "max_examples": max_examples, "parts": 1}  # fmt: skip
        self.saved, self.trained, self.at_once = {}, [], 0

    def search(self) -> None:
        """Start the search, or continue it, as a new process would."""
        url = storage_url(None, self.folder)
        storage = open_storage(url)
        sampler = SeededByTrial(lambda seed: RandomSampler(seed=seed), 0)
        study = optuna.create_study(
            study_name="s", storage=storage, direction="maximize", load_if_exists=True, sampler=sampler
        )
        study_id = storage.get_study_id_from_name("s")
        settings = {"stop_after_same_failures": 0, "retries": 0, "on_failure": "continue", "keep": "all",
                    "max_hours": None, "until_plateau": self.until_plateau}  # fmt: skip
        plan = SimpleNamespace(
            spec=self.spec, space=SPACE, composed_value=None, centers={}, first=[], seed=0, storage=storage,
            study=study, study_id=study_id, url=url,
            name="s", folder=self.folder, direction="maximize", n_trials=self.n_trials, n_jobs=self.count, warnings=[],
            slots=Jobs(self, url), settings=settings, is_run=False, saves=False, hands_trial=True, mirror=None,
            sampler_name="random", need=lambda values: Need(gpus=0), overrides=lambda *launch: launch,
            trial_id=lambda number: storage.get_trial_id_from_study_id_trial_number(study_id, number),
        )  # fmt: skip
        Search(plan, SimpleNamespace(require=lambda: None)).run()

    def trials(self):
        return optuna.load_study(study_name="s", storage=open_storage(storage_url(None, self.folder))).get_trials()

    def outcome(self):
        """All that a search decides: parameters, states, reports and steps of its trials."""
        return [
            (trial.number, trial.state.name, trial.params, trial.intermediate_values, steps.steps_of(trial))
            for trial in self.trials()
        ]

    def job(self, url, number, attempt, launch, values) -> int:
        trial = channel.TrialChannel(url, "s", number, attempt, launch)
        if trial.is_over:
            return 0
        trial.claim()
        step = self.saved.get(number, 0)
        if step and trial.pauses(step * STEP_EXAMPLES):
            return 75
        while step < LENGTH:
            step += 1
            if number in self.fails and step == 2:
                trial.finish(channel.FAILED, self.folder, error="out of memory")
                return 1
            trial.report(step * STEP_EXAMPLES, value_of(values, step))
            is_paused = step < LENGTH and trial.pauses(step * STEP_EXAMPLES)
            self.trained.append((number, step))
            # A run saves after its report was answered.
            self.saved[number] = step
            if is_paused:
                return 75
        trial.finish(channel.COMPLETE, self.folder, value=value_of(values, LENGTH), examples=LENGTH * STEP_EXAMPLES)
        return 0


class Jobs:
    """Slots whose jobs are functions: in this thread, or, with several slots, each in another thread."""

    is_local = False

    def __init__(self, world, url):
        self.world, self.url, self.count, self.gpus, self.ended = world, url, world.count, Gpus([]), []
        self.is_threaded = self.count > 1
        self.target = LOCAL if self.is_threaded else BASIC
        self.alive = 0

    def sentence(self, wanted):
        return None

    def launch(self, number, launch, arguments, need):
        def run() -> None:
            self.alive += 1
            self.world.at_once = max(self.world.at_once, self.alive)
            status = self.world.job(self.url, *arguments)
            self.alive -= 1
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
    monkeypatch.delenv(channel.CLAIM_VARIABLE, raising=False)

    def kill(write: float) -> int:
        counts["left"], counts["all"] = write, 0
        return counts["all"]

    kill.count = lambda: counts["all"]
    return kill


def unbroken(tmp_path, **options):
    world = World(tmp_path / "unbroken", **options)
    world.folder.mkdir()
    world.search()
    return world


@pytest.mark.parametrize(("pruner", "stride"), [("asha", 7), ("freeze_thaw", 23)])
def test_a_search_that_is_killed_at_any_write_decides_alike(tmp_path, killed_at, pruner, stride):
    options = {"pruner": pruner, "n_trials": 12, "max_examples": None if pruner == "asha" else 4000}
    killed_at(math.inf)
    whole = unbroken(tmp_path, **options)
    writes = killed_at.count()
    assert any(state == "COMPLETE" for _, state, *_ in whole.outcome())
    for write in range(1, writes, stride):
        world = World(tmp_path / f"killed-{write}", **options)
        world.folder.mkdir()
        killed_at(write)
        with pytest.raises(Killed):
            world.search()
        channel.answer_here.clear()
        killed_at(math.inf)
        world.search()
        assert world.outcome() == whole.outcome(), f"killed at write {write}"


def test_a_paused_trial_trains_no_step_twice(tmp_path):
    world = unbroken(tmp_path)
    assert len(world.trained) == len(set(world.trained))
    assert {number for number, step in world.trained if step == 1} == set(range(9))


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
    monkeypatch.delenv(channel.CLAIM_VARIABLE, raising=False)
    world = unbroken(tmp_path, pruner=pruner, n_trials=12, count=3, max_examples=4000)
    assert len(world.trained) == len(set(world.trained))
    assert world.at_once > 1
    spent = STEP_EXAMPLES * len(world.trained)
    assert spent <= 4000 + LENGTH * STEP_EXAMPLES
    best = max(world.trials(), key=lambda trial: max(trial.intermediate_values.values()))
    assert best.state.name == "COMPLETE"


@pytest.mark.parametrize("pruner", ["asha", "freeze_thaw"])
def test_on_a_plateau_no_trial_begins_and_the_best_one_ends(tmp_path, pruner):
    world = unbroken(tmp_path, pruner=pruner, n_trials=40, max_examples=20 * LENGTH * STEP_EXAMPLES, until_plateau=2)
    found = world.trials()
    complete = [trial for trial in found if trial.state.name == "COMPLETE"]
    assert len(found) < 40 and len(complete) >= 1
    best = max(value for trial in found for value in trial.intermediate_values.values())
    assert max(trial.value for trial in complete) == best
    cost = sum(trial.last_step for trial in found)
    assert cost < 20 * LENGTH * STEP_EXAMPLES


def test_a_failed_trial_is_not_continued_and_the_search_ends(tmp_path):
    world = unbroken(tmp_path, pruner="freeze_thaw", max_examples=4000, fails=(0, 3))
    names = [trial.state.name for trial in world.trials()]
    assert names[0] == names[3] == "FAIL" or (3, 2) not in world.trained
    assert "COMPLETE" in names
    assert (0, 2) not in world.trained


def test_a_conditional_parameter_is_drawn_only_under_its_condition(tmp_path):
    world = unbroken(tmp_path, pruner="freeze_thaw", n_trials=20, max_examples=3000)
    kinds = {trial.params["model"] for trial in world.trials()}
    assert kinds == {"cnn", "bert"}
    for trial in world.trials():
        assert ("dropout" in trial.params) == (trial.params["model"] == "bert")
