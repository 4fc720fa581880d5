"""The compiled step on a CUDA device, or traced on the processor where NLU_TEST_DEVICE=cpu tries these tests."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from nlu.training.step import Stepper
from tests.training.in_process import NO_DROPOUT, Killed, column, tensors, train
from tests.training.test_cuda import compiler, modes, options_of  # noqa: F401 - fixtures

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("modes", "compiler")]
COMPILED = "trainer.compile=true"
FILES = ("checkpoints/last/model.safetensors", "predictions/dev.jsonl", "valid.tsv")
WAYS = ("classify", "rdrop", "multilabel", "tag", "siamese", "mlm", "fgm")
"""the last one is computed eagerly, which a run only says"""


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    """Forget graphs, which count towards a limit of the process."""
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize("way", WAYS)
def test_on_cuda_a_compiled_run_is_the_eager_one_and_the_same_twice(tmp_path: Path, way: str, device: str) -> None:
    options = [*options_of(way, tmp_path, device), *NO_DROPOUT, "trainer.log_interval=1st"]
    for name, more in (("eager", ()), ("a", (COMPILED,)), ("b", (COMPILED,))):
        train(*options, *more, f"hydra.run.dir={tmp_path}/{name}")
    losses = [column(tmp_path / name, "loss") for name in ("eager", "a")]
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)
    eager, compiled = (tensors(tmp_path / name, "last/model") for name in ("eager", "a"))
    for name, expected in eager.items():
        assert np.abs(compiled[name] - expected).max() <= 1e-4 * max(1e-2, np.abs(expected).max()), name
    for path in FILES:
        assert (tmp_path / "a" / path).read_bytes() == (tmp_path / "b" / path).read_bytes(), path


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_on_cuda_a_compiled_run_that_is_killed_continues_to_the_same_bytes(
    tmp_path: Path, precision: str, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = [*options_of("classify", tmp_path, device), f"precision={precision}", "model.dropout=0.1"]
    options += [COMPILED, "resume=auto", "trainer.save_interval=3st"]
    train(*options, f"hydra.run.dir={tmp_path}/unbroken")
    step = Stepper.step

    def killed(self: Stepper, part: Any, micro_batches: Any, number: int, *more: Any) -> Any:
        if number == 6:
            raise Killed
        return step(self, part, micro_batches, number, *more)

    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr(Stepper, "step", killed)
        train(*options, f"hydra.run.dir={tmp_path}/broken")
    train(*options, f"hydra.run.dir={tmp_path}/broken")
    for path in FILES:
        assert (tmp_path / "broken" / path).read_bytes() == (tmp_path / "unbroken" / path).read_bytes(), path
