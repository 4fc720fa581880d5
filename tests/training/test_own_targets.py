"""A target, a task and a loss of a user's own package that store lists of numbers and learn from them."""

import importlib
import json
import random
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nlu
from nlu.config.errors import DataError
from nlu.runs.predictions import predictions_of
from tests.training.in_process import MODEL, NO_DROPOUT, PLAIN, composed, start

SOFT = '''
"""Shares of labels, three for each text, as another model or several people gave them."""
import numpy as np, pyarrow as pa, torch
from nlu.data.targets import Target
from nlu.losses.loss import RowLoss
from nlu.metrics.kinds import Kind
from nlu.metrics.scores import Columns, Scores
from nlu.tasks.task import RowsOfLogits, to_host


class Shares(Target):
    kind, roles = "shares", ("label",)

    def read(self, values):
        return values["label"], None

    def column(self):
        return pa.list_(pa.float32())

    @property
    def num_outputs(self):
        return 3

    def collate(self, rows):
        flat, counts_B = rows.stored.lists("target", rows.rows_B)
        return {"labels": torch.from_numpy(flat.reshape(len(counts_B), 3))}


class CrossEntropy(RowLoss):
    kinds = ("shares",)

    def per_row(self, logits_NC, shares_NC):
        return -(shares_NC * logits_NC.log_softmax(-1)).sum(-1)


class MeanLoss(Columns):
    def __init__(self):
        super().__init__(loss="d", rows="l")

    def add(self, record):
        super().add({"rows": 1, **record})

    def result(self):
        return Scores({"loss": self.total("loss") / sum(self.columns["rows"])})


class Kept(Kind):
    name, plural, columns = "loss", "losses", {}


class Apportion(RowsOfLogits):
    layouts, target, scores = ("single",), "ownparts.soft.Shares", "ownparts.soft.MeanLoss"
    kind = "ownparts.soft.Kept"
    heads = ("nlu.models.heads.linear.LinearHead",)
    metrics, binary_metrics, default_metric, lower_is_better = ("loss",), (), "loss", ("loss",)

    def __init__(self, loss, target):
        super().__init__(loss, target)

    def records(self, part, batch, model, outputs):
        labels_NC = batch.targets["labels"]
        loss_N = to_host(self.loss.per_row(outputs["logits"].cpu(), labels_NC))
        return [{"label": label, "loss": loss} for label, loss in zip(labels_NC.tolist(), loss_N.tolist(), strict=True)]

    def scorer(self, decided):
        return MeanLoss()
'''
OWN = ("data=files", "data.train=rows.jsonl", "data.dev=rows.jsonl", "data.fields={text: text, label: label}",
       "trainer.ema_decay=0", *MODEL, *NO_DROPOUT, *PLAIN)  # fmt: skip
SHARES = {"task": "ownparts.soft.Apportion", "loss": "ownparts.soft.CrossEntropy"}
ROWS = 60


def text(rng: random.Random) -> str:
    """Return one of seven words again and again, so that a masked one follows from the others."""
    return " ".join([rng.choice("abcdefg")] * rng.randrange(4, 12))


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write the package with its choices, and rows; returns their folder, which is the current one."""
    files = {"ownparts/__init__.py": "", "ownparts/soft.py": SOFT}
    rng = random.Random(0)
    rows = [{"text": text(rng), "label": [round(rng.random(), 3) for _ in range(3)]} for _ in range(ROWS)]
    files["rows.jsonl"] = "".join(json.dumps(row) + "\n" for row in rows)
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    for name in [name for name in sys.modules if name.partition(".")[0] == "ownparts"]:
        monkeypatch.delitem(sys.modules, name)
    importlib.invalidate_caches()
    return tmp_path


def run(name: str, parts: dict[str, str], *overrides: str) -> None:
    """Train in the folder `name`, with these classes of the package as task and loss."""
    config = composed(*OWN, *overrides)
    own = {group: {"_target_": target} for group, target in parts.items()}
    start(replace(config, trusted_packages=["ownparts"], **own), Path(name).absolute())


def rows_of(package: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (package / "rows.jsonl").read_text().splitlines()]


def kept(folder: Path) -> list[dict[str, Any]]:
    """Return the records that a run kept of its dev rows."""
    return list(predictions_of(folder, "dev"))


def test_a_run_learns_from_lists_of_floats_which_come_back_as_they_were_written(package: Path) -> None:
    run("run", SHARES, "trainer.max_duration=3ep")
    found = kept(package / "run")
    rows = rows_of(package)
    assert [record["label"] for record in found] == [np.array(row["label"], np.float32).tolist() for row in rows]
    loaded = nlu.load(package / "run", device="cpu")
    scores = loaded.evaluate(rows)
    assert scores["loss"] == pytest.approx(sum(record["loss"] for record in found) / ROWS, rel=1e-6)
    rows[1]["label"][0] = 1e300
    with pytest.raises(DataError, match=r"^row 2: Shares reads 1e\+300 as the target, but its column\(\) is of type"):
        loaded.evaluate(rows)


def test_a_target_that_its_column_cannot_hold_is_named_by_file_and_row(package: Path) -> None:
    with (package / "rows.jsonl").open("a") as file:
        file.write('{"text": "a b", "label": [0.5, 1e39, 0]}\n')
    with pytest.raises(DataError, match=rf"rows\.jsonl:{ROWS + 1}: Shares reads 1e\+39 as the target, but its column"):
        run("run", SHARES)
