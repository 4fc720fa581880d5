"""Each tracker writes what a run tells it, read back by the tracker's own means; also after a kill.

Skipped where the tracker is not installed; make test-thorough installs all three.
"""

import json
import math
import struct
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from nlu.runs.records import read_rows
from nlu.tracking.tracker import Beginning, Point, Tracker, past_points
from tests.training.in_process import TINY, killed_in_backward, sets, train
from tests.training.runs import run

pytestmark = pytest.mark.thorough
Curves = dict[str, dict[int, list[float]]]
"""all values that are shown, by name and step"""
SHORT = (*TINY, "trainer.max_duration=8st", "trainer.eval_interval=4st", "trainer.save_interval=3st")


def shown_by_tensorboard(folder: Path) -> Curves:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0}).Reload()
    curves: Curves = {}
    for name in events.Tags()["scalars"]:
        for event in events.Scalars(name):
            curves.setdefault(name, {}).setdefault(event.step, []).append(event.value)
    return curves


def shown_by_mlflow(folder: Path) -> Curves:
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{folder / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("nlu")
    (run,) = client.search_runs([experiment.experiment_id])
    curves: Curves = {}
    for name in run.data.metrics:
        for metric in client.get_metric_history(run.info.run_id, name):
            curves.setdefault(name, {}).setdefault(metric.step, []).append(metric.value)
    return curves


def records_of_wandb(folder: Path) -> list[Any]:
    """Read the one file of offline runs: a log of LevelDB, of blocks of 32 KiB, whose entries are the library's own."""
    from wandb.proto import wandb_internal_pb2

    (path,) = folder.glob("wandb/offline-run-*/run-*.wandb")
    content, place, parts, found = path.read_bytes(), 7, b"", []
    while place + 7 <= len(content):
        if (left := 32768 - place % 32768) < 7:
            place += left
            continue
        _, length, kind = struct.unpack_from("<IHB", content, place)
        parts += content[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):
            found.append(wandb_internal_pb2.Record.FromString(parts))
            parts = b""
    return found


def values_of(items: Iterable[Any]) -> dict[str, Any]:
    return {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}


def shown_by_wandb(folder: Path) -> Curves:
    curves: Curves = {}
    for record in records_of_wandb(folder):
        if record.WhichOneof("record_type") == "history":
            values = values_of(record.history.item)
            for name, value in values.items():
                if isinstance(value, int | float) and not name.startswith("_"):
                    curves.setdefault(name, {}).setdefault(values["_step"], []).append(value)
    return curves


SHOWN: dict[str, Callable[[Path], Curves]] = {
    "tensorboard": shown_by_tensorboard, "mlflow": shown_by_mlflow, "wandb": shown_by_wandb,
}  # fmt: skip


@pytest.fixture(params=list(SHOWN))
def tracker(request: pytest.FixtureRequest) -> str:
    pytest.importorskip(request.param)
    return request.param


def tables_of(run_dir: Path, *, precision: float) -> Curves:
    """What the run's own tables say."""
    curves: Curves = {}
    for row in read_rows(run_dir / "train.tsv"):
        curves.setdefault("train/loss", {})[int(row["step"])] = [pytest.approx(row["loss"], rel=precision)]
    for row in read_rows(run_dir / "valid.tsv"):
        name, value = f"{row['set']}/{row['metric']}", pytest.approx(row["value"], rel=precision)
        curves.setdefault(name, {})[int(row["step"])] = [value]
    return curves


def test_every_row_of_a_run_is_shown_once_also_after_a_kill(tmp_path: Path, tracker: str) -> None:
    overrides = (*SHORT, *sets(tmp_path), f"tracker={tracker}", f"hydra.run.dir={tmp_path}/run")
    # Step 6 is saved; step 7 was logged, and comes again.
    with killed_in_backward(8):
        train(*overrides)
    train(*overrides, "resume=auto")
    run_dir = tmp_path / "run"
    shown = SHOWN[tracker](run_dir / "tracker")
    told = tables_of(run_dir, precision=1e-6)
    assert set(told["train/loss"]) == set(range(1, 9)) and set(told["dev/accuracy"]) == {4, 8}
    assert {name: shown[name] for name in told} == told
    assert {steps for name, curve in shown.items() if name.startswith("train/") for steps in curve} == set(range(1, 9))
    assert not [line for line in (run_dir / "log.txt").read_text().splitlines() if "the tracker" in line]


def started(tracker: Tracker, folder: Path, **changes: Any) -> Tracker:
    """Start a tracker by itself."""
    known = {"name": "search/3", "group": "search", "config": {"optimizer.lr": 0.1, "texts": ["a", "b"]}, "step": 0}
    tracker.start(Beginning(folder=folder, past=lambda: [], **(known | changes)))
    return tracker


def test_mlflow_keeps_names_parameters_results_and_status(tmp_path: Path) -> None:
    mlflow = pytest.importorskip("mlflow")
    from nlu.tracking.mlflow import MLflow

    many = MLflow(experiment="mine", database=str(tmp_path / "all.db"))
    for number in (1, 2):
        one = started(many, tmp_path / f"run-{number}", name=f"run-{number}")
        one.log(Point(4, {"summary/gate[0]": 1.5, "dev/f1": math.nan}))
        one.end("pruned" if number == 2 else "finished", {"best/dev/f1": 0.5})
    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{tmp_path / 'all.db'}")
    runs = client.search_runs([client.get_experiment_by_name("mine").experiment_id])
    assert sorted((run.info.run_name, run.info.status) for run in runs) == [("run-1", "FINISHED"), ("run-2", "KILLED")]
    (first,) = (run for run in runs if run.info.run_name == "run-1")
    assert first.data.params == {"optimizer.lr": "0.1", "texts": "['a', 'b']"}
    assert first.data.metrics["summary/gate_0_"] == 1.5 and first.data.metrics["best/dev/f1"] == 0.5
    assert first.data.tags["group"] == "search" and first.data.tags["outcome"] == "finished"


def test_tensorboard_keeps_configuration_and_results(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    from nlu.tracking.tensorboard import TensorBoard

    for _ in range(2):
        tracker = started(TensorBoard(), tmp_path, step=0)
        tracker.log(Point(4, {"dev/f1": 0.25}))
        tracker.end("finished", {"best/dev/f1": 0.5})
    events = EventAccumulator(str(tmp_path)).Reload()
    assert [(event.step, event.value) for event in events.Scalars("best/dev/f1")] == [(4, 0.5)]
    assert "optimizer.lr: 0.1" in events.Tensors("config/text_summary")[0].tensor_proto.string_val[0].decode()
    assert "finished" in events.Tensors("result/text_summary")[0].tensor_proto.string_val[0].decode()


def test_wandb_keeps_names_configuration_and_results(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    from nlu.tracking.wandb import WandB

    tracker = started(WandB(project="mine"), tmp_path)
    tracker.log(Point(4, {"dev/f1": 0.25}))
    tracker.end("finished", {"best/dev/f1": 0.5})
    by_kind: dict[str, list[Any]] = {}
    for record in records_of_wandb(tmp_path):
        by_kind.setdefault(record.WhichOneof("record_type"), []).append(record)
    run = by_kind["run"][0].run
    assert (run.project, run.display_name, run.run_group) == ("mine", "search/3", "search")
    assert json.loads({item.key: item.value_json for item in run.config.update}["optimizer.lr"]) == 0.1
    (history,) = by_kind["history"]
    assert values_of(history.history.item)["dev/f1"] == 0.25
    results = values_of(update for each in by_kind["summary"] for update in each.summary.update)
    assert results["best/dev/f1"] == 0.5 and results["outcome"] == "finished"


def test_each_trial_of_a_search_has_its_own(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    search = ("--multirun", "hydra/sweeper=hyperband", "hydra.sweeper.n_trials=2", f"hydra.sweep.dir={tmp_path}/search")
    run(*SHORT, *sets(tmp_path), *search, "tracker=tensorboard", "optimizer.lr=interval(1e-4,1e-3)")
    for number in ("0", "1"):
        run_dir = tmp_path / "search" / number
        shown = shown_by_tensorboard(run_dir / "tracker")
        assert list(shown["train/loss"]) == [point.step for point in past_points(run_dir, 8)]
