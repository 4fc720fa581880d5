"""What the tests of used runs share: small runs of every kind, and the commands in the process of the tests."""

import random
from pathlib import Path
from typing import Any
from unittest import mock

from nlu.commands import encode as encoding
from nlu.commands import evaluate as evaluating
from nlu.commands import export as exporting_command
from nlu.commands import predict as predicting
from nlu.inference.exports import checking
from tests.training.in_process import of_composed, train
from tests.training.kinds import Kind, Row, read

STEPS = ("trainer.max_duration=4st", "trainer.eval_interval=2st", "trainer.keep_best=2")
FEW = ("classify", "multilabel", "tag with a CRF", "siamese with contrastive loss")
"""kinds that `make test` tries"""


def trained(kind: Kind, folder: Path, *overrides: str) -> Path:
    """Train a run of a kind on its own rows and return its folder."""
    train(*kind.overrides(folder, dev_rows=23), *STEPS, *overrides, f"hydra.run.dir={folder / 'run'}")
    return folder / "run"


def predict(*overrides: str, status: int = 0) -> None:
    """Do what `python -m nlu.predict` does with these overrides, and assert its exit status."""
    of_composed(predicting.main, "predict", "device=cpu", *overrides, status=status)


def encode(*overrides: str, status: int = 0) -> None:
    """Do the same of `python -m nlu.encode`."""
    of_composed(encoding.main, "encode", "device=cpu", *overrides, status=status)


def evaluate(*overrides: str, status: int = 0) -> None:
    """Do the same of `python -m nlu.evaluate`; its figures stay blank."""
    of_composed(evaluating.main, "evaluate", "trainer.device=cpu", *overrides, status=status)


def export(*overrides: str, status: int = 0) -> None:
    """Do the same of `python -m nlu.export`; latencies are hardly measured."""
    with mock.patch.object(checking, "TIMED_S", 0.0):
        of_composed(exporting_command.main, "export", *overrides, status=status)


def kept(run_dir: Path, name: str = "dev") -> list[dict[str, Any]]:
    """Return what the run itself predicted for each example of a set."""
    return read(run_dir / "predictions" / f"{name}.jsonl")[1:]


def unlabelled(kind: Kind, count: int, seed: int = 1) -> list[Row]:
    """Return rows of a kind without what is right."""
    rng = random.Random(seed)
    rows = [kind.row(rng) for _ in range(count)]
    return [{key: value for key, value in row.items() if key not in ("label", "tags", "logits")} for row in rows]


def said(record: dict[str, Any]) -> Any:
    """Return what a command answers for a record as the run keeps it."""
    if "spans" in record:
        return [
            {"type": kind, "first": first, "last": last, "text": " ".join(record["tokens"][first : last + 1])}
            for first, last, kind in record["spans"]
        ]
    return record.get("prediction", record.get("similarity"))
