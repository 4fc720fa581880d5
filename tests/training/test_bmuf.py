"""parallel=bmuf and parallel.reduce_dtype, of two processes, against a simulation of both in numpy."""

import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from nlu.config.schema import Trainer
from nlu.data.collate import collate
from nlu.data.examples import Examples
from nlu.training.bmuf import Bmuf
from nlu.training.due import Due
from nlu.training.ranks import Ranks
from tests import warm
from tests.training import two_ranks
from tests.training.in_process import NO_DROPOUT, command, composed, scores, tensors, train
from tests.training.kinds import KINDS
from tests.training.runs import REPOSITORY, SAME_THREADS
from tests.training.test_due import CLOCK
from tests.training.test_kinds_in_processes import run_in_two
from tests.training.test_kinds_killed import outcome
from tests.training.test_step import examples_in, stepper, vector
from tests.training.two_ranks import (
    BLOCK_LR,
    BLOCK_MOMENTUM,
    CLIP_NORM,
    EMA_DECAY,
    EPS,
    LR,
    STEPS,
    SYNC_INTERVAL,
    WARMUP,
    share,
)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """What each of the two processes leaves."""
    folder = tmp_path_factory.mktemp("ranks")
    processes = [
        warm.start(
            ["-m", two_ranks.__name__, str(folder)], cwd=REPOSITORY, env={**SAME_THREADS, "RANK": rank},
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        )
        for rank in ("0", "1")
    ]  # fmt: skip
    for process in processes:
        _, said = process.communicate(timeout=1800)
        assert process.returncode == 0, said
    return [np.load(folder / f"rank-{rank}.npz") for rank in (0, 1)]


class Simulated:
    """One process: its weights, Adam's moments, and the moving average."""

    def __init__(self) -> None:
        self.weights = vector(stepper()).numpy().astype(np.float64)
        self.first, self.second, self.average = 0 * self.weights, 0 * self.weights, self.weights.copy()

    def gradient(self, examples: Examples, rows: np.ndarray) -> np.ndarray:
        """Return the gradient of the mean loss of some rows; 0 without rows."""
        if not len(rows):
            return 0 * self.weights
        model = stepper().model
        torch.nn.utils.vector_to_parameters(torch.from_numpy(self.weights).float(), model.parameters())
        batch = collate(examples, rows, (1, 0))
        F.cross_entropy(model(batch), batch.targets["labels"]).backward()
        # The loss does not use all of them, such as a pooler.
        found = [torch.zeros_like(each) if each.grad is None else each.grad for each in model.parameters()]
        return torch.nn.utils.parameters_to_vector(found).numpy().astype(np.float64)

    def update(self, gradient: np.ndarray, step: int) -> None:
        """Do a clipped step of Adam (Kingma & Ba 2015, algorithm 1), and move the average."""
        gradient = gradient / max(1.0, (np.linalg.norm(gradient) + 1e-6) / CLIP_NORM)
        self.first += 0.1 * (gradient - self.first)
        self.second += 0.001 * (gradient**2 - self.second)
        first, second = self.first / (1 - 0.9**step), self.second / (1 - 0.999**step)
        self.weights = self.weights - LR * first / (np.sqrt(second) + EPS)
        decay = min(EMA_DECAY, (1 + step) / (10 + step))
        self.average += (1 - decay) * (self.weights - self.average)


@pytest.mark.parametrize("name", ["plain", "nesterov"])
def test_two_processes_train_apart_and_meet_as_in_a_simulation(found: list[Any], name: str, tmp_path: Path) -> None:
    examples = examples_in(tmp_path / "set")
    both = [Simulated(), Simulated()]
    momentum, start = 0 * both[0].weights, both[0].weights
    for step in range(1, STEPS + 1):
        shares = [share(step, rank) for rank in (0, 1)]
        if step <= WARMUP:
            gradients = [both[0].gradient(examples, np.concatenate(shares))] * 2
        else:
            gradients = [one.gradient(examples, rows) for one, rows in zip(both, shares, strict=True)]
        for one, gradient in zip(both, gradients, strict=True):
            one.update(gradient, step)
        if step == WARMUP:
            start = both[0].weights
        elif step > WARMUP and (step - WARMUP) % SYNC_INTERVAL == 0:
            update = start - (both[0].weights + both[1].weights) / 2
            momentum = BLOCK_MOMENTUM * momentum + BLOCK_LR * update
            start = start - momentum - (BLOCK_MOMENTUM * momentum if name == "nesterov" else 0)
            for key in ("first", "second", "average"):
                mean = (getattr(both[0], key) + getattr(both[1], key)) / 2
                for one in both:
                    setattr(one, key, mean.copy())
            for one in both:
                one.weights = start.copy()
        is_equal = np.array_equal(*(rank[f"{name}_weights"][step - 1] for rank in found))
        assert is_equal == (step <= WARMUP or (step - WARMUP) % SYNC_INTERVAL == 0), step
        for one, rank in zip(both, found, strict=True):
            np.testing.assert_allclose(rank[f"{name}_weights"][step - 1], one.weights, atol=2e-5, err_msg=str(step))
            np.testing.assert_allclose(rank[f"{name}_averages"][step - 1], one.average, atol=2e-5, err_msg=str(step))
            norm = np.mean([np.linalg.norm(each) for each in gradients])
            assert rank[f"{name}_results"][step - 1][1] == pytest.approx(norm, rel=1e-3)
    for rank in found:
        np.testing.assert_allclose(rank[f"{name}_momentum"], momentum, atol=2e-5)
    assert np.abs(momentum).max() > 1e-2


def bfloat16(values: np.ndarray) -> np.ndarray:
    """Return float32 numbers rounded to 8 bits of mantissa, to the nearest, ties to even."""
    bits = values.astype(np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)


def test_in_bf16_gradients_are_rounded_by_each_process_and_in_the_sum(found: list[Any]) -> None:
    for place, (one, two) in enumerate(zip(two_ranks.gradients(0), two_ranks.gradients(1), strict=True)):
        expected = bfloat16(bfloat16(one) + bfloat16(two))
        assert not np.array_equal(expected, one + two)
        for rank in found:
            np.testing.assert_array_equal(rank[f"sum_{place}"], expected)
    for rank in found:
        # Losses are not rounded.
        assert rank["totals"].tolist() == [3 + 2.0**-19, 6.0]


@pytest.mark.parametrize("warmup", [0, 4])
def test_evaluations_and_saves_wait_for_the_next_meeting(warmup: int) -> None:
    strategy = Bmuf(Ranks(0, 2, torch.device("cpu")), sync_interval=5, warmup=warmup)
    trainer = Trainer(max_duration="28st", eval_interval="3st", save_interval="8st", stop_after="11st")
    due = Due(trainer, CLOCK, strategy.is_whole)
    steps = range(1, 29)
    meetings = [5, 10, 15, 20, 25, 28] if not warmup else [1, 2, 3, 4, 9, 14, 19, 24, 28]
    assert [step for step in steps if due.is_whole(step)] == meetings
    assert [step for step in steps if due.evaluates(step)] == [step for step in meetings if step not in (1, 2, 4)]
    saves = {0: [10, 20, 25], 4: [9, 19, 24]}[warmup]
    over = {0: 15, 4: 14}[warmup]
    # All meetings from the end of the stage on count as its end.
    assert [step for step in steps if due.saves(step)] == sorted({*saves, *(step for step in meetings if step >= over)})
    assert min(step for step in steps if due.is_stage_over(step)) == over


def test_a_run_of_two_processes_that_train_apart_continues_to_the_same_bytes(tmp_path: Path) -> None:
    options = (
        *KINDS["classify"].overrides(tmp_path), *NO_DROPOUT, "parallel=bmuf", "parallel.sync_interval=2",
        "parallel.warmup=1", "trainer.batch_size=4", "trainer.max_duration=8st", "trainer.eval_interval=2st",
        "trainer.save_interval=1st", "trainer.ema_decay=0.5", "resume=auto",
    )  # fmt: skip
    whole, part = composed(*options), composed(*options, "trainer.stop_after=4st")
    run_in_two([(whole, tmp_path / "whole"), (part, tmp_path / "run"), (whole, tmp_path / "run")], tmp_path)
    log = (tmp_path / "run/log.txt").read_text()
    assert "stopped after step 5 of 8" in log and "continuing from" in log and "at step 5" in log
    assert set(scores(tmp_path / "run", "dev", "accuracy")) == {3, 5, 7, 8}
    one, other = outcome(tmp_path / "run"), outcome(tmp_path / "whole")
    assert not [name for name in other if one[name] != other[name]]
    assert "checkpoints/last/parallel.safetensors" in other
    momentum = tensors(tmp_path / "run", "last/parallel")
    assert momentum.keys() == tensors(tmp_path / "run", "last/average").keys()
    assert max(np.abs(value).max() for value in momentum.values()) > 0


def test_in_one_process_bmuf_changes_nothing_and_says_so(tmp_path: Path) -> None:
    options = (*KINDS["classify"].overrides(tmp_path), "trainer.max_duration=2st")
    train(*options, f"hydra.run.dir={tmp_path}/usual")
    train(*options, "parallel=bmuf", "parallel.warmup=0", f"hydra.run.dir={tmp_path}/run")
    assert "parallel=bmuf does nothing in a run of one process" in (tmp_path / "run/log.txt").read_text()
    one, other = (tensors(tmp_path / name, "last/model") for name in ("run", "usual"))
    assert all(np.array_equal(one[name], other[name]) for name in other)


def test_bmuf_with_rows_that_are_still_written_is_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    stream = ("task=mlm", "data=corpus", "data.stream=true", "model=bert_tiny", "trainer.devices=2")
    command(*stream, "parallel=bmuf", f"data.train={tmp_path}/none.txt", f"hydra.run.dir={tmp_path}/run", status=2)
    assert "parallel is bmuf, under which a run can only be saved after some steps" in capfd.readouterr().err
