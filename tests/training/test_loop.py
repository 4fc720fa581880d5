"""What the loop decides and counts, over whole small runs, against what follows by hand from their options."""

import json
import math
import os
import signal
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import optuna
import pytest
import torch

from nlu.runs.predictions import predictions_of
from nlu.runs.records import read_rows
from nlu.runs.state import Best
from nlu.search.channel import OUTCOME, TrialChannel
from nlu.search.pruners import PRUNER
from nlu.search.storage.open_study import open_storage, storage_url
from nlu.training import loop
from nlu.training.parts import Training
from tests.training.in_process import (
    STANDING_STILL,
    TINY,
    Killed,
    at_backward,
    column,
    command,
    composed,
    die,
    scores,
    sets,
    start,
    tensors,
    train,
    write_rows,
)
from tests.training.runs import result

SIZES = [8, 8, 8, 3] * 3
"""examples of the steps of a run over 27 rows in batches of 8, which go through them once in four steps"""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    return sets(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def worsening(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """Rows to train on, and the contrary to be scored on: what is learned makes every evaluation worse."""
    data = sets(tmp_path_factory.mktemp("worsening"), inverted_dev=True)
    return *data, "trainer.major_metric=loss", "trainer.eval_interval=1st", "optimizer.lr=1e-2", "trainer.ema_decay=0.1"


def state_of(run_dir: Path) -> dict[str, Any]:
    return json.loads((run_dir / "checkpoints/last/state.json").read_text())["state"]


def test_a_row_of_the_table_is_the_mean_of_its_steps_and_the_last_steps_have_one_too(
    data: tuple[str, ...], tmp_path: Path
) -> None:
    options = (*TINY, *data, "trainer.max_duration=10st", "trainer.clip_norm=0.4")
    for interval in (1, 3):
        train(*options, f"trainer.log_interval={interval}st", f"hydra.run.dir={tmp_path}/{interval}")
    each, third = tmp_path / "1", tmp_path / "3"
    assert column(each, "step") == list(range(1, 11)) and column(third, "step") == [3, 6, 9, 10]
    assert column(each, "examples") == np.cumsum(SIZES)[:10].tolist()
    assert column(third, "examples") == [24, 43, 62, 70]
    loss, gnorm, clipped = (np.array(column(each, name), float) for name in ("loss", "gnorm", "clipped"))
    assert len(set(loss)) == 10 and 0 < clipped.sum() < 10
    assert clipped.tolist() == [float(value > 0.4) for value in gnorm]
    for row, steps in enumerate([[0, 1, 2], [3, 4, 5], [6, 7, 8], [9]]):
        weight = np.array(SIZES)[steps]
        # The loss is of rows, so that a short batch weighs less; norms are of steps.
        assert column(third, "loss")[row] == pytest.approx((loss[steps] @ weight) / weight.sum(), rel=1e-9)
        assert column(third, "gnorm")[row] == pytest.approx(gnorm[steps].mean(), rel=1e-9)
        assert column(third, "clipped")[row] == pytest.approx(clipped[steps].mean())
        assert column(third, "lr")[row] == column(each, "lr")[steps[-1]]


def test_each_update_uses_the_rate_of_its_step(data: tuple[str, ...], tmp_path: Path) -> None:
    train(
        *TINY, *data, "scheduler=one_cycle", "scheduler.warmup=0.5", "scheduler.div_factor=10", "optimizer.lr=1e-3",
        "trainer.max_duration=4st", f"hydra.run.dir={tmp_path}/run",
    )  # fmt: skip
    # From a tenth of the rate up to it in two steps, and down again in two.
    assert column(tmp_path / "run", "lr") == pytest.approx([0.55e-3, 1e-3, 0.55e-3, 0.1e-3])


def test_windows_and_throughput_count_examples_and_tokens_of_finished_steps(
    data: tuple[str, ...], tmp_path: Path
) -> None:
    train_file = next(entry for entry in data if entry.startswith("data.train=")).partition("=")[2]
    words = [line.partition("\t")[0].split() for line in Path(train_file).read_text().splitlines()]
    tokens = sum(len(text) + 2 for text in words)
    options = (*TINY, *data, "trainer.log_interval=100st", "trainer.eval_interval=0")
    # The run ends with a row, which starts a new window; so it is killed in the step after.
    states = {}
    for steps in (3, 4, 6, 8):
        run_dir = tmp_path / str(steps)
        with at_backward(steps + 1, die), pytest.raises(Killed):
            train(*options, "trainer.max_duration=9st", f"trainer.save_interval={steps}st", f"hydra.run.dir={run_dir}")
        states[steps] = state_of(run_dir)
        assert states[steps]["step"] == states[steps]["window"]["steps"] == steps
        assert states[steps]["window"]["examples"] == sum(SIZES[:steps])
        assert states[steps]["window"]["counts"] == {"labels": sum(SIZES[:steps])}
        # The first three steps of a process are not timed.
        assert states[steps]["throughput"]["examples"] == sum(SIZES[3:steps])
    assert states[4]["window"]["real_tokens"] == tokens and states[8]["window"]["real_tokens"] == 2 * tokens
    after_three = states[3]["window"]["real_tokens"]
    assert states[8]["throughput"]["real_tokens"] == 2 * tokens - after_three


def test_only_the_first_set_decides_which_step_is_best(tmp_path: Path) -> None:
    data = sets(tmp_path)
    inverted = next(entry for entry in sets(tmp_path, inverted_dev=True) if entry.startswith("data.dev="))
    contrary = Path(inverted.partition("=")[2]).rename(tmp_path / "contrary.tsv")
    easy = Path(next(entry for entry in sets(tmp_path) if entry.startswith("data.dev=")).partition("=")[2])
    options = (*TINY, *data, "trainer.major_metric=loss", "trainer.eval_interval=2st", "trainer.max_duration=6st",
               "optimizer.lr=1e-2", "trainer.keep_best=2")  # fmt: skip
    for first, second in (("easy", "contrary"), ("contrary", "easy")):
        paths = {"easy": easy, "contrary": contrary}
        run_dir = tmp_path / first
        train(*options, f"data.dev={{{first}: {paths[first]}, {second}: {paths[second]}}}", f"hydra.run.dir={run_dir}")
        of_first, of_second = (scores(run_dir, name, "loss") for name in (first, second))
        order = sorted(of_first, key=lambda step: of_first[step])
        assert order == sorted(of_second, key=lambda step: -of_second[step]), "the sets must disagree to tell anything"
        best = result(run_dir)["best"]
        assert (best["set"], best["step"], best["value"]) == (first, order[0], of_first[order[0]])
        assert result(run_dir)["metrics"][second]["loss"] == of_second[order[0]]
        kept = [json.loads((run_dir / f"checkpoints/best-{place}/score.json").read_text()) for place in (1, 2)]
        assert [score["step"] for score in kept] == order[:2]


def test_an_evaluation_without_a_number_is_never_among_the_best() -> None:
    evaluations = [Best(step, 0, 0.0, value, {}) for step, value in enumerate([math.nan, 0.5, 0.7, math.nan, 0.7])]
    run: Any = SimpleNamespace(higher_is_better=True, trainer=SimpleNamespace(keep_best=4))
    assert [entry.step for entry in Training.ranked(run, evaluations)] == [2, 4, 1]
    run.higher_is_better = False
    assert [entry.step for entry in Training.ranked(run, evaluations)] == [1, 2, 4]


def test_scoring_changes_nothing_about_training(data: tuple[str, ...], tmp_path: Path) -> None:
    options = (*TINY, *data, "model.head_dropout=0.5", "model.dropout=0.5", "trainer.max_duration=4st")
    for interval in ("1st", "0"):
        train(*options, f"trainer.eval_interval={interval}", f"hydra.run.dir={tmp_path}/{interval}")
    often, once = (tensors(tmp_path / interval, "last/model") for interval in ("1st", "0"))
    assert len(scores(tmp_path / "1st", "dev", "loss")) == 4 and len(scores(tmp_path / "0", "dev", "loss")) == 1
    assert all(np.array_equal(often[name], once[name]) for name in once)


def test_a_set_is_scored_without_dropout(data: tuple[str, ...], tmp_path: Path) -> None:
    options = (*TINY, *data, "trainer.ema_decay=0", "trainer.eval_interval=0")
    train(*options, "model.head_dropout=0.5", "trainer.max_duration=4st", f"hydra.run.dir={tmp_path}/dropping")
    from_it = (f"model.pretrained={tmp_path}/dropping/last", "trainer.max_duration=1st", *STANDING_STILL)
    train(*options, *from_it, f"hydra.run.dir={tmp_path}/whole")
    dropping, whole = (result(tmp_path / name)["last"]["dev"]["loss"] for name in ("dropping", "whole"))
    assert dropping == pytest.approx(whole, rel=1e-6)


def test_the_time_of_a_scoring_belongs_to_no_step_and_to_all_starts_of_the_run(
    data: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    late_s, scoring_s, evaluate = 0.0, 1000.0, loop.evaluate

    def evaluate_slowly(run: Training) -> bool:
        nonlocal late_s
        late_s += scoring_s
        return evaluate(run)

    monkeypatch.setattr(loop, "evaluate", evaluate_slowly)
    monkeypatch.setattr(loop, "time", SimpleNamespace(perf_counter=lambda: time.perf_counter() + late_s))
    options = (*TINY, *data, "trainer.eval_interval=1st", "trainer.save_interval=0", "trainer.max_duration=8st",
               "resume=auto")  # fmt: skip
    with at_backward(7, die), pytest.raises(Killed):
        train(*options, f"hydra.run.dir={tmp_path}/run")
    killed = state_of(tmp_path / "run")
    assert killed["step"] == 6 and 6000 < killed["train_s"] < 7000 and 0 < killed["throughput"]["steps_s"] < 1000
    scoring_s = 0.0
    train(*options, f"hydra.run.dir={tmp_path}/run")
    assert 6000 < state_of(tmp_path / "run")["train_s"] < 7000


def test_a_run_stopped_before_its_last_step_saves_that_step_and_ends_on_resume(
    data: tuple[str, ...], tmp_path: Path
) -> None:
    def ask(gradient: torch.Tensor) -> torch.Tensor:
        signal.raise_signal(signal.SIGTERM)
        return gradient

    options = (*TINY, *data, "trainer.max_duration=3st", "resume=auto", f"hydra.run.dir={tmp_path}/run")
    with at_backward(2, ask):
        train(*options, status=75)
    assert state_of(tmp_path / "run")["step"] == 3 and not (tmp_path / "run/result.json").exists()
    log = (tmp_path / "run/log.txt").read_text()
    assert "stopped after step 3, state saved" in log
    assert f"; the command with hydra.run.dir={tmp_path}/run resume=auto continues" in log
    train(*options)
    assert result(tmp_path / "run")["steps"] == 3


def test_patience_ends_a_run_that_gets_worse_however_many_of_the_best_are_kept(
    worsening: tuple[str, ...], tmp_path: Path
) -> None:
    train(
        *TINY, *worsening, "trainer.keep_best=3", "trainer.patience=3st", "trainer.max_duration=12st",
        f"hydra.run.dir={tmp_path}/run",
    )  # fmt: skip
    losses = scores(tmp_path / "run", "dev", "loss")
    assert list(losses.values()) == sorted(losses.values())
    assert result(tmp_path / "run")["steps"] == 4 and result(tmp_path / "run")["best"]["step"] == 1


def test_the_predictions_and_the_test_set_are_those_of_the_best_evaluation(
    worsening: tuple[str, ...], tmp_path: Path
) -> None:
    dev_file = next(entry for entry in worsening if entry.startswith("data.dev=")).partition("=")[2]
    run_dir, given = tmp_path / "run", ("trainer.keep_best=3", "trainer.max_duration=4st")
    train(*TINY, *worsening, f"data.test={dev_file}", *given, f"hydra.run.dir={run_dir}")
    found, kept, losses = result(run_dir), predictions_of(run_dir, "dev"), scores(run_dir, "dev", "loss")
    assert found["best"]["step"] == 1 and found["metrics"]["test"] == found["metrics"]["dev"]
    assert found["metrics"]["test"]["loss"] < found["last"]["dev"]["loss"]
    assert kept.header["kind"] == "nlu.metrics.kinds.ClassKind" and kept.header["step"] == 1 and len(losses) == 4
    mean = np.mean([row["loss"] for row in kept])
    assert mean == pytest.approx(losses[1], rel=1e-6) and mean != pytest.approx(losses[2], rel=1e-3)


def test_the_threshold_of_the_first_set_decides_on_the_others_and_on_the_test_set(tmp_path: Path) -> None:
    data = sets(tmp_path)
    easy = next(entry for entry in data if entry.startswith("data.dev=")).partition("=")[2]
    contrary = write_rows(tmp_path / "contrary.tsv", 21, seed=2, inverted=True)
    own = {}
    for name, path in (("easy", easy), ("contrary", contrary)):
        options = (*TINY, *data, "task=multilabel", "trainer.max_duration=4st")
        train(*options, f"data.dev={{{name}: {path}}}", f"hydra.run.dir={tmp_path}/{name}")
        own[name] = scores(tmp_path / name, name, "threshold")[4]
    assert own["easy"] != own["contrary"], "the sets must disagree to tell anything"
    both = f"data.dev={{easy: {easy}, contrary: {contrary}}}"
    train(*options, both, f"data.test={contrary}", f"hydra.run.dir={tmp_path}/both")
    for name in ("easy", "contrary"):
        assert scores(tmp_path / "both", name, "threshold") == {4: own["easy"]}
    assert result(tmp_path / "both")["metrics"]["test"]["threshold"] == own["easy"]


def test_patience_and_throughput_of_a_killed_run_continue_counting(data: tuple[str, ...], tmp_path: Path) -> None:
    options = (
        *TINY, *data, *STANDING_STILL, "trainer.eval_interval=2st", "trainer.patience=8st", "trainer.save_interval=0",
        "trainer.max_duration=20st", "resume=auto", f"hydra.run.dir={tmp_path}/run",
    )  # fmt: skip
    with at_backward(6, die), pytest.raises(Killed):
        train(*options)
    killed = state_of(tmp_path / "run")
    assert (killed["step"], killed["evaluated_at"], killed["improved_at"]) == (4, 4, 2)
    assert killed["throughput"]["examples"] == SIZES[3] and killed["throughput"]["steps_s"] > 0
    train(*options)
    ended = state_of(tmp_path / "run")
    assert (ended["step"], ended["improved_at"]) == (10, 2)
    # Steps 4 of the first process, 8 to 10 of the second: each leaves out three.
    assert ended["throughput"]["examples"] == SIZES[3] + sum(SIZES[7:10])
    assert ended["throughput"]["steps_s"] > killed["throughput"]["steps_s"] and ended["train_s"] > killed["train_s"]


def test_a_new_best_saves_the_state_too_and_a_killed_run_continues_to_the_same_bytes(
    data: tuple[str, ...], tmp_path: Path
) -> None:
    options = (*TINY, *data, "trainer.major_metric=loss", "trainer.eval_interval=2st", "trainer.save_interval=0",
               "trainer.max_duration=11st", "trainer.keep_best=2", "optimizer.lr=1e-2", "resume=auto")  # fmt: skip
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    with at_backward(10, die), pytest.raises(Killed):
        train(*options, f"hydra.run.dir={killed}")
    saved, by_step = state_of(killed), scores(killed, "dev", "loss")
    best = sorted(by_step, key=lambda step: by_step[step])[:2]
    assert list(by_step) == [2, 4, 6, 8] and best[0] == 8, "the last evaluation is the best"
    assert saved["step"] == 8 and [entry["step"] for entry in saved["best"]] == best
    assert predictions_of(killed, "dev").header["step"] == 8
    for run_dir in (killed, whole):
        train(*options, f"hydra.run.dir={run_dir}")
    for name in ("last/model", "last/optimizer", "last/average", "best-1/model", "best-2/model"):
        files = [run_dir / f"checkpoints/{name}.safetensors" for run_dir in (killed, whole)]
        assert files[0].read_bytes() == files[1].read_bytes(), name
    for name in ("predictions/dev.jsonl", "valid.tsv"):
        assert (killed / name).read_bytes() == (whole / name).read_bytes(), name
    assert sorted(os.listdir(killed / "checkpoints")) == ["best-1", "best-2", "last"]


def outdone(url: str) -> None:
    """Begin a study whose trial 0 does not pass its only rung, since trial 1 has passed it with a better value."""
    study = optuna.create_study(study_name="s", storage=open_storage(url), direction="maximize")
    study.set_user_attr(PRUNER, {"name": "hyperband", "min_resource": 1, "max_resource": 2, "reduction_factor": 3})
    study.ask()
    study.ask()
    # No accuracy reaches two.
    assert not TrialChannel(url, "s", 1).report(1, 2.0)


@pytest.mark.parametrize(
    ("interval", "state", "steps"), [("0", "complete", 3), ("3st", "complete", 3), ("2st", "pruned", 2)]
)
def test_a_trial_that_does_not_pass_is_pruned_unless_it_was_done_anyway(
    data: tuple[str, ...], tmp_path: Path, interval: str, state: str, steps: int
) -> None:
    url = storage_url(None, tmp_path)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    outdone(url)
    command(
        *TINY, *data, f"trainer.eval_interval={interval}", "trainer.max_duration=3st",
        f"trial={{storage: '{url}', study: s, number: 0, attempt: 0}}", "resume=auto", f"hydra.run.dir={tmp_path}/0",
    )  # fmt: skip
    trial = optuna.load_study(study_name="s", storage=open_storage(url)).get_trials()[0]
    assert trial.user_attrs[OUTCOME]["state"] == state, trial.user_attrs[OUTCOME]["error"]
    assert trial.intermediate_values == {sum(SIZES[:steps]): result(tmp_path / "0")["last"]["dev"]["accuracy"]}
    assert result(tmp_path / "0")["pruned"] == (state == "pruned")
    assert result(tmp_path / "0")["steps"] == steps == read_rows(tmp_path / "0/train.tsv")[-1]["step"]


def test_a_trial_pruned_after_a_fold_ends_there_even_if_killed_right_after_it(
    data: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = storage_url(None, tmp_path)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    outdone(url)
    config = composed(
        *TINY, *data, "folds.count=3", "trainer.eval_interval=0", "trainer.max_duration=2st", "resume=auto",
        f"trial={{storage: '{url}', study: s, number: 0, attempt: 0}}",
    )  # fmt: skip
    start(config, tmp_path / "0")
    whole = result(tmp_path / "0")
    assert [part["name"] for part in whole["parts"]] == ["fold-0"] and whole["pruned"]
    (tmp_path / "0" / "result.json").unlink()
    start(config, tmp_path / "0")
    assert result(tmp_path / "0") == whole
    assert capsys.readouterr().out == "", "the job of a search prints no table"


def test_the_tables_are_synced_before_a_state_is_saved(
    data: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    sync = os.fsync

    def noted(descriptor: int) -> None:
        synced.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    options = ("trainer.eval_interval=1st", "trainer.save_interval=1st", "trainer.max_duration=2st")
    train(*TINY, *data, *options, f"hydra.run.dir={tmp_path}/run")
    states = [place for place, name in enumerate(synced) if name == "state.json"]
    assert len(states) == 2
    for first, last in zip([-1, *states], states, strict=False):
        assert {"train.tsv", "valid.tsv"} <= set(synced[first + 1 : last])
