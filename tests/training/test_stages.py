"""A run that is trained in stages, with trainer.stop_after, becomes the run that was never interrupted."""

import json
from pathlib import Path
from typing import Any

import pytest

from nlu.reports.runs import read_run
from nlu.runs.records import COST_COLUMNS, read_rows
from tests.training.in_process import MODEL, PLAIN, Killed, at_backward, column, die, sets, train
from tests.training.runs import result

PARTS = ("last/model", "last/optimizer", "last/average", "best-1/model", "best-2/model")


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """A run with dropout of 12 steps, three epochs, which is evaluated every third step."""
    data = sets(tmp_path_factory.mktemp("data"))
    return (
        *MODEL, *PLAIN, *data, "trainer.max_duration=12st", "trainer.eval_interval=3st", "trainer.save_interval=50st",
        "trainer.log_interval=2st", "trainer.keep_best=2", "trainer.major_metric=loss", "scheduler=one_cycle",
        "resume=auto",
    )  # fmt: skip


def state_of(run_dir: Path) -> dict[str, Any]:
    """Return the saved state without times."""
    state = json.loads((run_dir / "checkpoints/last/state.json").read_text())["state"]
    del state["throughput"], state["train_s"]
    for name in ("steps_s", "seconds", "peak_mb"):
        del state["window"][name]
    return state


def without_speed(run_dir: Path) -> list[dict[str, Any]]:
    return [
        {key: value for key, value in row.items() if "per_s" not in key and key not in COST_COLUMNS}
        for row in read_rows(run_dir / "train.tsv")
    ]


def assert_same(one: Path, other: Path) -> None:
    for name in PARTS:
        files = [folder / f"checkpoints/{name}.safetensors" for folder in (one, other)]
        assert files[0].read_bytes() == files[1].read_bytes(), name
    for name in ("predictions/dev.jsonl", "valid.tsv"):
        assert (one / name).read_bytes() == (other / name).read_bytes(), name
    assert without_speed(one) == without_speed(other) and state_of(one) == state_of(other)
    assert result(one)["metrics"] == result(other)["metrics"] and result(one)["best"] == result(other)["best"]


def test_a_run_in_three_stages_has_the_bytes_of_an_unbroken_one(options: tuple[str, ...], tmp_path: Path) -> None:
    staged, whole = tmp_path / "staged", tmp_path / "whole"
    train(*options, f"hydra.run.dir={whole}")
    positions = []
    # The second command finds its stage done, and the fifth begins with a killed one.
    for stop_after in ("5st", "5st", "28ex", "2ep"):
        train(*options, f"trainer.stop_after={stop_after}", f"hydra.run.dir={staged}")
        positions.append(state_of(staged)["step"])
        assert not (staged / "result.json").exists()
    assert positions == [5, 5, 5, 8]
    assert column(staged, "step") == [2, 4, 6, 8] and column(staged, "lr") == column(whole, "lr")[:4]
    with at_backward(3, die), pytest.raises(Killed):
        train(*options, "trainer.stop_after=11st", f"hydra.run.dir={staged}")
    train(*options, "trainer.stop_after=11st", f"hydra.run.dir={staged}")
    log = (staged / "log.txt").read_text()
    assert "stopped after step 11 of 12, as trainer.stop_after=11st asks; state saved" in log
    assert (
        f"unfinished; the command with hydra.run.dir={staged} resume=auto continues, without trainer.stop_after" in log
    )
    train(*options, f"hydra.run.dir={staged}")
    assert_same(staged, whole)


def test_a_stage_behind_the_end_of_the_run_changes_nothing(options: tuple[str, ...], tmp_path: Path) -> None:
    train(*options, "trainer.stop_after=9ep", f"hydra.run.dir={tmp_path}/run")
    assert result(tmp_path / "run")["steps"] == 12
    # Neither is the finished run refused as one with another configuration.
    train(*options, "trainer.stop_after=5st", f"hydra.run.dir={tmp_path}/run")
    # Its note may be given later.
    for given, kept in (("note=late", "late"), ("note=null", "late"), ("note=later", "later")):
        train(*options, given, f"hydra.run.dir={tmp_path}/run")
        assert read_run(tmp_path / "run").note == kept
