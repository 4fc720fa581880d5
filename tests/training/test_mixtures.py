"""Runs over several sets, each with a separate task and head: what a step is, what is scored, and continuing."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from nlu.config.errors import UserError
from nlu.runs.predictions import kept_sets, predictions_of
from nlu.runs.records import read_rows
from tests.training.in_process import (
    STANDING_STILL,
    composed,
    scores,
    train,
)
from tests.training.mixtures import CLASSES, PAIRS, TAGS, TAGS_OF_CRF, mixture, one_set
from tests.training.runs import result
from tests.training.test_kinds_killed import killed_in_each_step

MEMBERS = {"first": CLASSES, "second": TAGS, "third": PAIRS}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run over three sets, in `run`."""
    folder = tmp_path_factory.mktemp("mixture")
    train(
        *mixture(folder, MEMBERS, "trainer.max_duration=2ep", "trainer.eval_interval=3st", "trainer.keep_best=2"),
        f"hydra.run.dir={folder}/run",
    )
    return folder


def test_one_run_trains_all_sets_and_scores_each_by_its_own_task(whole: Path) -> None:
    run_dir, rows = whole / "run", read_rows(whole / "run" / "valid.tsv")
    by_set: dict[Any, set[Any]] = {}
    for row in rows:
        by_set.setdefault(row["set"], set()).add(row["metric"])
    assert list(by_set) == ["dev", "dev-first", "dev-second", "dev-third"]
    assert by_set["dev"] == {"mean"}
    assert {"accuracy", "f1", "auc"} <= by_set["dev-first"]
    assert "span_f1" in by_set["dev-second"] and "accuracy" not in by_set["dev-second"]
    assert "threshold" in by_set["dev-third"]
    assert kept_sets(run_dir) == ["dev-first", "dev-second", "dev-third", "test-second", "test-third"]
    kinds = {name: predictions_of(run_dir, name).header["kind"].rpartition(".")[2] for name in kept_sets(run_dir)}
    assert kinds == {
        "dev-first": "ClassKind", "dev-second": "SpanKind", "dev-third": "ClassBySimilarityKind",
        "test-second": "SpanKind", "test-third": "ClassBySimilarityKind",
    }  # fmt: skip
    found = result(run_dir)["metrics"]
    assert {"test-second", "test-third"} < found.keys()
    # The test set is scored at the threshold of the dev set of the same head.
    assert found["test-third"]["threshold"] == found["dev-third"]["threshold"]


def test_the_best_evaluation_is_that_of_the_highest_mean_of_the_tasks_own_metrics(whole: Path) -> None:
    run_dir = whole / "run"
    own = {"dev-first": "accuracy", "dev-second": "span_f1", "dev-third": "accuracy"}
    by_set = [scores(run_dir, name, metric) for name, metric in own.items()]
    means = {step: sum(values[step] for values in by_set) / 3 for step in by_set[0]}
    assert scores(run_dir, "dev", "mean") == pytest.approx(means, rel=1e-15)
    best = result(run_dir)["best"]
    assert (best["set"], best["metric"], best["value"]) == ("dev", "mean", max(scores(run_dir, "dev", "mean").values()))


def test_an_epoch_sees_every_example_of_every_set_once(whole: Path) -> None:
    rows = read_rows(whole / "run" / "train.tsv")
    assert rows[-1]["examples"] == 2 * (27 + 13 + 21)
    assert rows[-1]["epoch"] == 2
    assert len(rows) == result(whole / "run")["steps"] == 2 * (4 + 2 + 3)


def test_a_row_of_the_table_has_the_loss_of_the_set_that_its_step_was_taken_from(whole: Path) -> None:
    rows = read_rows(whole / "run" / "train.tsv")
    for row in rows:
        (own,) = [value for name in MEMBERS if (value := row[f"loss_{name}"]) not in (None, "")]
        assert own == pytest.approx(row["loss"], rel=1e-12)


@pytest.mark.parametrize("member", [TAGS_OF_CRF, PAIRS])
def test_a_mixture_of_one_set_is_the_plain_run_to_the_bit(member: Any, tmp_path: Path) -> None:
    options = ("trainer.max_duration=2ep", "trainer.eval_interval=3st", "trainer.accumulation=2")
    train(*mixture(tmp_path, {"only": member}, *options), f"hydra.run.dir={tmp_path}/mixed")
    train(*one_set(tmp_path, "only", member, *options), f"hydra.run.dir={tmp_path}/plain")
    for file in ("last/model", "last/average", "best-1/model"):
        mixed, plain = (
            load_file(tmp_path / name / "checkpoints" / f"{file}.safetensors") for name in ("mixed", "plain")
        )
        mixed = {name.replace("head.only.", "head."): value for name, value in mixed.items()}
        assert mixed.keys() == plain.keys()
        assert all(np.array_equal(mixed[name], plain[name]) for name in plain)
    metrics = result(tmp_path / "mixed")["metrics"]
    plain_metrics = result(tmp_path / "plain")["metrics"]
    assert {name: metrics[f"{name}-only"] for name in plain_metrics} == plain_metrics
    for name in plain_metrics:
        records = [
            list(predictions_of(tmp_path / run, own)) for run, own in (("mixed", f"{name}-only"), ("plain", name))
        ]
        assert records[0] == records[1]


def test_the_weight_of_a_task_multiplies_the_loss_of_its_steps_only(tmp_path: Path) -> None:
    options = (*STANDING_STILL, "trainer.max_duration=6st", "trainer.eval_interval=0", "trainer.clip_norm=0")
    for name, more in (("plain", ()), ("weighted", ("task.weights={second: 3}",))):
        train(*mixture(tmp_path, MEMBERS, *options, *more), f"hydra.run.dir={tmp_path}/{name}")
    rows = [read_rows(tmp_path / name / "train.tsv") for name in ("plain", "weighted")]
    assert {row["loss_second"] in (None, "") for row in rows[0]} == {True, False}
    for plain, weighted in zip(*rows, strict=True):
        factor = 1 if plain["loss_second"] in (None, "") else 3
        assert weighted["loss"] == pytest.approx(factor * plain["loss"], rel=1e-6)
        assert weighted["gnorm"] == pytest.approx(factor * plain["gnorm"], rel=1e-5)
        assert [weighted[f"loss_{name}"] for name in MEMBERS] == [plain[f"loss_{name}"] for name in MEMBERS]


@pytest.mark.parametrize(("alpha", "shares"), [(0, (6, 6, 6)), (1, (10, 5, 3))])
def test_alpha_decides_how_many_steps_each_set_has(alpha: int, shares: tuple[int, ...], tmp_path: Path) -> None:
    members = {
        name: replace(CLASSES, train_rows=8 * steps, dev_rows=3) for name, steps in (("a", 10), ("b", 5), ("c", 3))
    }
    train(
        *mixture(tmp_path, members, f"data.alpha={alpha}", "trainer.max_duration=1ep", "trainer.eval_interval=0"),
        f"hydra.run.dir={tmp_path}/run",
    )
    rows = read_rows(tmp_path / "run" / "train.tsv")
    assert tuple(sum(row[f"loss_{name}"] not in (None, "") for row in rows) for name in members) == shares


def test_a_killed_run_continues_to_the_same_bytes(tmp_path: Path) -> None:
    options = (
        "method=fgm", "trainer.batch_size=4", "trainer.accumulation=2", "trainer.max_duration=5st",
        "trainer.eval_interval=2st", "trainer.save_interval=1st", "trainer.log_interval=3st", "trainer.keep_best=2",
        "resume=auto", "data.alpha=0.5",
    )  # fmt: skip
    killed_in_each_step(composed(*mixture(tmp_path, MEMBERS, *options)), tmp_path, 5, passes=2)


PROBLEMS = {
    "a task for every set": (("~task.tasks.second",), "task.tasks has no second, a set of data.sets"),
    "folds": (("folds.count=3",), "folds.count is 3, but a mixture cannot be divided into folds"),
    "file of a set": (("data.sets.first.train=nowhere.csv",), "data.sets.first.train is 'nowhere.csv', which does"),
    "loss of a task": (("+loss@task.losses.first=mse",), "task.losses.first is mse, which reads"),
    "one task": (("task=classify",), "data is mixture, but task is not composite"),
}  # fmt: skip


@pytest.mark.parametrize("problem", PROBLEMS)
def test_a_setting_that_does_not_fit_is_refused_with_the_key_of_its_set(problem: str, tmp_path: Path) -> None:
    more, said = PROBLEMS[problem]
    with pytest.raises(UserError) as refused:
        composed(*mixture(tmp_path, MEMBERS, *more))
    assert any(text.startswith(said) or said in text for text in refused.value.problems), refused.value.problems
