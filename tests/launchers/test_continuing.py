"""The same command continues a search that was killed: no number twice, nothing lost, the same values drawn."""

import os
import re
import signal
import time
from pathlib import Path

import pytest

from nlu.jobs.submissions import Submissions
from tests.launchers.searches import ENVIRONMENT, LOCAL, runs, search, start, states, study, trials

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
    "launcher", [pytest.param((), id="here"), pytest.param(LOCAL, id="local", marks=pytest.mark.thorough)]
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


def test_a_search_started_again_follows_the_jobs_that_run_and_starts_no_second_ones(tmp_path):
    folder = tmp_path / "s"
    process = start(folder, *ARGUMENTS, *LOCAL)
    wait_until(lambda: steps_saved(folder) >= 2)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    under_way = [number for number in range(5) if (folder / str(number) / "runs.txt").exists()]
    said = search(folder, *ARGUMENTS, *LOCAL)
    assert states(folder) == ["COMPLETE"] * 5
    assert sorted(one.job.number for one in Submissions(folder).read()) == [0, 1, 2, 3, 4]
    assert all(runs(folder, number) == [0] for number in under_way), said


def test_a_search_started_again_knows_the_gpus_of_jobs_that_run_and_ends_those_jobs(tmp_path, monkeypatch):
    monkeypatch.setitem(ENVIRONMENT, "CUDA_VISIBLE_DEVICES", "4,7")
    # The first trial ends at once, and no other one does.
    folder = tmp_path / "s"
    arguments = ("step_s=tag('prior=0',interval(0,1e6))", "hydra.sweeper.n_trials=3", *LOCAL)

    def jobs(number: int) -> list[list[str]]:
        """The process, the first step and the GPU of each job of a trial so far."""
        path = folder / str(number) / "runs.txt"
        return [line.split()[:3] for line in path.read_text().splitlines()] if path.exists() else []

    process = start(folder, *arguments)
    wait_until(lambda: jobs(1) and jobs(2))
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert [jobs(number)[0][2] for number in range(3)] == ["4", "7", "4"]
    process = start(folder, *arguments)
    os.kill(int(jobs(2)[0][0]), signal.SIGKILL)
    wait_until(lambda: len(jobs(2)) == 2)
    process.send_signal(signal.SIGTERM)
    said, _ = process.communicate(timeout=120)
    assert [[gpu for _, _, gpu in jobs(number)] for number in range(3)] == [["4"], ["7"], ["4", "4"]], said
    assert not [pid for number in range(3) for pid, _, _ in jobs(number) if Path(f"/proc/{pid}").exists()], said


def test_a_job_that_only_another_machine_knows_is_named_with_the_way_out(tmp_path):
    folder, arguments = tmp_path / "s", ("lr=interval(0.001,1)", "hydra.sweeper.n_trials=1", "step_s=600", *LOCAL)
    process = start(folder, *arguments)
    wait_until(lambda: (folder / "0" / "runs.txt").exists())
    process.send_signal(signal.SIGKILL)
    process.communicate()
    (job,) = Submissions(folder).read()
    os.kill(int((folder / "0" / "runs.txt").read_text().split()[0]), signal.SIGKILL)
    record = folder / ".submitted" / "jobs.jsonl"
    host, *_ = job.ticket.id.split("/")
    text = record.read_text().replace(job.job.machine, "elsewhere another boot")
    record.write_text(text.replace(f'"{host}/', '"elsewhere/'))
    process = start(folder, *arguments)
    wait_until(lambda: "goes on" in (folder / "sweep.log").read_text())
    process.send_signal(signal.SIGTERM)
    said, _ = process.communicate(timeout=120)
    assert "its job goes on (local elsewhere/" in said and "is gone, run python -m nlu.jobs s --forget 0" in said
    assert said.count("--forget 0") == 2 and process.returncode == 75


@pytest.mark.thorough
def test_a_folder_that_holds_a_search_refuses_a_second_one(tmp_path):
    folder = tmp_path / "s"
    search(folder, *ARGUMENTS, "step_s=0", "hydra.sweeper.n_trials=1", "hydra.sweeper.study_name=k2")
    before = sorted(folder.rglob("*"))
    said = search(folder, *ARGUMENTS, "step_s=0", "hydra.sweeper.study_name=k3", status=1)
    assert f"{folder} holds the search k2 from journal://{folder}/journal.log, not k3 in" in said
    assert "continue it with hydra.sweeper.study_name=k2" in said and "started" not in said
    elsewhere = ("hydra.sweeper.study_name=k2", f"hydra.sweeper.storage={tmp_path}/other.log")
    said = search(folder, *ARGUMENTS, "step_s=0", *elsewhere, status=1)
    assert f"holds the search k2 from journal://{folder}/journal.log" in said and "started" not in said
    assert sorted(folder.rglob("*")) == before


def test_a_search_with_its_storage_elsewhere_continues_in_a_moved_folder_only(tmp_path, unbroken):
    stored = ("step_s=0", f"hydra.sweeper.storage={tmp_path}/elsewhere.log", "hydra.sweeper.study_name=k")
    search(tmp_path / "s", *ARGUMENTS, *stored, "hydra.sweeper.n_trials=2")
    (tmp_path / "s").rename(tmp_path / "moved")
    said = search(tmp_path / "moved", *ARGUMENTS, *stored)
    assert "continuing: 2 trials finished" in said and "trial 4 finished" in said
    said = search(tmp_path / "another", *ARGUMENTS, *stored, status=1)
    assert f"belongs to the sweep folder {tmp_path}/moved, and {tmp_path}/another does not hold it" in said


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
