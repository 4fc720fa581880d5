"""A student learns from the logits that nlu.predict writes of a teacher; single texts and pairs."""

import json
import math
from pathlib import Path

import pytest

import nlu
from tests.few import first
from tests.inference.runs import evaluate, predict
from tests.training.in_process import NO_DROPOUT, PLAIN, train
from tests.training.kinds import KINDS, Kind, read
from tests.training.runs import result

LEARNING = (
    *NO_DROPOUT,
    "model.hidden_size=16",
    "optimizer.lr=1e-2",
    "trainer.max_duration=12ep",
    "trainer.ema_decay=0",
)


@pytest.fixture(scope="module", params=first(1, ["classify", "match"]))
def taught(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Kind, Path]:
    """Train a teacher, and let it write the logits of its rows: of training as csv, of dev as jsonl."""
    folder = tmp_path_factory.mktemp("taught")
    kind = KINDS[request.param]
    train(*kind.overrides(folder, train_rows=60, dev_rows=30), *LEARNING, f"hydra.run.dir={folder}/teacher")
    for name, suffix in (("train", "csv"), ("dev", "jsonl")):
        predict(f"run={folder}/teacher", f"input={folder}/{name}.jsonl", f"output={folder}/taught-{name}.{suffix}",
                "logits=true")  # fmt: skip
    return kind, folder


def student(kind: Kind, folder: Path, *overrides: str) -> tuple[str, ...]:
    labels = nlu.load(folder / "teacher", device="cpu").labels
    return (*kind.model, *PLAIN, "data=files", "task=soft", f"data.train={folder}/taught-train.csv",
            f"data.dev={folder}/taught-dev.jsonl", "data.fields=null", f"data.labels={json.dumps(labels)}",
            *LEARNING, *overrides)  # fmt: skip


def test_a_student_is_scored_on_rows_that_have_only_labels(taught: tuple[Kind, Path], tmp_path: Path) -> None:
    kind, folder = taught
    train(*student(kind, folder, "trainer.max_duration=2ep"), f"hydra.run.dir={tmp_path}/run")
    evaluate(f"run={tmp_path}/run", f"data.test={folder}/dev.jsonl", f"out={tmp_path}/scores")
    metrics = json.loads((tmp_path / "scores/result.json").read_text())["metrics"]["test"]
    dev = result(tmp_path / "run")["metrics"]["dev"]
    assert metrics["accuracy"] == dev["accuracy"] and math.isnan(metrics["agreement"] or math.nan)
    found = [
        record for record in read(tmp_path / "scores/predictions/test.jsonl") if "loss" in record and "id" in record
    ]
    expected = [-math.log(record["probabilities"][record["label"]]) for record in found]
    assert metrics["loss"] == pytest.approx(sum(expected) / len(expected), rel=1e-5)


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (("data.labels=null",), "data.labels is null, but task=soft reads a number for each label"),
        (("data.fields={text: text, label: label}",), "but task=soft learns from logits or probabilities"),
        (("data.fields={text: text, logits: a, probabilities: b}", "loss=kl"), "names both logits and probabilities"),
        (("data.fields={text: text, probabilities: a}",), "loss compares logits, but data.fields names probabilities"),
        (("data.fields={text: text, logits: a}", "trainer.major_metric=accuracy"), "trainer.major_metric is accuracy"),
        (("loss=cross_entropy",), "which reads classes, tags or words, but task=soft gives soft_classes"),
    ],
)  # fmt: skip
def test_what_does_not_fit_soft_targets_is_refused(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], overrides: tuple[str, ...], said: str
) -> None:
    given = {one.partition("=")[0] for one in overrides}
    own = [one for one in KINDS["soft"].overrides(tmp_path) if one.partition("=")[0] not in given]
    train(*own, *overrides, f"hydra.run.dir={tmp_path}/run", status=2)
    assert said in " ".join(capfd.readouterr().err.split())
    assert not (tmp_path / "run").exists()
