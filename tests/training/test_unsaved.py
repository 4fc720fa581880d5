"""Runs that keep no checkpoints: trainer.save=false and trainer.save_above, over whole small runs."""

import signal
from pathlib import Path
from unittest import mock

import pytest
import torch

import nlu
from nlu.config.errors import CheckpointError, UserError
from nlu.models.formats.pretrained import open_pretrained
from nlu.reports.cleaning import plan_of
from nlu.reports.runs import read_run
from nlu.runs.records import read_rows
from tests.training.in_process import TINY, Killed, at_backward, die, scores, sets, train, write_rows
from tests.training.runs import result

EVERY_STEP = ("trainer.eval_interval=1st", "trainer.save_interval=1st", "trainer.max_duration=6st", "optimizer.lr=1e-2")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """Sets whose best evaluation is not the last one: what is learned makes those of dev worse."""
    folder = tmp_path_factory.mktemp("data")
    test = write_rows(folder / "test.tsv", 17, seed=2)
    return (
        *sets(folder, inverted_dev=True), f"data.test={test}", "trainer.major_metric=loss", "trainer.ema_decay=0.1",
        *EVERY_STEP,
    )  # fmt: skip


@pytest.fixture(scope="module")
def ordinary(data: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> Path:
    run_dir = tmp_path_factory.mktemp("ordinary") / "run"
    train(*TINY, *data, f"hydra.run.dir={run_dir}")
    return run_dir


def comparable(run_dir: Path) -> dict[str, object]:
    """Return what result.json says of scores, without times and the checkpoint."""
    found = result(run_dir)
    found["best"] = {key: value for key, value in found["best"].items() if "checkpoint" not in key}
    return {key: found[key] for key in ("metrics", "best", "last", "steps", "examples")}


def predictions(run_dir: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (run_dir / "predictions").iterdir()}


def test_a_run_without_checkpoints_has_the_scores_and_predictions_of_one_with_them(
    data: tuple[str, ...], ordinary: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = tmp_path / "run"
    train(*TINY, *data, "trainer.save=false", f"hydra.run.dir={run_dir}")
    assert not (run_dir / "checkpoints").exists()
    with pytest.raises(CheckpointError, match=r"holds no weights \(model.safetensors"):
        open_pretrained(str(run_dir))
    # The test set is scored with the weights of the best evaluation, which is not the last one.
    assert result(ordinary)["best"]["step"] < 6
    assert comparable(run_dir) == comparable(ordinary) and predictions(run_dir) == predictions(ordinary)
    assert read_rows(run_dir / "valid.tsv") == read_rows(ordinary / "valid.tsv")
    best = result(run_dir)["best"]
    assert best["checkpoint"] is None and best["no_checkpoint"] == "trainer.save is false"
    assert "no best checkpoint was kept: trainer.save is false" in capsys.readouterr().out
    with pytest.raises(UserError, match="has no checkpoint best: trainer.save is false"):
        nlu.load(run_dir, device="cpu")
    train(*TINY, *data, "trainer.save=false", f"hydra.run.dir={run_dir}", "resume=auto")
    assert "is finished; nothing was done" in capsys.readouterr().err


def test_a_signal_ends_a_run_without_checkpoints_and_the_command_starts_it_again(
    data: tuple[str, ...], ordinary: Path, tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    options = (*TINY, *data, "trainer.save=false", f"hydra.run.dir={run_dir}", "resume=auto")

    def stop(gradient: torch.Tensor) -> torch.Tensor:
        signal.raise_signal(signal.SIGTERM)
        return gradient

    with at_backward(3, stop):
        train(*options, status=75)
    log = (run_dir / "log.txt").read_text()
    assert ", nothing saved (trainer.save=false)" in log
    assert "starts again at step 0, since trainer.save is false" in log
    assert not (run_dir / "checkpoints").exists()
    train(*options)
    assert comparable(run_dir) == comparable(ordinary) and predictions(run_dir) == predictions(ordinary)


@pytest.mark.parametrize("margin", [0.0, 1e-3])
def test_best_checkpoints_stay_only_if_the_metric_passes_save_above(
    data: tuple[str, ...], ordinary: Path, tmp_path: Path, margin: float
) -> None:
    run_dir, least = tmp_path / "run", min(scores(ordinary, "dev", "loss").values())
    train(*TINY, *data, f"trainer.save_above={least + margin}", f"hydra.run.dir={run_dir}")
    there = sorted(path.name for path in (run_dir / "checkpoints").iterdir())
    # Lower is better for a loss, and a value that equals the bound is not below it.
    assert there == (["best-1", "last"] if margin > 0 else ["last"])
    assert comparable(run_dir) == comparable(ordinary)
    if margin <= 0:
        assert "is not below trainer.save_above" in result(run_dir)["best"]["no_checkpoint"]
        assert [path.name for path in plan_of(read_run(run_dir)).removable] == ["optimizer.safetensors"]
        with pytest.raises(UserError, match="set checkpoint=last"):
            nlu.load(run_dir, device="cpu")


def test_weights_below_save_above_stay_until_the_test_set_is_scored_after_a_kill(
    data: tuple[str, ...], ordinary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = tmp_path / "run"
    options = (*TINY, *data, "trainer.save_above=0", f"hydra.run.dir={run_dir}", "resume=auto")
    with at_backward(4, die), pytest.raises(Killed):
        train(*options)
    # The next one is killed between result.json and the removal.
    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr("nlu.training.finish.remove_unkept", mock.Mock(side_effect=Killed))
        train(*options)
    assert (run_dir / "checkpoints" / "best-1").is_dir() and comparable(run_dir) == comparable(ordinary)
    train(*options)
    assert sorted(path.name for path in (run_dir / "checkpoints").iterdir()) == ["last"]
