"""Run folders as a run leaves them, written in milliseconds, for tests of the report with many of them."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from nlu.runs.predictions import Record, write_predictions
from nlu.runs.records import TRAIN_COLUMNS, VALID_COLUMNS, Table

CONFIG: dict[str, Any] = {
    "seed": 1,
    "seeds": 1,
    "fold": None,
    "folds": {"count": None, "group_by": None},
    "resume": "never",
    "trial": None,
    "task": {"_target_": "nlu.tasks.classify.Classify"},
    "model": {"_target_": "nlu.models.encoders.bert.Bert", "layers": 2},
    "data": {"_target_": "nlu.data.dataset.Files", "train": "train.tsv"},
    "optimizer": {"_target_": "nlu.optim.adamw.AdamW", "lr": 0.001},
    "trainer": {"batch_size": 8, "major_metric": None},
}


def merged(config: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Return a configuration with some dotted keys changed."""
    content = json.loads(json.dumps(config))
    for key, value in changes.items():
        place = content
        *groups, name = key.split(".")
        for group in groups:
            place = place.setdefault(group, {})
        place[name] = value
    return content


def begin_run(folder: Path, *overrides: str, **changes: Any) -> Path:
    """Write what a run has once it has begun; `changes` are configuration keys with __ for a dot."""
    folder.mkdir(parents=True)
    config = merged(CONFIG, {key.replace("__", "."): value for key, value in changes.items()})
    (folder / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    (folder / "overrides").write_text("".join(f"{override}\n" for override in overrides))
    return folder


def evaluate(folder: Path, *values: float, metric: str = "accuracy") -> Path:
    """Add evaluations, one every 10 steps of 8 examples."""
    train, valid = Table(folder / "train.tsv", TRAIN_COLUMNS), Table(folder / "valid.tsv", VALID_COLUMNS)
    for number, value in enumerate(values, start=1):
        seen = {"step": 10 * number, "epoch": number / 10, "examples": 80 * number}
        train.append(**seen, loss=1 / number, examples_per_s=100.0 * number)
        valid.append(**seen, set="dev", metric=metric, value=value)
    return folder


def end_run(folder: Path, value: float, *, pruned: bool = False, **metrics: float) -> Path:
    """Write the result of a run whose best accuracy was at step 10."""
    config = yaml.safe_load((folder / "config.yaml").read_text())
    result = {
        "metrics": {"dev": {"accuracy": value, **metrics}, "test": {"accuracy": value - 0.1}},
        "best": {"set": "dev", "metric": "accuracy", "value": value, "step": 10},
        "seed": config["seed"], "fold": config["fold"], "folds": config["folds"]["count"],
        "pruned": pruned, "examples": 160, "examples_per_s": 100.0,
    }  # fmt: skip
    (folder / "result.json").write_text(json.dumps(result))
    return folder


def predict(folder: Path, rows: list[tuple[int, str, str]], name: str = "dev") -> Path:
    """Write predictions: (id, label, prediction) of each row."""
    records = [
        {"id": id_, "file": 0, "row": id_ + 1, "label": label, "prediction": prediction, "probability": 0.75,
         "probabilities": {name: 0.75 if name == prediction else 0.25 for name in ("bad", "good")}, "loss": 0.25,
         "margin": 1.0 if prediction == "good" else -1.0}
        for id_, label, prediction in rows
    ]  # fmt: skip
    return keep_records(folder, records, name, by_label=[{"label": label} for label in ("bad", "good")])


def keep_records(
    folder: Path, records: Sequence[Record], name: str = "dev", kind: str = "ClassKind", **header: Any
) -> Path:
    """Write records as the predictions of a set; `kind` is the name of a class in nlu/metrics/kinds.py."""
    known = {
        "step": 1, "kind": f"nlu.metrics.kinds.{kind}", "scorer": "nlu.metrics.classes.ClassScorer", "metrics": {},
        "by_label": [],
    }  # fmt: skip
    write_predictions(folder / "predictions" / f"{name}.jsonl", known | header, records)
    return folder


def checkpoints(folder: Path, best: int = 1) -> Path:
    """Write checkpoints as files of known sizes: 1,000 bytes each model, 2,000 the optimizer's state."""
    for name in (*(f"best-{place}" for place in range(1, best + 1)), "last"):
        place = folder / "checkpoints" / name
        place.mkdir(parents=True)
        (place / "model.safetensors").write_bytes(b"m" * 1000)
        (place / "COMPLETE").touch()
    (folder / "checkpoints" / "last" / "state.json").write_text("{}")
    (folder / "checkpoints" / "last" / "optimizer.safetensors").write_bytes(b"o" * 2000)
    return folder
