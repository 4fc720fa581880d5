"""Trials that are real runs: pruned on one process and on two, failed, continued, and found again as plain runs."""

import json
import re
from pathlib import Path

import pytest

from nlu.config.schema import Trainer
from nlu.storage.tensors import load_tensors
from tests import warm
from tests.launchers.searches import REPOSITORY, outcomes, states, trials
from tests.training.in_process import command
from tests.training.runs import SAME_THREADS, TINY, files

QUICK = (
    "trainer.batch_size=8", "trainer.device=cpu", "trainer.max_duration=30st", "trainer.eval_interval=10st",
    "hydra.sweeper.min_resource=10st", "hydra/sweeper/sampler=random",
)  # fmt: skip


def search(folder: Path, *overrides: str, status: int = 0) -> str:
    arguments = [
        "-m", "nlu.train", "--multirun", "hydra/sweeper=hyperband", f"hydra.sweep.dir={folder}", *TINY,
        *QUICK, *overrides,
    ]  # fmt: skip
    done = warm.run(arguments, cwd=REPOSITORY, env=SAME_THREADS, timeout=400)
    assert done.returncode == status, f"exit {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout + done.stderr


def result(folder: Path, number: int) -> dict:
    return json.loads((folder / str(number) / "result.json").read_text())


@pytest.mark.thorough
@pytest.mark.parametrize("devices", [1, pytest.param(2, marks=pytest.mark.thorough)])
def test_a_run_is_pruned_by_its_reports_and_all_its_processes_end_together(tmp_path, devices):
    folder = tmp_path / "s"
    # The only rung: there a rate that learns is far above one of 1e-6, which comes after it.
    search(
        folder, *files(tmp_path, 163), "optimizer.lr=tag(choice(3e-2,1e-6),prior=3e-2)", f"trainer.devices={devices}",
        "trainer.max_duration=40st", "hydra.sweeper.min_resource=25st",
    )  # fmt: skip
    assert sorted(states(folder)) == ["COMPLETE", "PRUNED"]
    for trial, outcome in zip(trials(folder), outcomes(folder), strict=True):
        told = result(folder, trial.number)
        assert told["pruned"] == (trial.state.name == "PRUNED") == (trial.params["optimizer.lr"] < 1e-3)
        assert outcome["examples"] == told["examples"] == max(trial.intermediate_values)
        assert outcome["value"] == told["best"]["value"]
        assert told["steps"] == (30 if told["pruned"] else 40)


def test_a_trial_is_a_run_like_any_other(tmp_path):
    # Of so few rows the default length is fewer steps in a trial than in a run.
    folder, data = tmp_path / "s", (*files(tmp_path), f"trainer.max_duration={Trainer.max_duration}")
    first_said = search(folder, *data, "optimizer.lr=choice(3e-3)", "hydra.sweeper.pruner=none")
    assert "data store" in first_said
    # Another search is refused before its data are prepared.
    said = search(folder, *data, "optimizer.lr=choice(3e-3,1e-3)", "hydra.sweeper.pruner=none", status=2)
    assert "optimizer.lr: choice(0.003) there, choice(0.003, 0.001) here" in said and "data store" not in said
    again = re.search(r"the best trial again: python -m nlu.train (.*)", first_said)
    assert again is not None
    command(*again[1].split(), f"hydra.run.dir={tmp_path}/plain")
    weights = [path / "checkpoints/best-1/model.safetensors" for path in (folder / "0", tmp_path / "plain")]
    assert weights[0].read_bytes() == weights[1].read_bytes()


FOLDS = pytest.param(("folds.count=2",), marks=pytest.mark.thorough)


@pytest.mark.parametrize("more", [(), FOLDS], ids=["run", "folds"])
def test_a_paused_trial_continues_to_the_same_bytes(tmp_path, more):
    folder, data = tmp_path / "s", files(tmp_path)
    said = search(folder, *data, "optimizer.lr=choice(3e-3,1e-4,1e-5)", "hydra.sweeper.pruner=asha", *more)
    assert sorted(states(folder)) == ["COMPLETE", "WAITING", "WAITING"] and "1 complete, 2 paused" in said
    (best,) = [trial for trial in trials(folder) if trial.state.name == "COMPLETE"]
    assert best.user_attrs["launches"] == 2 and f"trial {best.number} paused" in said
    command("--rerun", str(folder / str(best.number)), f"hydra.run.dir={tmp_path}/plain")
    fold = "fold-1/" if more else ""
    for name in (f"{fold}checkpoints/best-1/model.safetensors", f"{fold}checkpoints/last/model.safetensors"):
        assert (folder / f"{best.number}" / name).read_bytes() == (tmp_path / "plain" / name).read_bytes()


@pytest.mark.thorough
def test_a_failed_run_is_tried_again_from_its_checkpoint_and_keeps_the_cause(tmp_path):
    folder = tmp_path / "s"
    # With such a rate every attempt gets a NaN loss a step or two after the first update.
    said = search(
        folder, *files(tmp_path), "optimizer.lr=choice(1e30)", "trainer.save_interval=1st", "hydra.sweeper.pruner=none",
        "hydra.sweeper.retries=1", status=1,
    )  # fmt: skip
    assert (folder / "0/checkpoints/last/COMPLETE").is_file()
    (outcome,) = outcomes(folder)
    assert outcome["attempt"] == 1 and "nothing was updated" in outcome["error"]
    assert "trying again, 1 of 1" in said and "another configuration" not in said
    log = (folder / "0/log.txt").read_text()
    assert log.count("; nothing was updated") == 2


def test_a_run_measures_itself_once_for_the_objectives_of_its_search(tmp_path):
    """One of two is too large; both are measured, and a search that continues measures no more."""
    folder = tmp_path / "s"
    arguments = (
        *files(tmp_path), "model.hidden_size=choice(16,256)", "hydra.sweeper.pruner=none", "optimizer.lr=3e-3",
        "hydra.sweeper.objectives=[accuracy,latency_ms,recall_macro]", "trainer.max_duration=20st",
        'hydra.sweeper.constraints=["parameters<=100e3","loss<=1e6"]',
    )  # fmt: skip
    search(folder, *arguments)
    for trial in trials(folder):
        told, weights = result(folder, trial.number), folder / f"{trial.number}/checkpoints/best-1/model.safetensors"
        parameters = sum(tensor.numel() for tensor in load_tensors(weights).values())
        scores = {name: told["metrics"]["dev"][name] for name in ("recall_macro", "loss")}
        assert told["measured"] == {"latency_ms": trial.values[1], "parameters": parameters} and trial.values[1] > 0
        assert trial.user_attrs["measured"] == {**told["measured"], **scores}
        is_large = trial.params["model.hidden_size"] == 256
        assert (trial.constraints["parameters<=100000"] > 0) == is_large and trial.constraints["loss<=1000000"] <= 0
    before = [(trial.state, trial.values, trial.user_attrs) for trial in trials(folder)]
    search(folder, *arguments)
    assert [(trial.state, trial.values, trial.user_attrs) for trial in trials(folder)] == before and len(before) == 2
