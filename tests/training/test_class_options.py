"""Runs whose weights are chosen by scores of some classes, with a class for unsure predictions."""

import json
from pathlib import Path

import numpy as np
import pytest

from tests.inference.runs import evaluate, kept, predict
from tests.training.in_process import TINY, train
from tests.training.kinds import Row, read, write


def rows(count: int, seed: int) -> list[Row]:
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(count):
        first, second = (" ".join(rng.choice(list("abcd"), 3)) for _ in range(2))
        made.append({"text_a": first, "text_b": second, "label": str(int(first[0] == second[0]))})
    return made


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("queries")
    for name, count in (("train", 60), ("dev", 30), ("test", 18)):
        write(folder / f"{name}.jsonl", rows(count, len(name)))
    files = [f"data.{name}={folder}/{name}.jsonl" for name in ("train", "dev", "test")]
    train(
        *TINY, "task=match", "data=files", *files,
        "task.chosen_classes=['1']", "task.threshold={0: 0.55}", "task.fallback='1'",
        "trainer.major_metric=f1_chosen", "trainer.max_duration=6st", "trainer.eval_interval=2st",
        f"hydra.run.dir={folder}/run",
    )  # fmt: skip
    return folder / "run"


def test_the_weights_with_the_best_score_of_chosen_classes_are_kept(run: Path) -> None:
    found = json.loads((run / "result.json").read_text())
    assert (found["best"]["set"], found["best"]["metric"]) == ("dev", "f1_chosen")
    for name in ("dev", "test"):
        records = kept(run, name)
        metrics = found["metrics"][name]
        assert metrics["f1_chosen"] > 0, "or the scores show nothing"
        right = sum(one["prediction"] == one["label"] == "1" for one in records)
        both = sum(one["prediction"] == "1" for one in records) + sum(one["label"] == "1" for one in records)
        assert metrics["f1_chosen"] == pytest.approx(2 * right / both if both else 0.0)
        for one in records:
            assert one["prediction"] == ("0" if one["probabilities"]["0"] >= 0.55 else "1")
            assert one["probability"] == one["probabilities"][one["prediction"]]


def test_rows_that_a_run_did_not_see_are_scored_and_predicted_by_its_rules(run: Path, tmp_path: Path) -> None:
    write(tmp_path / "new.jsonl", new := rows(24, 9))
    order = (f"run={run}", f"data.test={tmp_path}/new.jsonl", "resamples=20")
    evaluate(*order, f"out={tmp_path}/of_run")
    of_run = json.loads((tmp_path / "of_run/result.json").read_text())["metrics"]["test"]
    write(tmp_path / "bare.jsonl", [{name: row[name] for name in ("text_a", "text_b")} for row in new])
    predict(f"run={run}", f"input={tmp_path}/bare.jsonl", f"output={tmp_path}/found.jsonl", "scores=true")
    predicted = [row["prediction"] for row in read(tmp_path / "found.jsonl")]
    records = kept(tmp_path / "of_run", "test")
    assert predicted == [one["prediction"] for one in records]
    right = sum(one["prediction"] == one["label"] == "1" for one in records)
    assert of_run["recall_chosen"] == pytest.approx(right / sum(one["label"] == "1" for one in records))


def test_thresholds_that_dev_chooses_hold_for_test_and_for_new_rows(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    words = {"book": ["table", "room"], "play": ["song", "album"], "oos": ["joke", "stocks"]}
    for name, count in (("train", 90), ("dev", 45), ("test", 45)):
        labels = rng.choice(list(words), count)
        texts = [f"can you {rng.choice(words[label] if rng.random() < 0.6 else words['oos'])}" for label in labels]
        made: list[Row] = [{"text": t, "label": str(label)} for t, label in zip(texts, labels, strict=True)]
        write(tmp_path / f"{name}.jsonl", made)
    files = [f"data.{name}={tmp_path}/{name}.jsonl" for name in ("train", "dev", "test")]
    options = ["task.threshold=auto", "task.fallback=oos", "task.threshold_precision=0.8"]
    run = tmp_path / "run"
    train(*TINY, "data=files", *files, *options, "trainer.max_duration=60st", f"hydra.run.dir={run}")
    metrics = json.loads((run / "result.json").read_text())["metrics"]
    chosen = {name: metrics["dev"][f"threshold/{name}"] for name in words}
    assert chosen["oos"] == 0 and max(chosen.values()) > 0
    assert all(metrics["test"][f"threshold/{name}"] == value for name, value in chosen.items())
    found = kept(run, "test")
    for one in found:
        best = max(one["probabilities"], key=one["probabilities"].get)
        assert one["prediction"] == (best if one["probabilities"][best] >= chosen[best] else "oos")
    right = [one["prediction"] == one["label"] for one in found]
    assert metrics["test"]["accuracy"] == pytest.approx(np.mean(right))
    texts = [row["text"] for row in read(tmp_path / "test.jsonl")]
    write(tmp_path / "bare.jsonl", [{"text": text} for text in texts])
    predict(f"run={run}", f"input={tmp_path}/bare.jsonl", f"output={tmp_path}/found.jsonl")
    predicted = [row["prediction"] for row in read(tmp_path / "found.jsonl")]
    assert predicted == [one["prediction"] for one in found]
