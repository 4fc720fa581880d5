"""Numbers that passes change beside gradients, such as the running statistics of batch norm, are those of one run."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import nlu
from nlu.data.collate import Batch
from nlu.models.encoder import Encoded
from nlu.models.head import vectors_of
from nlu.models.heads.linear import LinearHead
from nlu.training.passes import Buffers
from nlu.training.ranks import Ranks
from tests.training.in_process import NO_DROPOUT, composed, start, tensors
from tests.training.kinds import KINDS, read
from tests.training.runs import result
from tests.training.short_memory import memory_for
from tests.training.test_kinds_in_processes import run_in_two

ROWS = 24
OWN = ("head._target_=tests.training.test_passes.NormedHead", "trusted_packages=[tests]", *NO_DROPOUT)


class NormedHead(LinearHead):
    """A linear head over vectors that batch norm has scaled."""

    def __init__(self, width: int, target: Any, encoder: Any = None):
        """No options."""
        super().__init__(width, target, encoder)
        self.norm = nn.BatchNorm1d(width)

    def forward(self, encoded: Encoded, batch: Batch) -> Tensor:
        return self.linear(self.norm(vectors_of(encoded, batch, self.wants))).float()


def statistics_of(run_dir: Path) -> dict[str, np.ndarray]:
    return {name: value for name, value in tensors(run_dir, "last/model").items() if ".norm." in name}


def test_passes_that_run_again_after_too_little_memory_count_once(tmp_path: Path) -> None:
    options = (*KINDS["classify"].overrides(tmp_path, train_rows=ROWS), *OWN)
    steps = ("trainer.batch_size=6", "trainer.accumulation=2", "trainer.max_duration=2st", "trainer.eval_interval=0")
    config = composed(*options, *steps)
    # Memory runs out in the first micro-batch, before batch norm has seen anything, or in the second one.
    for name, since_call in (("first", 0), ("second", 1)):
        with memory_for(rows=4, since_call=since_call) as met:
            start(config, tmp_path / name)
        assert met[: since_call + 2] == [6] * (since_call + 1) + [3]
    first, second = statistics_of(tmp_path / "first"), statistics_of(tmp_path / "second")
    # Two steps of four parts.
    assert first["head.norm.num_batches_tracked"] == second["head.norm.num_batches_tracked"] == 8
    assert abs(first["head.norm.running_mean"]).max() > 0.01
    for name, values in first.items():
        np.testing.assert_array_equal(second[name], values, err_msg=name)


def test_two_processes_score_and_save_the_same_running_statistics(tmp_path: Path) -> None:
    options = (*KINDS["classify"].overrides(tmp_path, train_rows=ROWS, dev_rows=ROWS), *OWN)
    steps = ("trainer.batch_size=8", "trainer.max_duration=6st", "trainer.eval_interval=3st", "trainer.keep_best=2")
    run_in_two([(composed(*options, *steps, "trainer.ema_decay=0"), tmp_path / "run")], tmp_path)
    rows = read(tmp_path / "dev.jsonl")
    for checkpoint in ("best-1", "best-2"):
        there = json.loads((tmp_path / "run/checkpoints" / checkpoint / "score.json").read_text())["metrics"]["dev"]
        assert nlu.load(tmp_path / "run", checkpoint=checkpoint).evaluate(rows)["loss"] == there["loss"]
    assert result(tmp_path / "run")["best"]["step"] in (3, 6)


def test_the_buffers_before_the_last_two_steps_can_be_put_back() -> None:
    norm = nn.BatchNorm1d(2)
    buffers = Buffers([norm], Ranks(0, 1, torch.device("cpu")))
    for number in (1, 2, 3):
        buffers.begin(number)
        norm.running_mean.fill_(float(number))
    # An accelerator computes step 3 while the host learns that step 2 has failed.
    buffers.begin(2)
    assert norm.running_mean.tolist() == [1.0, 1.0]
