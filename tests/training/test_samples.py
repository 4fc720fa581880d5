"""Runs that score a sample while they train: what decides, and what is reported, against scores computed by hand."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nlu.runs.predictions import predictions_of
from nlu.runs.records import read_rows
from tests.few import first
from tests.training.in_process import TINY, Killed, at_backward, die, sets, train
from tests.training.mixtures import CLASSES, TAGS, mixture
from tests.training.runs import result

ROWS = 12


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """A run that gets worse on its dev set, whose best step is the first evaluation."""
    data = sets(tmp_path_factory.mktemp("data"), dev_rows=41, inverted_dev=True)
    return (
        *TINY, *data, "trainer.major_metric=loss", "trainer.eval_interval=2st", "trainer.max_duration=6st",
        "optimizer.lr=1e-2", "trainer.ema_decay=0.1", "trainer.save_interval=50st", "resume=auto",
    )  # fmt: skip


@pytest.fixture(scope="module")
def runs(options: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The folders of a run that scores all rows, and of the same run that scores a sample."""
    folder = tmp_path_factory.mktemp("runs")
    train(*options, f"hydra.run.dir={folder}/all")
    train(*options, f"trainer.eval_rows={ROWS}", f"hydra.run.dir={folder}/some")
    return folder / "all", folder / "some"


def loss_rows(run_dir: Path) -> list[tuple[Any, Any, Any]]:
    return [
        (row["step"], row["value"], row.get("rows"))
        for row in read_rows(run_dir / "valid.tsv")
        if row["metric"] == "loss"
    ]


def test_the_result_is_that_of_the_whole_set(runs: tuple[Path, Path]) -> None:
    whole, some = map(result, runs)
    # Both runs have the same weights, and the first evaluation is the best by a wide margin.
    assert some["best"]["step"] == whole["best"]["step"] == 2
    assert some["metrics"] == whole["metrics"] and some["last"] == whole["last"] and some["best"] == whole["best"]
    kept = [predictions_of(folder, "dev") for folder in runs]
    assert [list(map(dict, one)) for one in kept][0] == [list(map(dict, one)) for one in kept][1]
    assert kept[0].header == kept[1].header and "sample" not in whole


def test_the_tables_say_that_scores_are_those_of_a_sample(runs: tuple[Path, Path]) -> None:
    (all_dir, some_dir), sample = runs, result(runs[1])["sample"]
    assert [(step, rows) for step, _, rows in loss_rows(all_dir)] == [(2, None), (4, None), (6, None)]
    assert [(step, rows) for step, _, rows in loss_rows(some_dir)] == [(2, ROWS), (4, ROWS), (6, ROWS)]
    values = [value for _, value, _ in loss_rows(some_dir)]
    assert sample == {"rows": {"dev": ROWS}, "best": values[0], "last": values[-1]}
    score = json.loads((some_dir / "checkpoints/best-1/score.json").read_text())
    assert score["sampled_rows"] == {"dev": ROWS} and score["value"] == values[0]


def test_each_evaluation_scores_the_same_rows_with_each_class_in_its_share(
    options: tuple[str, ...], runs: tuple[Path, Path], tmp_path: Path
) -> None:
    # Killed after its first evaluation, the run holds the predictions of the sample.
    own = (*options, f"trainer.eval_rows={ROWS}", "trainer.save_interval=2st", f"hydra.run.dir={tmp_path}/run")
    with at_backward(4, die), pytest.raises(Killed):
        train(*own)
    kept = predictions_of(tmp_path / "run", "dev")
    found = {record["id"]: record for record in kept}
    assert kept.header["sampled_rows"] == len(found) == ROWS
    every = {record["id"]: record for record in predictions_of(runs[1], "dev")}
    # Of 41 rows 11 are good by their text, and bad by their label.
    labels = [record["label"] for record in every.values()]
    assert (labels.count("bad"), labels.count("good")) == (11, 30)
    chosen = [record["label"] for record in found.values()]
    assert (chosen.count("bad"), chosen.count("good")) == (3, 9)
    assert found == {number: every[number] for number in found}
    mean = np.mean([record["loss"] for record in found.values()])
    assert mean == pytest.approx(loss_rows(runs[1])[0][1], rel=1e-6)
    assert mean != pytest.approx(np.mean([record["loss"] for record in every.values()]), rel=1e-3)
    # Continued, it scores the same rows.
    train(*own)
    for name in ("best-1/model", "last/model"):
        files = [folder / f"checkpoints/{name}.safetensors" for folder in (tmp_path / "run", runs[1])]
        assert files[0].read_bytes() == files[1].read_bytes()
    assert loss_rows(tmp_path / "run") == loss_rows(runs[1])
    assert result(tmp_path / "run")["metrics"] == result(runs[1])["metrics"]


def test_a_threshold_is_that_of_the_sample_also_for_the_whole_set(options: tuple[str, ...], tmp_path: Path) -> None:
    dev_file = next(entry for entry in options if entry.startswith("data.dev=")).partition("=")[2]
    own = ("task=multilabel", f"trainer.eval_rows={ROWS}", f"data.test={dev_file}")
    train(*options, *own, f"hydra.run.dir={tmp_path}/run")
    score = json.loads((tmp_path / "run/checkpoints/best-1/score.json").read_text())
    found = result(tmp_path / "run")["metrics"]
    # Predictions of the checkpoint use the threshold that it holds.
    assert found["dev"]["threshold"] == found["test"]["threshold"] == score["metrics"]["dev"]["threshold"]
    assert found["dev"] == found["test"]


@pytest.mark.parametrize("name", first(1, ["several", "folds"]))
def test_folds_and_sets_of_a_mixture_are_reported_as_a_whole(
    options: tuple[str, ...], tmp_path: Path, name: str
) -> None:
    of_folds = (*options, "folds.count=2", "trainer.max_duration=3st")
    own = of_folds if name == "folds" else mixture(tmp_path, {"c": CLASSES, "t": TAGS}, "trainer.max_duration=4st")
    train(*own, "trainer.eval_interval=0", f"hydra.run.dir={tmp_path}/all")
    train(*own, "trainer.eval_interval=0", "trainer.eval_rows=6", f"hydra.run.dir={tmp_path}/some")
    whole, some = result(tmp_path / "all"), result(tmp_path / "some")
    # The only evaluation is the last one, so both choose the same weights.
    assert some["metrics"] == whole["metrics"] and some["best"] == whole["best"]
    if name == "several":
        assert some["sample"]["rows"] == {"dev-c": 6, "dev-t": 6} and some["last"] == whole["last"]
    else:
        assert some["out_of_fold"] == whole["out_of_fold"] and whole["out_of_fold"]
