"""hydra.sweeper.keep over real trials: who loses checkpoints as a search goes, and at its end."""

import os
import shutil
import threading
from pathlib import Path

import optuna
import pytest
from optuna.trial import TrialState, create_trial

from nlu.config.errors import UserError
from nlu.inference.locate import locate
from nlu.runs.freeing import LOCK
from nlu.search.closing import Keeper, note_kept
from nlu.storage.locks import hold_lock
from nlu.storage.objects import ObjectStore
from tests.launchers import test_runs
from tests.launchers.searches import outcomes, states, study, trials
from tests.launchers.test_runs import search
from tests.training.runs import files

# One of three passes the only rung; the others are paused there.
THREE = ("optimizer.lr=choice(1e-6,3e-2,1e-2)", "hydra.sweeper.pruner=asha")


def checkpoints(folder: Path) -> dict[int, list[str]]:
    """Return the names of the checkpoints of each trial, by its number."""
    return {
        int(trial.name): sorted(path.name for path in (trial / "checkpoints").glob("*"))
        for trial in folder.iterdir() if trial.name.isdigit()
    }  # fmt: skip


def test_a_search_that_keeps_the_best_ends_with_no_open_trial(tmp_path):
    folder, data = tmp_path / "s", files(tmp_path, 163)
    search(folder, *data, *THREE)
    open_ones = [trial.number for trial in trials(folder) if not trial.state.is_finished()]
    assert len(open_ones) == 2 and set(map(tuple, checkpoints(folder).values())) == {("best-1", "last")}
    # The next command begins no job; the end of the search is its only event.
    search(folder, *data, *THREE, "hydra.sweeper.keep=best")
    assert sorted(states(folder)) == ["COMPLETE", "PRUNED", "PRUNED"]
    for number in open_ones:
        assert outcomes(folder)[number]["value"] == max(trials(folder)[number].intermediate_values.values())
    best = study(folder).best_trial.number
    assert checkpoints(folder) == {number: ["best-1"] if number == best else [] for number in range(3)}
    assert locate(str(folder)).checkpoint == folder / str(best) / "checkpoints" / "best-1"
    with pytest.raises(UserError, match="lacks a checkpoint best; hydra.sweeper.keep=best removes"):
        locate(str(folder / str(open_ones[0])))


@pytest.mark.thorough
def test_the_mirrors_of_trials_lose_the_same_also_if_the_search_continues_elsewhere(tmp_path, s3, monkeypatch):
    folder, url = tmp_path / "s", f"{s3.bucket(monkeypatch)}/search"
    monkeypatch.setattr(test_runs, "SAME_THREADS", {**os.environ, "OMP_NUM_THREADS": "1"})
    options = (*files(tmp_path, 163), *THREE, "hydra.sweeper.keep=best", f"mirror={url}")
    search(folder, *options)
    (best,) = (number for number in range(3) if (folder / str(number) / "result.json").exists())
    for _ in range(2):
        assert checkpoints(folder).pop(best) == ["best-1"] and not any(
            names for number, names in checkpoints(folder).items() if number != best
        )
        keys = [key.split("/") for key in ObjectStore(url, "mirror").list() if "/checkpoints/" in key]
        assert {(key[0], key[2]) for key in keys} == {(str(best), "best-1")}
        shutil.rmtree(folder)
        search(folder, *options)


@pytest.fixture
def kept_best(tmp_path):
    """A study that keeps the best, and in its folder the checkpoints of a failed trial."""
    (tmp_path / "0" / "checkpoints").mkdir(parents=True)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    found = optuna.create_study()
    found.add_trial(create_trial(state=TrialState.FAIL))
    note_kept(found, "best", None)
    return found


def test_a_search_goes_on_where_checkpoints_cannot_be_removed(tmp_path, kept_best):
    (tmp_path / "0" / LOCK).mkdir()
    said: list[str] = []
    keeper = Keeper(kept_best, tmp_path, said.append)
    keeper.update()
    assert keeper.end() == [0] and len(said) == 1 and "of trial 0 stay" in said[0]


def test_the_end_of_a_search_waits_for_a_job_that_still_holds_its_trial(tmp_path, kept_best):
    held = hold_lock(tmp_path / "0" / LOCK, wait_s=0)
    held.__enter__()
    keeper = Keeper(kept_best, tmp_path, lambda text: pytest.fail(text))
    keeper.update()
    assert (tmp_path / "0" / "checkpoints").exists()
    threading.Timer(0.3, held.__exit__, (None, None, None)).start()
    assert keeper.end() == [] and not (tmp_path / "0" / "checkpoints").exists()
