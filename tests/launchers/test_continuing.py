"""The same command continues a search that was killed: no number twice, nothing lost, the same values drawn."""

import os
import re
import signal
import time

import optuna
import pytest
from hydra_plugins.hyperband_sweeper._identity import changes, without_means
from optuna.trial import create_trial

from nlu.sweeps.lease import Lease
from nlu.sweeps.steps import PART_ENDS, PART_VALUES
from nlu.sweeps.storage import open_storage, storage_url
from tests.launchers.searches import LOCAL, runs, search, start, states, study, trials

ARGUMENTS = ("lr=interval(0.001,1)", "hydra.sweeper.n_trials=5", "step_s=0.2")


def wait_until(condition, timeout_s: float = 60.0) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s, "it did not happen"
        time.sleep(0.05)


def steps_saved(folder) -> int:
    return len(list(folder.glob("*/state.json")))


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    folder = tmp_path_factory.mktemp("unbroken") / "s"
    search(folder, *ARGUMENTS, "step_s=0")
    return [trial.params["lr"] for trial in trials(folder)], study(folder).best_value


@pytest.mark.parametrize(
    "launcher", [pytest.param((), id="here"), pytest.param(LOCAL, id="submitit_local", marks=pytest.mark.thorough)]
)
def test_a_killed_search_continues_under_the_same_numbers(tmp_path, unbroken, launcher):
    folder = tmp_path / "s"
    process = start(folder, *ARGUMENTS, *launcher)
    wait_until(lambda: steps_saved(folder) >= 2)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    saved = [(folder / str(number) / "state.json").exists() for number in range(5)]
    # Jobs in separate processes survive: the continued search must not run their trials a second time.
    search(folder, *ARGUMENTS, *launcher)
    assert states(folder) == ["COMPLETE"] * 5
    drawn, best = unbroken
    assert [trial.params["lr"] for trial in trials(folder)] == drawn
    assert study(folder).best_value == best
    for number in range(5):
        steps = runs(folder, number)
        # One that had begun and saved nothing yet begins again.
        assert steps == sorted(set(steps)) or (steps == [0, 0] and not saved[number]), "a step was computed twice"
        assert steps[0] == 0


@pytest.mark.thorough
def test_a_finished_search_does_nothing_and_a_larger_one_adds_the_rest(tmp_path, unbroken):
    folder = tmp_path / "s"
    search(folder, *ARGUMENTS, "step_s=0", "hydra.sweeper.n_trials=2")
    said = search(folder, *ARGUMENTS, "step_s=0", "hydra.sweeper.n_trials=2")
    assert "started" not in said and "2 trials finished" in said
    search(folder, *ARGUMENTS, "step_s=0")
    assert [trial.params["lr"] for trial in trials(folder)] == unbroken[0]


@pytest.mark.thorough
def test_another_space_is_refused_with_the_difference(tmp_path):
    folder = tmp_path / "s"
    search(folder, "lr=interval(0.1,0.2)", "hydra.sweeper.n_trials=1")
    said = search(folder, "lr=interval(0.1,0.3)", "kind=choice(a,b)", status=1)
    assert "lr: interval(0.1, 0.2) there, interval(0.1, 0.3) here" in said
    assert "kind: not drawn there, choice(a, b) here" in said
    assert "steps: 4 there, 3 here" in search(folder, "lr=interval(0.1,0.2)", "steps=3", status=1)
    assert len(trials(folder)) == 1


@pytest.mark.thorough
def test_a_second_search_in_the_same_folder_is_refused(tmp_path):
    folder = tmp_path / "s"
    first = start(folder, *ARGUMENTS, "step_s=20", "hydra.sweeper.n_trials=1")
    wait_until((folder / "0" / "runs.txt").exists)
    assert "another search is running in it" in search(folder, *ARGUMENTS, status=1)
    assert first.poll() is None
    first.kill()
    first.communicate()


@pytest.mark.thorough
def test_a_folder_that_holds_a_search_refuses_a_second_one(tmp_path):
    folder = tmp_path / "s"
    search(folder, *ARGUMENTS, "step_s=0", "hydra.sweeper.n_trials=1", "hydra.sweeper.study_name=k2")
    before = sorted(folder.rglob("*"))
    said = search(folder, *ARGUMENTS, "step_s=0", "hydra.sweeper.study_name=k3", status=1)
    assert f"{folder} holds the search k2; continue it with hydra.sweeper.study_name=k2" in said
    assert "started" not in said
    elsewhere = ("hydra.sweeper.study_name=k2", f"hydra.sweeper.storage={tmp_path}/other.log")
    said = search(folder, *ARGUMENTS, "step_s=0", *elsewhere, status=1)
    assert f"holds the search k2 from journal://{folder}/journal.log" in said and "started" not in said
    assert sorted(folder.rglob("*")) == before


@pytest.mark.thorough
def test_a_search_continues_in_the_folder_that_it_was_moved_to(tmp_path, unbroken):
    search(tmp_path / "s", *ARGUMENTS, "step_s=0", "hydra.sweeper.n_trials=2")
    (tmp_path / "s").rename(tmp_path / "moved")
    search(tmp_path / "moved", *ARGUMENTS, "step_s=0")
    assert not (tmp_path / "s").exists()
    # Its study keeps the name of the folder in which it began.
    (tmp_path / "moved").rename(tmp_path / "s")
    assert [trial.params["lr"] for trial in trials(tmp_path / "s")] == unbroken[0]


@pytest.mark.thorough
def test_the_same_study_from_another_folder_is_refused(tmp_path):
    shared = (f"hydra.sweeper.storage={tmp_path}/journal.log", "hydra.sweeper.study_name=one")
    search(tmp_path / "a", *ARGUMENTS, "step_s=0", "hydra.sweeper.n_trials=1", *shared)
    said = search(tmp_path / "b", *ARGUMENTS, "step_s=0", *shared, status=1)
    assert f"belongs to the sweep folder {tmp_path}/a" in said


@pytest.mark.thorough
def test_a_terminated_search_ends_its_jobs_and_says_how_to_continue(tmp_path):
    folder = tmp_path / "s"
    process = start(folder, *ARGUMENTS, *LOCAL)
    wait_until(lambda: steps_saved(folder) >= 2)
    process.send_signal(signal.SIGTERM)
    said, _ = process.communicate(timeout=120)
    assert process.returncode == 75, said
    assert f"the same command with hydra.sweep.dir={folder} continues" in said
    search(folder, *ARGUMENTS, *LOCAL)
    assert states(folder) == ["COMPLETE"] * 5


@pytest.mark.thorough
def test_ctrl_c_at_a_terminal_is_for_the_search_which_ends_its_jobs(tmp_path):
    folder = tmp_path / "s"
    process = start(folder, *ARGUMENTS, *LOCAL, start_new_session=True)
    wait_until(lambda: steps_saved(folder) >= 2)
    # A terminal signals the whole group of processes.
    os.killpg(process.pid, signal.SIGINT)
    said, _ = process.communicate(timeout=120)
    assert process.returncode == 130 and "Traceback" not in said and "submitit" not in said, said
    assert re.search(r"^trials? [\d, ]+ (is|are) under way: (it saves its|they save their) state", said, re.MULTILINE)
    search(folder, *ARGUMENTS, *LOCAL)
    assert states(folder) == ["COMPLETE"] * 5


@pytest.mark.thorough
def test_another_sampler_or_pruner_is_reported_when_a_search_continues(tmp_path):
    folder = tmp_path / "s"
    search(folder, *ARGUMENTS, "step_s=0", "hydra.sweeper.n_trials=1")
    median = "hydra.sweeper.pruner={name: median, n_startup_trials: "
    said = search(
        folder, *ARGUMENTS, "step_s=0", "hydra.sweeper.n_trials=2", "hydra/sweeper/sampler=tpe", f"{median}3}}"
    )
    assert "warning: the search had another sampler: random so far, tpe from now on" in said
    assert "warning: the search had another pruner: none so far, median from now on" in said
    options = ("hydra.sweeper.n_trials=3", "hydra/sweeper/sampler=tpe")
    said = search(folder, *ARGUMENTS, "step_s=0", *options, f"{median}2}}")
    assert "pruner: median (n_startup_trials=3) so far, median (n_startup_trials=2) from now on" in said
    assert "another sampler" not in said


def test_a_sampler_that_a_former_version_stored_with_its_long_name_is_the_same():
    pruner = {"name": "none"}
    before = {"sampler": {"name": "create_nsgaii_sampler", "seed": 7}, "pruner": pruner}
    assert changes(before, {"sampler": {"name": "nsgaii", "seed": 7}, "pruner": pruner}) == []
    (found,) = changes(before, {"sampler": {"name": "nsgaiii", "seed": 7}, "pruner": pruner})
    assert found == "the search had another sampler: nsgaii so far, nsgaiii from now on"


def test_a_search_whose_folds_ended_under_a_former_version_warns_once(tmp_path):
    folder = tmp_path / "s"
    search(folder, *ARGUMENTS, "step_s=0", "hydra.sweeper.n_trials=1")
    done = study(folder).trials[0]
    noted = [{PART_ENDS: [100, 200]}, {PART_ENDS: [100, 200], PART_VALUES: {"100": 0.5, "200": None}}, {}]
    with_ends = [
        create_trial(value=0.5, params=done.params, distributions=done.distributions, user_attrs=attributes)
        for attributes in noted
    ]
    assert without_means(with_ends[1:]) == []
    for trial in with_ends:
        study(folder).add_trial(trial)
    said = " ".join(search(folder, *ARGUMENTS, "step_s=0", "hydra.sweeper.n_trials=4").split())
    assert said.count("warning: 1 trial ended folds under a former version of nlu; there the search compares") == 1


@pytest.mark.thorough
def test_a_search_killed_between_asking_and_drawing_draws_the_same(tmp_path, unbroken):
    folder = tmp_path / "s"
    search(folder, *ARGUMENTS, "step_s=0", "hydra.sweeper.n_trials=1")
    study(folder).ask()
    search(folder, *ARGUMENTS, "step_s=0")
    assert [trial.params["lr"] for trial in trials(folder)] == unbroken[0]
    assert (folder / "1").is_dir()


def test_a_study_that_was_killed_half_created_is_completed(tmp_path, unbroken):
    folder = tmp_path / "s"
    folder.mkdir()
    half = optuna.create_study(study_name="s", storage=open_storage(storage_url(None, folder)), direction="maximize")
    half.set_user_attr("space", {"lr": "interval(0.001, 1.0)"})
    search(folder, *ARGUMENTS, "step_s=0")
    assert [trial.params["lr"] for trial in trials(folder)] == unbroken[0]
    # The one attribute that says that all is there is the last to be written.
    written = list(study(folder).user_attrs)
    assert written.index("shared") < written.index("pruner") < written.index("id")


@pytest.mark.thorough
def test_a_study_that_another_host_runs_is_refused_even_from_a_folder_of_that_name(tmp_path):
    shared = (f"hydra.sweeper.storage={tmp_path}/journal.log", "hydra.sweeper.study_name=one", "step_s=0")
    search(tmp_path / "s", *ARGUMENTS, *shared, "hydra.sweeper.n_trials=1")
    storage = open_storage(storage_url(f"{tmp_path}/journal.log", tmp_path))
    with Lease(storage, "one", "its own folder", print, beat_s=0.2):
        said = search(tmp_path / "s", *ARGUMENTS, *shared, status=1)
    assert "the study one belongs to a search on" in said and "the study one is run by process" in said
    assert "started" not in said
    search(tmp_path / "s", *ARGUMENTS, *shared)
