"""Whole runs through the command: every task, every kind of set, stopping, patience, records."""

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from nlu.reports.runs import read_run
from nlu.runs.predictions import Record, predictions_of
from nlu.runs.records import read_rows
from tests.training.in_process import train
from tests.training.runs import QUICK, REPOSITORY, SAME_THREADS, TINY, files, result, run, weights


def test_a_run_leaves_every_record_that_was_promised(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    printed = run(
        *TINY, *QUICK, *files(tmp_path), "trainer.eval_interval=5st", "trainer.keep_best=2", "trainer.log_interval=2st",
        f"hydra.run.dir={run_dir}", figures=True,
    )  # fmt: skip
    for name in (
        "train.tsv", "valid.tsv", "log.txt", "config.yaml", "provenance.json", "code.zip", "overrides", "data.json",
        "plots/loss.png", "plots/metric.png", "plots/lr.png", "plots/gnorm.png", "plots/lengths.png",
        "checkpoints/last/model.safetensors", "checkpoints/last/optimizer.safetensors",
        "checkpoints/best-1/model.safetensors", "checkpoints/best-1/config.json", "checkpoints/best-1/tokenizer.json",
    ):  # fmt: skip
        assert (run_dir / name).stat().st_size > 0, name
    found = result(run_dir)
    assert found["steps"] == 10 and found["examples"] == 80
    assert found["examples_per_s"] > 0 and found["real_tokens_per_s"] > found["examples_per_s"]
    assert found["metrics"]["dev"]["accuracy"] == found["best"]["value"]
    assert [row["step"] for row in read_rows(run_dir / "train.tsv")] == [2, 4, 6, 8, 10]
    assert {row["step"] for row in read_rows(run_dir / "valid.tsv")} == {5, 10}
    assert len(list(predictions_of(run_dir, "dev"))) == 31
    names = zipfile.ZipFile(run_dir / "code.zip").namelist()
    assert read_run(run_dir).config["choices.model"] == "bert_tiny"
    assert "nlu/commands/train.py" in names and not [name for name in names if name.startswith(("outputs", "data"))]
    assert "plots/loss.png" in printed and "accuracy" in printed


@pytest.mark.thorough
def test_the_overrides_file_reproduces_the_run(tmp_path: Path) -> None:
    run(*TINY, *QUICK, *files(tmp_path), f"hydra.run.dir={tmp_path}/a")
    command = f"xargs -a {tmp_path}/a/overrides {sys.executable} -m nlu.train hydra.run.dir={tmp_path}/b"
    subprocess.run(command, shell=True, check=True, cwd=REPOSITORY, capture_output=True, env=SAME_THREADS)
    assert (tmp_path / "a" / "config.yaml").read_text() == (tmp_path / "b" / "config.yaml").read_text()
    assert weights(tmp_path / "a") == weights(tmp_path / "b")


def auc_of(rows: list[Record], positive: str) -> float:
    """The share of pairs of a positive and another row in which the positive one has the higher probability."""
    sure = [row["probability"] if row["prediction"] == positive else 1 - row["probability"] for row in rows]
    high = [value for value, row in zip(sure, rows, strict=True) if row["label"] == positive]
    low = [value for value, row in zip(sure, rows, strict=True) if row["label"] != positive]
    return sum((a > b) + (a == b) / 2 for a in high for b in low) / (len(high) * len(low))


def test_pairs_several_named_sets_and_a_test_set_are_scored(tmp_path: Path) -> None:
    for name, rows in (("train", 50), ("easy", 20), ("hard", 21), ("test", 11)):
        # The examples of hard contradict the others, so its best step differs from theirs.
        lines = [
            json.dumps({"a": f"w{i} w{i % 7} w3", "b": f"w{i % 5} w2", "same": (i + (name == "hard")) % 2})
            for i in range(rows)
        ]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
    options = (
        "task=match", "data=files", f"data.train={tmp_path}/train.jsonl", f"data.test={tmp_path}/test.jsonl",
        f"data.dev={{easy: {tmp_path}/easy.jsonl, hard: {tmp_path}/hard.jsonl}}", "trainer.eval_interval=2st",
        "data.fields={text_a: a, text_b: b, label: same}", "trainer.major_metric=auc",
    )  # fmt: skip
    for number, model in enumerate([TINY, ("model=textcnn", "model.hidden_size=16", "model.embedding_size=8")]):
        run_dir = tmp_path / str(number)
        train(*model, *QUICK, *options, f"hydra.run.dir={run_dir}")
        found = result(run_dir)
        assert list(found["metrics"]) == ["easy", "hard", "test"]
        values = {
            (row["step"], row["set"]): row["value"]
            for row in read_rows(run_dir / "valid.tsv")
            if row["metric"] == "auc"
        }
        best = max((2, 4, 6, 8, 10), key=lambda step: (values[step, "easy"], -step))
        assert (found["best"]["set"], found["best"]["metric"]) == ("easy", "auc")
        assert (found["best"]["step"], found["best"]["value"]) == (best, values[best, "easy"])
        assert values[best, "easy"] != values[best, "hard"] == found["metrics"]["hard"]["auc"]
        for name in ("easy", "hard", "test"):
            expected = auc_of(list(predictions_of(run_dir, name)), "1")
            assert found["metrics"][name]["auc"] == pytest.approx(expected, abs=1e-6)
        assert len(list(predictions_of(run_dir, "test"))) == 11
