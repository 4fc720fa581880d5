"""What happens if memory runs out: the step is divided and runs again, on all ranks, with the same update."""

import ctypes
import json
from pathlib import Path

import numpy as np
import pytest
import torch

import nlu
from nlu.runs.records import read_rows
from nlu.training import memory
from nlu.training.memory import by_parts
from tests.training.in_process import composed, killed_in_backward, start, tensors, train
from tests.training.kinds import KINDS, Kind, few_first
from tests.training.short_memory import memory_for
from tests.training.test_kinds_in_processes import run_in_two
from tests.training.test_loop import state_of

ROWS = 24
DROPOUT = ("model.dropout=0.3", "model.attention_dropout=0.3", "model.head_dropout=0.3")
COMPARING = ("rdrop and InfoNCE",)
"""with a method whose passes compare the rows of a micro-batch"""
STEPS = (
    "trainer.batch_size=12", "trainer.max_duration=4st", "trainer.clip_norm=0", "trainer.eval_interval=0",
    "trainer.save_interval=0", "optimizer.betas=[0.5,0.999]",
)  # fmt: skip


def assert_same_but_for_rounding(one: Path, other: Path, rounding: float = 1e-4, without: str = "-") -> None:
    """Compare weights and moments; `rounding` is that of the gradients, as a part of the largest value of each kind;
    those whose name ends with `without` are left out."""
    for name in ("model", "optimizer"):
        first, second = tensors(one, f"last/{name}"), tensors(other, f"last/{name}")
        largest = {part: max(np.abs(first[key]).max() for key in first if key.startswith(part))
                   for part in {key.partition(":")[0] if ":" in key else "" for key in first}}  # fmt: skip
        for key, value in first.items():
            if key.endswith(without):
                continue
            scale = largest[key.partition(":")[0] if ":" in key else ""]
            np.testing.assert_allclose(second[key], value, rtol=1e-3, atol=rounding * scale, err_msg=key)


@pytest.mark.parametrize(
    "kind",
    few_first(
        {name: kind for name, kind in KINDS.items() if name not in COMPARING},
        "tag with a CRF", "freelb", "siamese with InfoNCE",
    ),
)  # fmt: skip
def test_a_step_without_enough_memory_is_divided_into_the_same_update(kind: Kind, tmp_path: Path) -> None:
    has_attention = kind.model[0] in ("model=bert_tiny", "model=hf")
    config = composed(*kind.overrides(tmp_path, train_rows=ROWS), *STEPS, *(DROPOUT if has_attention else DROPOUT[::2]))
    start(config, tmp_path / "whole")
    with memory_for(rows=4, since_call=2) as met:
        start(config, tmp_path / "divided")
    assert max(met[:2]) > 4
    # Losses over queries do not depend on the bias of scores: its gradient is rounding, and Adam makes steps of that.
    free = "head.linear.bias" if "task=rerank" in kind.options else "-"
    assert_same_but_for_rounding(tmp_path / "whole", tmp_path / "divided", 1e-4, free)
    # Batches of queries have up to four times as many rows.
    assert state_of(tmp_path / "divided")["pieces"] in (4, 8, 16)
    losses = [[float(row["loss"]) for row in read_rows(tmp_path / run / "train.tsv")] for run in ("whole", "divided")]
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-4)


TINY_RUN = ("trainer.batch_size=12", "trainer.max_duration=6st", "trainer.eval_interval=3st", *DROPOUT)


def bytes_of(folder: Path) -> dict[str, bytes]:
    names = ("last/model", "last/optimizer", "best-1/model")
    found = {name: (folder / "checkpoints" / f"{name}.safetensors").read_bytes() for name in names}
    return {**found, "predictions": (folder / "predictions/dev.jsonl").read_bytes()}


def test_a_divided_run_is_continued_with_the_same_parts_to_the_same_bytes(tmp_path: Path) -> None:
    overrides = [*KINDS["classify"].overrides(tmp_path, train_rows=ROWS), *TINY_RUN, "resume=auto"]
    with memory_for(rows=8, since_call=1):
        train(*overrides, f"hydra.run.dir={tmp_path}/unbroken")
    with memory_for(rows=8, since_call=1), killed_in_backward(8):
        train(*overrides, f"hydra.run.dir={tmp_path}/broken")
    # Memory is enough now, but the parts stay those that were saved.
    assert state_of(tmp_path / "broken") | {"step": 3, "pieces": 2} == state_of(tmp_path / "broken")
    train(*overrides, f"hydra.run.dir={tmp_path}/broken")
    assert bytes_of(tmp_path / "broken") == bytes_of(tmp_path / "unbroken")


def test_a_set_is_scored_and_predicted_in_parts_to_the_same_bytes(tmp_path: Path) -> None:
    overrides = [*KINDS["tag"].overrides(tmp_path, train_rows=ROWS), "trainer.batch_size=4", "trainer.max_duration=2st"]
    for run, rows in (("whole", 1000), ("divided", 4)):
        with memory_for(rows) as met:
            train(*overrides, "trainer.eval_batch_size=16", f"hydra.run.dir={tmp_path}/{run}")
        assert max(met) > 4
    assert bytes_of(tmp_path / "divided") == bytes_of(tmp_path / "whole")
    texts = [json.loads(line) for line in (tmp_path / "dev.jsonl").read_text().splitlines()]
    run = nlu.load(tmp_path / "whole", device="cpu")
    whole = run.predict(texts)
    with memory_for(rows=3):
        assert run.predict(texts) == whole


def test_parts_never_become_larger_again() -> None:
    tried = []

    def work(part_B: np.ndarray) -> int:
        tried.append(len(part_B))
        # The first examples are longer.
        if len(part_B) > (2 if part_B[0] < 4 else 4):
            raise torch.OutOfMemoryError
        return 1

    batches = list(np.arange(32).reshape(2, 16))
    found = [part_B for part_B, _ in by_parts(work, batches, torch.device("cpu"))]
    assert np.concatenate(found).tolist() == list(range(32))
    assert tried == [16, 8, 4, 2, 2, 4, 8, 4, 4, *[2] * 8]


@pytest.mark.parametrize(
    ("kind", "rows", "said"),
    [
        ("rdrop and InfoNCE", 4, "which is not divided, because InfoNce compares its examples with one another"),
        ("classify", 0, "in a micro-batch of 1 example, which cannot be divided; set data.max_len lower"),
    ],
)
def test_a_step_that_cannot_be_divided_is_refused(
    kind: str, rows: int, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with memory_for(rows):
        train(*KINDS[kind].overrides(tmp_path, train_rows=ROWS), f"hydra.run.dir={tmp_path}/run", status=2)
    assert said in capsys.readouterr().err
    assert not (tmp_path / "run/checkpoints/last").exists()


def test_all_processes_divide_a_step_for_which_one_lacks_memory(tmp_path: Path) -> None:
    config = composed(*KINDS["classify"].overrides(tmp_path, train_rows=ROWS), *STEPS, *DROPOUT)
    start(config, tmp_path / "single")
    run_in_two([(config, tmp_path / "together")], tmp_path, ROWS_THAT_FIT="1:4")
    assert_same_but_for_rounding(tmp_path / "single", tmp_path / "together")
    assert state_of(tmp_path / "together")["pieces"] == 2


@pytest.mark.needs(lambda: hasattr(ctypes.CDLL(None), "malloc_trim"), "another C library than glibc")
def test_what_calls_have_freed_between_objects_that_live_goes_back_to_the_system() -> None:
    kept = memory.KeptMemory()
    before = memory.resident_bytes()
    pieces = [b"x" * 20_000 for _ in range(10_000)]
    # The objects that live on keep the heap from shrinking at its end.
    living = pieces[::50]
    del pieces
    held = memory.resident_bytes() - before
    kept.limit()
    assert held > memory.MOST_KEPT > 10 * (memory.resident_bytes() - before)
    assert len(living) == 200
