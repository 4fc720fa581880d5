"""hydra.sweeper.keep over real trials: who loses checkpoints as a search goes."""

import json
import os
import shutil
from types import SimpleNamespace

import optuna
import pytest
from optuna.trial import TrialState

from nlu.config.errors import UserError
from nlu.inference.locate import locate
from nlu.search._keeping import FILE, Keeper
from nlu.storage.objects import ObjectStore
from tests.launchers import test_runs
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
    search(folder, *data, *THREE, "hydra.sweeper.keep=rungs")
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
    search(folder, *options)
    values = {number: test_runs.result(folder, number)["best"]["value"] for number in range(3)}
    best = max(values, key=lambda number: (values[number], -number))
    for _ in range(2):
        assert checkpoints(folder) == {number: ["best-1"] if number == best else [] for number in range(3)}
        keys = [key.split("/") for key in ObjectStore(url, "mirror").list() if "/checkpoints/" in key]
        assert {(key[0], key[2]) for key in keys} == {(str(best), "best-1")}
        shutil.rmtree(folder)
        search(folder, *options)


def test_a_search_goes_on_where_the_note_of_a_removal_cannot_be_written(tmp_path):
    (tmp_path / "0" / "checkpoints").mkdir(parents=True)
    (tmp_path / FILE).mkdir()
    of_one = optuna.create_study()
    of_one.add_trial(optuna.trial.create_trial(state=TrialState.FAIL))
    plan = SimpleNamespace(folder=tmp_path, settings={"keep": "best"}, is_run=True, mirror=None, study=of_one)
    said = []
    keeper = Keeper(plan, lambda text, style: said.append(text))
    keeper.update()
    assert len(said) == 1 and "of trial 0" in said[0] and FILE in said[0]
    assert not (tmp_path / "0" / "checkpoints").exists()
