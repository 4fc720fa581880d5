"""Memory of a CUDA device, if this machine has one: where it runs out, what saves it, and what a run records of it."""

import gc
import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from nlu.runs.records import PEAK_COLUMN
from tests.training.in_process import column, train
from tests.training.test_cuda import modes  # noqa: F401 - a fixture

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("modes")]
ROWS, TOKENS = 400, 100
WIDE = (
    "model=bert_tiny", "model.hidden_size=128", "model.heads=2", "model.layers=4", "model.intermediate_size=512",
    "model.max_positions=128", "data.max_len=128", "model.dropout=0", "model.attention_dropout=0",
    "model.head_dropout=0",
)  # fmt: skip
"""Layers keep about 3 MB for each row of TOKENS tokens in fp32, and all weights are 3 MB."""
LIMIT_MB = 300


def long_rows(folder: Path) -> tuple[str, ...]:
    """Write rows that all have TOKENS tokens; returns the overrides of a run on them."""
    rng = random.Random(0)
    for name, rows in (("train", ROWS), ("dev", 8)):
        texts = (rng.choices("abcdefgh", k=TOKENS) for _ in range(rows))
        lines = [json.dumps({"text": " ".join(words), "label": str(int(words[0] < "d"))}) for words in texts]
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    return (
        "data=files", f"data.train={folder}/train.jsonl", f"data.dev={folder}/dev.jsonl", "trainer.device=cuda",
        "scheduler=constant", "trainer.max_duration=4st", "trainer.eval_interval=0", "trainer.ema_decay=0",
    )  # fmt: skip


@contextmanager
def memory_of(mb: int) -> Iterator[None]:
    """Let tensors on the device take only so much more memory than now."""
    gc.collect()
    torch.cuda.empty_cache()
    whole = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + mb * 1e6) / whole, 0)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, 0)


def peak_mb(run_dir: Path) -> float:
    return max(map(float, column(run_dir, PEAK_COLUMN)))


def test_a_batch_that_does_not_fit_on_cuda_is_divided(tmp_path: Path) -> None:
    options, size = (*WIDE, *long_rows(tmp_path), "trainer.log_interval=1st"), "trainer.batch_size=160"
    with memory_of(LIMIT_MB):
        train(*options, size, f"hydra.run.dir={tmp_path}/divided")
    train(*options, size, f"hydra.run.dir={tmp_path}/whole")
    state = json.loads((tmp_path / "divided/checkpoints/last/state.json").read_text())["state"]
    assert state["pieces"] in (2, 4)
    assert "memory ran out in step 1, in a micro-batch of" in (tmp_path / "divided/log.txt").read_text()
    losses = [column(tmp_path / run, "loss") for run in ("divided", "whole")]
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)
    assert peak_mb(tmp_path / "whole") > max(LIMIT_MB, peak_mb(tmp_path / "divided"))


def test_gradient_checkpointing_on_cuda_gives_the_same_losses_with_less_memory(tmp_path: Path) -> None:
    options = (*WIDE, *long_rows(tmp_path), "trainer.batch_size=200", "trainer.log_interval=1st", "precision=bf16")
    # With more layers than in other tests: what is computed again are the tensors of one layer.
    options += ("model.layers=8",)
    for name in ("false", "true"):
        gc.collect()
        train(*options, f"model.gradient_checkpointing={name}", f"hydra.run.dir={tmp_path}/{name}")
    assert column(tmp_path / "true", "loss") == pytest.approx(column(tmp_path / "false", "loss"), rel=1e-3)
    assert peak_mb(tmp_path / "true") < 0.7 * peak_mb(tmp_path / "false")


HEAVY = (
    "model=bert_tiny", "model.hidden_size=512", "model.heads=8", "model.layers=6", "model.intermediate_size=2048",
    "model.max_positions=128", "data.max_len=128",
)  # fmt: skip
"""19 million weights, beside which the layers keep little for a few rows."""


@pytest.mark.parametrize("kind", ["weights", "rows"])
def test_peak_memory_in_train_tsv_is_that_of_tensors_on_the_device(tmp_path: Path, kind: str) -> None:
    options = {"weights": (*HEAVY, "trainer.batch_size=4"), "rows": (*WIDE, "trainer.batch_size=100")}[kind]
    gc.collect()
    before_mb = torch.cuda.memory_allocated() / 1e6
    train(*options, *long_rows(tmp_path), "trainer.log_interval=1st", f"hydra.run.dir={tmp_path}/run")
    # Of 16 bytes for each weight, and of the tensors that layers keep for 100 rows.
    least_mb = before_mb + {"weights": 19 * 14, "rows": 150}[kind]
    peaks = list(map(float, column(tmp_path / "run", PEAK_COLUMN)))
    # The first step makes the optimizer's state, so the second one has it all.
    assert len(peaks) == 4 and least_mb < peaks[1] and max(peaks) < before_mb + 1500
