"""A search is ended for good while it runs, or between two commands: `nlu.jobs FOLDER --stop`."""

import json
import time
from collections.abc import Callable
from pathlib import Path

import optuna
import pytest

from nlu.commands.jobs import main as jobs_main
from nlu.search.channel import COMPLETE, TrialChannel
from nlu.search.closing import end_search, note_kept
from nlu.search.storage.open_study import HELD, open_storage, storage_url
from nlu.search.sweep_folder import hold
from tests.launchers.searches import LOCAL, outcomes, search, start, states, trials

DRAWN = "lr=interval(0.001,1)"


def until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 200
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


def has_stepped(folder: Path, number: int) -> bool:
    return (folder / str(number) / "state.json").exists()


@pytest.mark.parametrize("where", [(), pytest.param(LOCAL, marks=pytest.mark.thorough)], ids=["here", "local"])
def test_a_search_that_is_over_closes_all_trials_and_ends_well(tmp_path, capsys, where):
    folder, own = tmp_path / "s", (DRAWN, *where, "hydra.sweeper.n_trials=9", "steps=1000", "step_s=0.2")
    process = start(folder, *own)
    try:
        until(lambda: has_stepped(folder, 0))
        assert jobs_main([str(folder), "--stop"]) == 0
        assert "is over: the command that runs it ends" in capsys.readouterr().out
        said = process.communicate(timeout=300)[0]
    finally:
        process.kill()
    assert process.returncode == 0, said
    assert set(states(folder)) == {"PRUNED"} and len(states(folder)) <= 2 and "summary/index.html" in said
    assert all((trial.last_step or 0) < 100_000 for trial in trials(folder))


def test_paused_trials_of_a_search_that_is_over_are_closed_while_none_runs(tmp_path, capsys):
    folder = tmp_path / "s"
    own = (DRAWN, "hydra.sweeper.pruner=asha", "hydra.sweeper.min_resource=100ex", "hydra.sweeper.max_resource=400ex")
    search(folder, *own, "hydra.sweeper.n_trials=4")
    before = trials(folder)
    paused = [trial.number for trial in before if not trial.state.is_finished()]
    assert len(paused) == 3
    for said in (f"trials {paused[0]}, {paused[1]} and {paused[2]} closed as pruned", "is over; python -m nlu.report"):
        assert jobs_main([str(folder), "--stop"]) == 0
        assert said in capsys.readouterr().out
    assert "is over: python -m nlu.jobs" in search(folder, *own, "hydra.sweeper.n_trials=9", status=1)
    for trial, now in zip(before, trials(folder), strict=True):
        assert now.state.name == ("PRUNED" if trial.number in paused else "COMPLETE")
        assert outcomes(folder)[trial.number]["value"] == max(now.intermediate_values.values())
    said = search(folder, *own, "hydra.sweeper.n_trials=9", status=1)
    assert f"is over: python -m nlu.jobs {folder} --stop has ended it" in said


def test_the_end_of_a_search_takes_outcomes_as_they_are_and_keeps_the_best(tmp_path):
    url = storage_url(None, tmp_path)
    study = optuna.create_study(study_name="s", storage=open_storage(url), direction="maximize")
    for number in range(2):
        trial = study.ask()
        trial.report(0.9, 100)
        trial.report(0.5, 200)
        (tmp_path / str(number) / "checkpoints" / "best-1").mkdir(parents=True)
    (tmp_path / HELD).write_text(json.dumps({"study": "s", "storage": url, "id": "id"}))
    note_kept(study, "best", None)
    # Its job ended well after the search was killed; the other one has only begun.
    TrialChannel(url, "s", 0).finish(COMPLETE, value=0.75)
    assert "over: trial 1 closed as pruned; " in end_search(tmp_path, pytest.fail)
    assert [(trial.state.name, trial.value) for trial in trials_of(study)] == [("COMPLETE", 0.75), ("PRUNED", 0.9)]
    assert [(tmp_path / str(number) / "checkpoints").exists() for number in range(2)] == [True, False]


def test_a_search_that_runs_closes_its_own_trials_and_jobs_end_at_a_report(tmp_path):
    url = storage_url(None, tmp_path)
    study = optuna.create_study(study_name="s", storage=open_storage(url), direction="maximize")
    study.ask()
    (tmp_path / HELD).write_text(json.dumps({"study": "s", "storage": url, "id": "id"}))
    job = TrialChannel(url, "s", 0)
    assert not job.report(100, 0.5)
    with hold(tmp_path):
        assert "the command that runs it ends, with 1 open trial" in end_search(tmp_path, pytest.fail)
        # It may be about to write what it has drawn.
        assert [trial.state.name for trial in trials_of(study)] == ["RUNNING"]
        assert job.report(200, 0.6)


def trials_of(study: optuna.Study) -> list[optuna.trial.FrozenTrial]:
    return optuna.load_study(study_name="s", storage=study._storage).get_trials()
