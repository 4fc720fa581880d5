"""Batches that a thread makes one step ahead: the same bytes, errors at their step, and no thread that stays.

On a processor runs have no such thread; here they are made to have one.
"""

import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from nlu.config import stopping
from nlu.config.stopping import EXIT_REQUEUE
from nlu.data.collate import Batch
from nlu.training.ahead import Ahead
from nlu.training.compiled import ALLOWED_ON_CPU, Compiled
from nlu.training.parts import Training
from nlu.training.passes import Passes
from nlu.training.step import Stepper
from tests.few import first
from tests.training.in_process import composed, killed_in_backward, start
from tests.training.kinds import KINDS
from tests.training.mixtures import CLASSES, TAGS, mixture
from tests.training.short_memory import SAID, memory_for
from tests.training.test_loop import state_of

NAME = "nlu-batches"
SHORT = ("trainer.max_duration=7st", "trainer.eval_interval=3st", "trainer.save_interval=2st", "resume=auto")
FILES = ("checkpoints/last/model.safetensors", "checkpoints/last/optimizer.safetensors", "predictions/dev.jsonl")
Made = list[tuple[str, int]]


@pytest.fixture
def ahead(monkeypatch: pytest.MonkeyPatch) -> Made:
    """Let runs behave as on a device; returns the thread and the number of micro-batches of each call so far."""
    made: Made = []
    shares, built = Passes.shares, Stepper.__post_init__

    def noted(self: Passes, part: Any, micro_batches: Any, epoch: int) -> Any:
        made.append((threading.current_thread().name, len(micro_batches)))
        return shares(self, part, micro_batches, epoch)

    def of_device(self: Stepper) -> None:
        built(self)
        self.ahead = 1

    monkeypatch.setattr(Passes, "shares", noted)
    monkeypatch.setattr(Stepper, "__post_init__", of_device)
    in_thread(monkeypatch)
    return made


def in_thread(monkeypatch: pytest.MonkeyPatch, *, wanted: bool = True) -> None:
    """Make the batches of all runs in a thread, or none."""
    monkeypatch.setattr(
        "nlu.training.loop.Ahead", lambda run, pool, is_asynchronous: Ahead(run, pool, in_thread=wanted)
    )


def none_is_left() -> bool:
    return not any(thread.name.startswith(NAME) for thread in threading.enumerate())


def assert_same(one: Path, other: Path) -> None:
    for path in FILES:
        assert (one / path).read_bytes() == (other / path).read_bytes(), path


WAYS: dict[str, Callable[[Path], tuple[str, ...]]] = {
    "accumulation and dropout": lambda folder: (
        *KINDS["rdrop"].overrides(folder), "trainer.accumulation=2", "model.dropout=0.3",
    ),
    "masked words by tokens": lambda folder: (*KINDS["mlm"].overrides(folder), "trainer.batch_tokens=50"),
    "a mixture": lambda folder: mixture(folder, {"first": CLASSES, "second": TAGS}),
    "compiled": lambda folder: (*KINDS["classify"].overrides(folder), "trainer.compile=true", "model.dropout=0.3"),
}  # fmt: skip


@pytest.mark.parametrize("way", first(3, WAYS))
def test_a_run_whose_batches_are_made_ahead_and_that_is_killed_has_the_same_bytes(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ALLOWED_ON_CPU, "1")
    # Traces the graph, and computes it by torch's own operators.
    monkeypatch.setattr("nlu.training.build.Compiled", partial(Compiled, backend="eager"))
    config = composed(*WAYS[way](tmp_path), *SHORT)
    start(config, tmp_path / "plain")
    names, ready = set(), Passes.ready

    def noted(self: Passes, batch: Batch) -> Batch:
        names.add(threading.current_thread().name)
        return ready(self, batch)

    monkeypatch.setattr(Passes, "ready", noted)
    in_thread(monkeypatch)
    with killed_in_backward(7):
        start(config, tmp_path / "ahead")
    assert none_is_left() and f"{NAME}_0" in names
    start(config, tmp_path / "ahead")
    # Shapes of compiled passes are warmed up before.
    assert none_is_left() and (names == {f"{NAME}_0"} or way == "compiled")
    for path in FILES if way != "a mixture" else FILES[:2]:
        assert (tmp_path / "plain" / path).read_bytes() == (tmp_path / "ahead" / path).read_bytes(), path


def test_an_error_in_the_thread_is_raised_at_its_step_and_saves_the_one_before(
    tmp_path: Path, ahead: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = composed(*KINDS["classify"].overrides(tmp_path), *SHORT, "trainer.save_interval=0")
    ready = Passes.ready

    def failing(self: Passes, batch: Batch) -> Batch:
        if len(ahead) == 5:
            raise ValueError("the user's target")
        return ready(self, batch)

    with monkeypatch.context() as patched:
        patched.setattr(Passes, "ready", failing)
        with pytest.raises(ValueError, match="the user's target"):
            start(config, tmp_path / "broken")
    assert none_is_left() and state_of(tmp_path / "broken")["step"] == 4
    for name in ("broken", "whole"):
        start(config, tmp_path / name)
    assert_same(tmp_path / "broken", tmp_path / "whole")


def test_a_run_that_is_asked_to_stop_or_whose_stage_is_over_leaves_no_thread(
    tmp_path: Path, ahead: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = composed(*KINDS["classify"].overrides(tmp_path), *SHORT)
    start(config, tmp_path / "whole")
    # None for a step that does not come.
    assert [name for name, _ in ahead] == [f"{NAME}_0"] * 7 and none_is_left()
    step = Stepper.step

    def signalled(self: Stepper, part: Any, micro_batches: Any, number: int, *more: Any) -> Any:
        if number == 3:
            stopping.signals.receive(signal.SIGTERM)
        return step(self, part, micro_batches, number, *more)

    with monkeypatch.context() as patched:
        patched.setattr(Stepper, "step", signalled)
        start(config, tmp_path / "stopped", status=EXIT_REQUEUE)
    # Whether to stop after step 3 was decided before.
    assert state_of(tmp_path / "stopped")["step"] == 4 and none_is_left()
    start(composed(*KINDS["classify"].overrides(tmp_path), *SHORT, "trainer.stop_after=5st"), tmp_path / "stopped")
    assert state_of(tmp_path / "stopped")["step"] == 5 and none_is_left()
    start(config, tmp_path / "stopped")
    assert_same(tmp_path / "whole", tmp_path / "stopped")


def test_after_memory_ran_out_batches_are_made_ahead_in_the_new_pieces(tmp_path: Path, ahead: Made) -> None:
    config = composed(*KINDS["classify"].overrides(tmp_path, train_rows=24), *SHORT, "trainer.save_interval=0")
    with memory_for(rows=2, since_call=2):
        start(config, tmp_path / "run")
    # Step 3 is divided twice, when the batch of step 4 may be made already: the loop makes both anew.
    pieces = [(name.startswith(NAME), count) for name, count in ahead]
    assert pieces[:3] == [(True, 1)] * 3 and pieces[-2:] == [(True, 4)] * 2
    assert sorted(pieces[3:-2]) == [(False, 2), (False, 4), (False, 4), (True, 1), (True, 4)]
    assert state_of(tmp_path / "run")["pieces"] == 4


def test_a_step_makes_its_batches_itself_if_there_was_no_memory_to_make_them_ahead(
    tmp_path: Path, ahead: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = composed(*KINDS["classify"].overrides(tmp_path), *SHORT)
    start(config, tmp_path / "whole")
    ready = Passes.ready

    def without_memory(self: Passes, batch: Batch) -> Batch:
        if threading.current_thread().name.startswith(NAME):
            raise torch.OutOfMemoryError(SAID)
        return ready(self, batch)

    monkeypatch.setattr(Passes, "ready", without_memory)
    start(config, tmp_path / "alone")
    assert_same(tmp_path / "whole", tmp_path / "alone")
    assert len(ahead) == 7 + 2 * 7


def test_no_thread_makes_batches_of_rows_that_are_still_written() -> None:
    part = SimpleNamespace(is_growing=True)
    rows = part, [np.arange(3)], 0
    run: Any = SimpleNamespace(
        store=SimpleNamespace(of_role=lambda role: {"train": part}), rows=lambda number: rows,
        stepper=SimpleNamespace(device=torch.device("cpu")),
    )  # fmt: skip
    with ThreadPoolExecutor(1) as pool:
        growing: Training = run
        assert Ahead(growing, pool, in_thread=True).rows(1) == (*rows, None)
