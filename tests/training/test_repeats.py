"""Folds and seeds of one command: every part an ordinary run, the whole continued to the same bytes, and summed up."""

import json
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nlu.metrics.repeats import join_folds
from nlu.runs.predictions import Predictions, predictions_of
from nlu.training.experiment import RunningMean, repeats_of
from tests.training.in_process import composed, train
from tests.training.kinds import PRETRAINING, TRAIN_ROWS
from tests.training.runs import QUICK, TINY, files, result, run, weights, write_set

OPTIONS = (*TINY, *QUICK, "trainer.max_duration=12st", "trainer.eval_interval=6st")
ROWS = 61


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """Training rows, a separate dev set, which folds leave out, and a test set."""
    folder = tmp_path_factory.mktemp("data")
    write_set(folder / "test.tsv", 13, seed=2)
    return *files(folder, train_rows=ROWS), f"data.test={folder}/test.tsv"


@pytest.fixture(scope="module")
def three_folds(data: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The run folder of `folds=3`, and what the command printed."""
    run_dir = tmp_path_factory.mktemp("folds") / "run"
    return run_dir, run(*OPTIONS, *data, "folds=3", f"hydra.run.dir={run_dir}")


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [dict(record) for record in Predictions(path)]


def results_of_parts(run_dir: Path, names: list[str]) -> list[bytes]:
    """What of each part must not depend on how it was run."""
    return [
        content
        for name in names
        for content in (
            weights(run_dir / name), weights(run_dir / name, "best-1"), (run_dir / name / "valid.tsv").read_bytes(),
            predictions_of(run_dir / name, "dev").path.read_bytes(),
        )
    ]  # fmt: skip


FOLDS = ["fold-0", "fold-1", "fold-2"]


@pytest.mark.thorough
def test_every_fold_is_a_whole_run_and_every_training_row_is_held_out_once(three_folds: tuple[Path, str]) -> None:
    run_dir, _ = three_folds
    for number, name in enumerate(FOLDS):
        for record in ("config.yaml", "provenance.json", "code.zip", "plots/loss.png", "predictions/test.jsonl"):
            assert (run_dir / name / record).stat().st_size > 0
        found = result(run_dir / name)
        assert (found["fold"], found["folds"], found["seed"]) == (number, 3, 1)
        assert list(found["metrics"]) == ["dev", "test"]
        assert f"fold={number}" in (run_dir / name / "overrides").read_text()
        facts = json.loads((run_dir / name / "data.json").read_text())["sets"]
        assert facts["dev"]["examples"] in (20, 21) and facts["dev"]["in_train"] == 0
        assert facts["dev"]["examples"] + facts["train"]["examples"] == ROWS
    for record in ("config.yaml", "provenance.json", "code.zip", "overrides"):
        assert (run_dir / record).stat().st_size > 0, "what was asked for stands above the folds"
    assert "folds.count=3" in (run_dir / "overrides").read_text() and "fold=" not in (run_dir / "overrides").read_text()
    log = (run_dir / "log.txt").read_text()
    for name in FOLDS:
        best = result(run_dir / name)["best"]
        assert f"{name}: dev accuracy {best['value']:.4f} at step {best['step']}\n" in log
    joined = rows_of(run_dir / "predictions" / "out-of-fold.jsonl")
    assert [(row["id"], row["row"]) for row in joined] == [(place, place + 1) for place in range(ROWS)]
    held_out = {
        row["id"]: row | {"fold": number}
        for number, name in enumerate(FOLDS)
        for row in list(predictions_of(run_dir / name, "dev"))
    }
    assert joined == [held_out[place] for place in range(ROWS)]


def test_the_result_is_mean_and_deviation_over_folds_and_the_score_of_all_rows(three_folds: tuple[Path, str]) -> None:
    run_dir, printed = three_folds
    found, parts = result(run_dir), [result(run_dir / name) for name in FOLDS]
    for name in ("dev", "test"):
        for metric in ("accuracy", "loss"):
            values = [part["metrics"][name][metric] for part in parts]
            assert found["metrics"][name][metric] == pytest.approx(statistics.mean(values))
            assert found["sd"][name][metric] == pytest.approx(statistics.stdev(values))
    assert found["best"]["value"] == pytest.approx(statistics.mean(part["best"]["value"] for part in parts))
    assert [part["name"] for part in found["parts"]] == FOLDS
    assert found["examples"] == sum(part["examples"] for part in parts)
    rows = rows_of(run_dir / "predictions" / "out-of-fold.jsonl")
    joined = found["out_of_fold"]["1"]
    assert joined["accuracy"] == pytest.approx(np.mean([row["label"] == row["prediction"] for row in rows]))
    sizes = [len(list(predictions_of(run_dir / name, "dev"))) for name in FOLDS]
    losses = [part["metrics"]["dev"]["loss"] for part in parts]
    assert joined["loss"] == pytest.approx(np.average(losses, weights=sizes))
    assert set(joined) == set(parts[0]["metrics"]["dev"])
    for word in (*FOLDS, "mean", "sd", "joined folds", f"{joined['accuracy']:.4f}"):
        assert word in printed


@pytest.mark.thorough
def test_folds_spread_over_jobs_are_the_same_runs_and_join_the_same(
    data: tuple[str, ...], three_folds: tuple[Path, str], tmp_path: Path
) -> None:
    run("--multirun", *OPTIONS, *data, "folds=3", "fold=0,1,2", f"hydra.sweep.dir={tmp_path}/sweep")
    jobs = ["0", "1", "2"]
    assert results_of_parts(tmp_path / "sweep", jobs) == results_of_parts(three_folds[0], FOLDS)
    configs = [
        [(folder / name / "config.yaml").read_text() for name in names]
        for folder, names in ((tmp_path / "sweep", jobs), (three_folds[0], FOLDS))
    ]
    assert configs[0] == configs[1]
    joined = join_folds([tmp_path / "sweep" / job for job in reversed(jobs)])
    apart = Predictions(three_folds[0] / "predictions" / "out-of-fold.jsonl")
    assert (joined.header, list(joined.records())) == (apart.header, list(apart))


def test_several_seeds_repeat_a_run_and_each_equals_the_run_of_its_seed(data: tuple[str, ...], tmp_path: Path) -> None:
    train(*OPTIONS, *data, "seeds=2", f"hydra.run.dir={tmp_path}/repeated")
    train(*OPTIONS, *data, "seed=2", f"hydra.run.dir={tmp_path}/single")
    assert weights(tmp_path / "repeated" / "seed-2") == weights(tmp_path / "single")
    found = result(tmp_path / "repeated")
    assert found["out_of_fold"] is None and not (tmp_path / "repeated" / "predictions").exists()
    assert found["best"]["sd"] is not None and (found["seed"], found["seeds"]) == (1, 2)


def test_a_run_that_its_data_refuse_leaves_no_folder(data: tuple[str, ...], tmp_path: Path) -> None:
    message = run(*OPTIONS, *data, f"folds={ROWS + 1}", f"hydra.run.dir={tmp_path}/run", status=2)
    assert f"folds.count is {ROWS + 1}, but the training set has" in message and "Traceback" not in message
    assert not (tmp_path / "run").exists()


def test_a_group_is_never_on_both_sides(tmp_path: Path) -> None:
    lines = ["shop,text,label", *(f"shop {i % 7},text {i} of it,{'ab'[i % 2]}" for i in range(56))]
    (tmp_path / "train.csv").write_text("\n".join(lines) + "\n")
    options = (*OPTIONS, "data=files", f"data.train={tmp_path}/train.csv", "data.fields={text: text, label: label}")
    train(*options, "folds.count=3", "folds.group_by=shop", f"hydra.run.dir={tmp_path}/run")
    rows = rows_of(tmp_path / "run" / "predictions" / "out-of-fold.jsonl")
    folds_of_shop: dict[int, set[int]] = {}
    for row in rows:
        folds_of_shop.setdefault(row["id"] % 7, set()).add(row["fold"])
    assert len(rows) == 56 and all(len(folds) == 1 for folds in folds_of_shop.values())


def test_a_trial_gets_the_mean_over_the_best_of_ended_folds_and_the_running_one() -> None:
    heard: list[tuple[int, float]] = []

    class Listener:
        def report(self, examples: int, value: float) -> bool:
            heard.append((examples, value))
            return value < 0.5

    def ended(last: float, best: float) -> dict[str, Any]:
        return {"best": {"set": "dev", "metric": "f1", "value": best}, "last": {"dev": {"f1": last}}, "examples": 100}

    mean = RunningMean(Listener())
    assert not mean.report(50, 0.8)
    mean.add(ended(last=0.6, best=0.8))
    assert not mean.report(50, 0.5)
    # Of a run that scored a sample while it trained, the score on the whole set counts once it has ended.
    mean.add(ended(last=0.9, best=0.5) | {"sample": {"rows": {"dev": 10}, "best": 0.4, "last": 0.2}})
    assert mean.report(10, 0.1) and mean.asked_to_prune
    assert heard == [(50, 0.8), (150, pytest.approx(0.65)), (210, pytest.approx((0.8 + 0.5 + 0.1) / 3))]


def test_a_trial_of_folds_is_paused_within_the_first_one_and_between_them() -> None:
    asked: list[object] = []

    class Listener:
        def report(self, examples: int, value: float) -> bool:
            return False

        def pauses(self, examples: int) -> bool:
            asked.append(examples)
            return True

        def end_part(self, examples: int, value: float) -> None:
            asked.append(f"end {examples} {value:.4g}")

    def ended(best: float) -> dict[str, Any]:
        return {"best": {"set": "dev", "metric": "f1", "value": best}, "last": {"dev": {"f1": 0.1}}, "examples": 100}

    mean = RunningMean(Listener())
    assert mean.pauses(50)
    mean.add(ended(0.8))
    assert mean.pauses_between() and not mean.pauses(50)
    mean.add(ended(0.7))
    assert mean.pauses_between()
    assert asked == [50, "end 100 0.8", 100, "end 200 0.75", 200]


@pytest.mark.parametrize(
    ("folds", "fold", "seeds", "names"),
    [
        (None, None, 1, []), (5, 2, 1, []), (2, None, 1, ["fold-0", "fold-1"]), (None, None, 2, ["seed-3", "seed-4"]),
        (4, 1, 2, ["seed-3", "seed-4"]),
        (2, None, 2, ["seed-3-fold-0", "seed-3-fold-1", "seed-4-fold-0", "seed-4-fold-1"]),
    ],
)  # fmt: skip
def test_a_configuration_has_a_part_for_each_fold_of_each_seed(
    folds: int | None, fold: int | None, seeds: int, names: list[str]
) -> None:
    written = [f"folds.count={'null' if folds is None else folds}", f"fold={'null' if fold is None else fold}"]
    parts = repeats_of(composed("seed=3", f"seeds={seeds}", *written), ["a=1"])
    assert [part.name for part in parts] == names
    assert len({(part.config.seed, part.config.fold) for part in parts}) == len(names)
    for part in parts:
        own = ["a=1", f"seed={part.config.seed}", "seeds=1", f"fold={'null' if fold is folds else part.config.fold}"]
        assert part.overrides == own, "what makes the part by itself"
    assert all(repeats_of(part.config, part.overrides) == [] for part in parts), "a part is a run by itself"


@pytest.mark.parametrize("kind", ["mlm", "structbert"])
def test_folds_of_a_task_without_labels_end_with_a_result(kind: str, tmp_path: Path) -> None:
    options = ("folds.count=2", "trainer.max_duration=2st", "trainer.eval_interval=0")
    train(*PRETRAINING[kind].overrides(tmp_path), "data.dev=null", *options, f"hydra.run.dir={tmp_path}/run")
    found = result(tmp_path / "run")
    records = rows_of(predictions_of(tmp_path / "run", "out-of-fold").path)
    assert len(records) == len({one["id"] for one in records}) == TRAIN_ROWS
    joined = found["out_of_fold"]["1"]
    if kind == "structbert":
        assert joined == {}, "its loss has weights that no record keeps"
    else:
        masked = sum(one["masked"] for one in records)
        assert joined["accuracy"] == pytest.approx(sum(one["right"] for one in records) / masked)
        assert joined["loss"] == pytest.approx(sum(one["loss"] for one in records) / masked)
