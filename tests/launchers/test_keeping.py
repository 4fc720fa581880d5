"""hydra.sweeper.keep over real trials: who loses checkpoints as a search goes, and what is printed about the disk."""

import json
import os
import re
import shutil
from types import SimpleNamespace

import pytest
from hydra_plugins.hyperband_sweeper import _keeping
from optuna.trial import TrialState, create_trial

from nlu.config.errors import UserError
from nlu.inference.locate import locate
from nlu.storage.bucket import Unreachable
from nlu.storage.objects import ObjectStore
from nlu.sweeps.goals import NO_GOALS
from tests.launchers import test_runs
from tests.launchers.searches import search as search_program
from tests.launchers.searches import states, study
from tests.launchers.test_runs import search
from tests.training.runs import files

THREE = (
    "optimizer.lr=choice(1e-6,3e-2,1e-2)", "trainer.max_duration=40st",
    "hydra.sweeper.pruner={name: threshold, lower: 0.75, n_warmup_steps: 25st}",
)  # fmt: skip


def checkpoints(folder) -> dict[int, list[str]]:
    """Return the names of the checkpoints of each trial, by its number."""
    return {
        int(trial.name): sorted(path.name for path in (trial / "checkpoints").glob("*"))
        for trial in folder.iterdir() if trial.name.isdigit()
    }  # fmt: skip


@pytest.mark.thorough
def test_a_search_removes_checkpoints_as_asked_and_a_continued_one_alike(tmp_path):
    folder, data = tmp_path / "s", files(tmp_path, 163)
    said = search(folder, *data, *THREE, "hydra.sweeper.keep=rungs")
    assert "disk: known after the first trial (hydra.sweeper.keep=rungs)" in said
    assert re.search(r"disk: at most about [\d.]+ [kM]B with hydra.sweeper.keep=rungs; each trial: last ", said)
    pruned = [number for number, state in enumerate(states(folder)) if state == "PRUNED"]
    assert len(pruned) == 1
    assert checkpoints(folder) == {number: [] if number in pruned else ["best-1"] for number in range(3)}
    # A kill after the removal and before the note, and one before the removal.
    (folder / "checkpoints.json").unlink()
    search(folder, *data, *THREE, "hydra.sweeper.keep=best")
    best = study(folder).best_trial.number
    assert checkpoints(folder) == {number: ["best-1"] if number == best else [] for number in range(3)}
    assert locate(str(folder)).checkpoint == folder / str(best) / "checkpoints" / "best-1"
    with pytest.raises(UserError, match=r"which were removed \(of trials hydra.sweeper.keep removes them\)"):
        locate(str(folder / str(pruned[0])))
    freed = json.loads((folder / "checkpoints.json").read_text())["freed"]
    assert freed == {str(number): "best" if number == best else "none" for number in range(3)}
    again = search(folder, *data, *THREE, "hydra.sweeper.keep=best")
    assert "started" not in again and "continues" not in again.replace("continuing", "")


@pytest.mark.thorough
def test_the_mirrors_of_trials_lose_the_same_also_if_the_search_continues_elsewhere(tmp_path, s3, monkeypatch):
    folder, url = tmp_path / "s", f"{s3.bucket(monkeypatch)}/search"
    monkeypatch.setattr(test_runs, "SAME_THREADS", {**os.environ, "OMP_NUM_THREADS": "1"})
    options = (*files(tmp_path, 163), *THREE, "hydra.sweeper.keep=best", f"mirror={url}")
    assert f"with hydra.sweeper.keep=best, and as much in {url}; " in search(folder, *options)
    values = {number: test_runs.result(folder, number)["best"]["value"] for number in range(3)}
    best = max(values, key=lambda number: (values[number], -number))
    for _ in range(2):
        assert checkpoints(folder) == {number: ["best-1"] if number == best else [] for number in range(3)}
        keys = [key.split("/") for key in ObjectStore(url, "mirror").list() if "/checkpoints/" in key]
        assert {(key[0], key[2]) for key in keys} == {(str(best), "best-1")}
        shutil.rmtree(folder)
        search(folder, *options)


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("hydra.sweeper.keep=some", "hydra.sweeper.keep is 'some' but must be all or rungs or best"),
        ("hydra.sweeper.keep=best", "but only trials of nlu.train have checkpoints; leave it out"),
    ],
)
def test_a_wrong_choice_of_what_to_keep_is_refused_before_the_first_trial(tmp_path, override, said):
    assert said in search_program(tmp_path / "s", "lr=interval(0.001,1)", override, status=1)
    assert not (tmp_path / "s").exists()


def keeper_of_three(folder, mirror=None):
    """Return a keeper, three complete trials, and the list of what it says."""
    said = []
    plan = SimpleNamespace(
        settings={"keep": "best"},
        folder=folder,
        is_run=True,
        saves=False,
        mirror=mirror,
        direction="maximize",
        goals=NO_GOALS,
    )
    trials = [create_trial(state=TrialState.COMPLETE, value=0.5) for _ in range(3)]
    for number, trial in enumerate(trials):
        trial.number = number
    return _keeping.Keeper(plan, lambda text, **_: said.append(text)), trials, said


def test_a_search_waits_once_for_a_bucket_that_does_not_respond(tmp_path, monkeypatch):
    asked = []

    def free_mirror(url, *, keeps_best):
        asked.append(url)
        raise Unreachable("it does not respond")

    monkeypatch.setattr(_keeping, "free_mirror", free_mirror)
    keeper, trials, said = keeper_of_three(tmp_path, "s3://b/s")
    keeper.update(trials)
    keeper.update(trials)
    assert asked == ["s3://b/s/0"] and said == ["checkpoints of trial 0 stay for now: it does not respond"]
    keeper.end(trials)
    assert asked == ["s3://b/s/0"] * 2, "at the end it is tried again"


def test_checkpoints_that_cannot_be_removed_do_not_keep_a_search_from_its_end(tmp_path):
    # A folder in the place of the lock.
    (tmp_path / "1" / ".lock").mkdir(parents=True)
    (tmp_path / "2" / "checkpoints" / "last").mkdir(parents=True)
    keeper, trials, said = keeper_of_three(tmp_path)
    keeper.end(trials)
    assert len(said) == 1 and said[0].startswith("checkpoints of trial 1 stay for now: ")
    assert not (tmp_path / "2" / "checkpoints").exists()
