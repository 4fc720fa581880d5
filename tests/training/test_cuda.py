"""The same promises on a CUDA device, or on the processor where NLU_TEST_DEVICE=cpu tries these tests."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from nlu.losses.cross_entropy import CrossEntropy
from nlu.runs.records import read_rows
from nlu.training.compiled import ALLOWED_ON_CPU, Compiled
from nlu.training.step import Stepper
from tests.training import in_process
from tests.training.kinds import KINDS
from tests.training.runs import QUICK, TINY, files, result, run, weights
from tests.training.test_ahead import in_thread

pytestmark = pytest.mark.gpu
WARM_UP_STEPS = 2
"""in which kernels are chosen and the optimizer makes its state"""


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_a_run_on_cuda_gives_the_same_bytes_twice(tmp_path: Path, precision: str, device: str) -> None:
    options = [option for option in (*TINY, *QUICK, *files(tmp_path)) if option != "trainer.device=cpu"]
    for name in ("a", "b"):
        run(*options, f"trainer.device={device}", f"precision={precision}", f"hydra.run.dir={tmp_path}/{name}")
    assert weights(tmp_path / "a") == weights(tmp_path / "b")


def test_cuda_and_cpu_learn_the_same_in_fp32(tmp_path: Path, device: str) -> None:
    options = [option for option in (*TINY, *QUICK, *files(tmp_path)) if option != "trainer.device=cpu"]
    # Masks of dropout are drawn on the device.
    options += in_process.NO_DROPOUT
    folders = {tmp_path / "cpu": "cpu", tmp_path / "device": device}
    for folder, name in folders.items():
        run(*options, f"trainer.device={name}", f"hydra.run.dir={folder}")
    losses = [result(folder)["metrics"]["dev"]["loss"] for folder in folders]
    assert losses[0] == pytest.approx(losses[1], abs=1e-4)


WAYS: dict[str, tuple[str, tuple[str, ...]]] = {
    **{name: (name, ()) for name in (
        "classify", "rdrop", "fgm", "freelb", "freelb in linf", "focal", "ghm_c", "circle", "siamese",
        "siamese with contrastive loss", "retrieve", "multilabel", "tag", "tag with a CRF", "freelb, tags and a CRF",
        "rdrop and numbers", "LoRA", "mlm", "mlm_pairs",
    )},
    "accumulation": ("fgm", ("trainer.accumulation=2",)),
    "pooler": ("classify", ("model.pooling=pooler",)),
    "mean": ("freelb", ("model.pooling=mean",)),
    "pairs": ("match", ("method=rdrop",)),
    "no dropout in attention": ("classify", ("model.attention_dropout=0",)),
    "checkpointing": ("rdrop", ("model.gradient_checkpointing=true",)),
}  # fmt: skip
"""a kind of run, with more overrides"""


def options_of(way: str, folder: Path, device: str) -> list[str]:
    """Write the rows of a way to train; returns the overrides."""
    kind, own = WAYS[way]
    return [
        *KINDS[kind].overrides(folder, train_rows=61, dev_rows=23), *own, f"trainer.device={device}",
        "trainer.max_duration=9st", "trainer.max_loss=1000",
    ]  # fmt: skip


@contextmanager
def no_wait(device: str) -> Iterator[None]:
    """Make each wait of the host for a CUDA device an error."""
    if device != "cuda":
        yield
        return
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.fixture
def modes() -> Iterator[None]:
    """Put back what a run in this process leaves of the library's modes."""
    yield
    torch.set_deterministic_debug_mode("default")
    torch.utils.deterministic.fill_uninitialized_memory = True


IN_FP16 = ("classify", "freelb", "accumulation", "pairs", "tag", "tag with a CRF", "no dropout in attention")
"""Ways that are tried in fp16 too, which differs from bf16 in its loss scale only."""


@pytest.mark.usefixtures("modes")
@pytest.mark.parametrize(
    ("way", "precision"),
    [
        *((way, name) for way in WAYS for name in ("fp32", "bf16")),
        *((way, "fp16") for way in IN_FP16),
    ],
)
def test_on_cuda_every_method_head_and_loss_gives_the_same_bytes_twice(
    tmp_path: Path, way: str, precision: str, device: str
) -> None:
    options = options_of(way, tmp_path, device)
    for name in ("a", "b"):
        in_process.train(*options, f"precision={precision}", f"hydra.run.dir={tmp_path}/{name}")
    for path in ("checkpoints/last/model.safetensors", "predictions/dev.jsonl", "valid.tsv"):
        assert (tmp_path / "a" / path).read_bytes() == (tmp_path / "b" / path).read_bytes(), path


@pytest.mark.usefixtures("modes")
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_a_run_on_cuda_that_is_killed_within_an_epoch_continues_to_the_same_bytes(
    tmp_path: Path, precision: str, device: str
) -> None:
    options = [
        *options_of("classify", tmp_path, device),
        f"precision={precision}",
        "resume=auto",
        "trainer.save_interval=3st",
    ]
    in_process.train(*options, f"hydra.run.dir={tmp_path}/unbroken")
    with in_process.killed_in_backward(6):
        in_process.train(*options, f"hydra.run.dir={tmp_path}/broken")
    in_process.train(*options, f"hydra.run.dir={tmp_path}/broken")
    for path in ("checkpoints/last/model.safetensors", "predictions/dev.jsonl", "valid.tsv"):
        assert (tmp_path / "broken" / path).read_bytes() == (tmp_path / "unbroken" / path).read_bytes(), path


@pytest.mark.usefixtures("modes")
def test_on_cuda_a_loss_above_the_bound_ends_the_run_at_its_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], device: str
) -> None:
    options = options_of("classify", tmp_path, device)
    in_process.train(*options, f"hydra.run.dir={tmp_path}/free")
    losses = in_process.column(tmp_path / "free", "loss")
    bound = f"trainer.max_loss={losses[0] * 0.99}"
    in_process.train(*options, bound, f"hydra.run.dir={tmp_path}/bounded", status=2)
    assert "above trainer.max_loss" in capsys.readouterr().err
    assert not (tmp_path / "bounded/checkpoints/last").exists()


@pytest.mark.usefixtures("modes")
def test_a_step_that_is_not_finite_is_named_on_cuda(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], device: str
) -> None:
    passes = CrossEntropy.__call__
    monkeypatch.setattr(CrossEntropy, "__call__", lambda *arguments: passes(*arguments) * math.nan)
    in_process.train(*options_of("classify", tmp_path, device), f"hydra.run.dir={tmp_path}/run", status=2)
    assert "first in the loss (CrossEntropy)" in capfd.readouterr().err


COMPILED = ("pairs", "tag", "mlm")
"""Ways that are tried with trainer.compile=true too."""


@pytest.fixture
def compiler(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a processor compile too: it only traces the graph."""
    if device == "cpu":
        monkeypatch.setenv(ALLOWED_ON_CPU, "1")
        monkeypatch.setattr("nlu.training.build.Compiled", partial(Compiled, backend="eager"))


@pytest.mark.usefixtures("modes", "compiler")
@pytest.mark.parametrize(
    ("way", "compiles"),
    [*((way, "false") for way in ("classify", "mlm", "freelb")), ("pairs", "true"), ("mlm", "true")],
)
def test_batches_that_a_thread_makes_ahead_give_the_same_bytes_on_cuda(
    tmp_path: Path, way: str, compiles: str, monkeypatch: pytest.MonkeyPatch, device: str
) -> None:
    options = [*options_of(way, tmp_path, device), f"trainer.compile={compiles}", "trainer.accumulation=2"]
    options += ["trainer.max_duration=40st", "precision=bf16"]
    for name, is_wanted in (("a", True), ("b", False)):
        in_thread(monkeypatch, wanted=is_wanted)
        in_process.train(*options, f"hydra.run.dir={tmp_path}/{name}")
    for path in ("checkpoints/last/model.safetensors", "predictions/dev.jsonl", "valid.tsv"):
        assert (tmp_path / "a" / path).read_bytes() == (tmp_path / "b" / path).read_bytes(), path


@pytest.mark.usefixtures("modes", "compiler")
@pytest.mark.parametrize(
    ("way", "precision", "compiles"),
    [
        *((way, "bf16", "false") for way in WAYS),
        *((way, "fp16", "false") for way in IN_FP16),
        *((way, "bf16", "true") for way in COMPILED),
    ],
)
def test_on_cuda_the_host_waits_for_the_device_in_no_step(
    tmp_path: Path, way: str, precision: str, compiles: str, monkeypatch: pytest.MonkeyPatch, device: str
) -> None:
    step, checked = Stepper.step, []

    def strict(self: Stepper, part: Any, micro_batches: Any, number: int, *more: Any) -> Any:
        if number <= WARM_UP_STEPS:
            return step(self, part, micro_batches, number, *more)
        with no_wait(device):
            pending = step(self, part, micro_batches, number, *more)
        checked.append(number)
        return pending

    monkeypatch.setattr(Stepper, "step", strict)
    options = [*options_of(way, tmp_path, device), f"trainer.compile={compiles}", f"precision={precision}"]
    in_process.train(*options, f"hydra.run.dir={tmp_path}/run")
    assert checked == list(range(WARM_UP_STEPS + 1, 10))


@pytest.mark.usefixtures("modes")
def test_on_cuda_a_student_learns_of_a_teacher_on_the_device_as_on_a_cpu(tmp_path: Path, device: str) -> None:
    options = [*options_of("no dropout in attention", tmp_path, device), "model.dropout=0", "model.head_dropout=0"]
    in_process.train(*options, f"hydra.run.dir={tmp_path}/teacher")
    options = [one for one in options if not one.startswith("trainer.device=")]
    options += ["method=distil", f"method.teacher={tmp_path}/teacher", "trainer.log_interval=1st", "seed=2"]
    for name, where in (("a", device), ("b", device), ("cpu", "cpu")):
        in_process.train(*options, f"trainer.device={where}", f"hydra.run.dir={tmp_path}/{name}")
    path = "checkpoints/last/model.safetensors"
    assert (tmp_path / "a" / path).read_bytes() == (tmp_path / "b" / path).read_bytes()
    losses = [in_process.column(tmp_path / name, "loss") for name in ("a", "cpu")]
    assert losses[0] == pytest.approx(losses[1], rel=1e-2)


@pytest.mark.usefixtures("modes")
@pytest.mark.parametrize("precision", ["fp16"])
def test_on_cuda_an_overflow_skips_the_step_and_halves_the_scale(tmp_path: Path, precision: str, device: str) -> None:
    options = (f"precision={precision}", "precision.init_scale=268435456", "trainer.log_interval=1st")
    # Without master weights, gradients of weights must fit into fp16 too, which takes more steps.
    options += ("trainer.max_duration=30st",)
    in_process.train(*options_of("classify", tmp_path, device), *options, f"hydra.run.dir={tmp_path}/run")
    scale = 268435456.0
    for row in read_rows(tmp_path / "run/train.tsv"):
        assert row["grad_scale"] == scale
        scale /= 2 ** row["skipped"]
    skipped = in_process.column(tmp_path / "run", "skipped")
    assert skipped[0] == 1 and skipped[-1] == 0


@pytest.mark.needs(lambda: torch.cuda.device_count() > 1, "one CUDA device")
def test_two_cuda_devices_give_the_same_bytes_twice_and_after_a_stop(tmp_path: Path) -> None:
    options = [option for option in (*TINY, *QUICK, *files(tmp_path)) if option != "trainer.device=cpu"]
    options += ["trainer.device=cuda", "trainer.devices=2", "resume=auto"]
    for name, more in (("a", ()), ("b", ("trainer.stop_after=2st",)), ("b", ())):
        run(*options, *more, f"hydra.run.dir={tmp_path}/{name}")
    assert weights(tmp_path / "a") == weights(tmp_path / "b")
