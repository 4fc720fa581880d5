"""A search that pauses trials on a CUDA device, if this machine has one."""

import csv
from pathlib import Path

import pytest

from nlu.search.storage.open_study import study_in
from nlu.search.trial_steps import pauses_of
from tests.training.runs import QUICK, TINY, files, run, weights

pytestmark = pytest.mark.gpu
SEARCH = (
    "--multirun", "hydra/sweeper=hyperband", "hydra.sweeper.pruner=freeze_thaw", "hydra/launcher=local",
    "hydra.sweeper.n_trials=2", "hydra.sweeper.max_examples=160ex", "hydra.sweeper.keep=all",
    "optimizer.lr=tag(log,interval(1e-4,1e-1))",
)  # fmt: skip


def test_a_trial_that_is_paused_on_a_gpu_has_the_bytes_of_a_run_in_one_go(tmp_path: Path, device: str) -> None:
    fixed = [option for option in QUICK if not option.startswith(("trainer.device=", "optimizer.lr="))]
    options = [
        *TINY,
        *fixed,
        *files(tmp_path),
        f"trainer.device={device}",
        "precision=bf16",
        "trainer.eval_interval=5st",
    ]
    run(*SEARCH, *options, f"hydra.sweep.dir={tmp_path}/search")
    with (tmp_path / "search/summary/trials.tsv").open() as table:
        ended = [row["trial"] for row in csv.DictReader(table, delimiter="\t") if row["state"] == "complete"]
    thawed = {str(trial.number) for trial in study_in(tmp_path / "search").get_trials() if pauses_of(trial)}
    (number, *_) = [each for each in ended if each in thawed]
    trial = tmp_path / "search" / number
    drawn = (trial / "overrides").read_text().split()[-1]
    assert drawn.startswith("optimizer.lr=")
    run(*options, drawn, f"hydra.run.dir={tmp_path}/straight")
    assert weights(trial) == weights(tmp_path / "straight")
