"""The same promises on a CUDA device, where there is one."""

from pathlib import Path

import pytest
import torch

from tests.training.runs import QUICK, TINY, files, result, run, weights

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_run_on_cuda_gives_the_same_bytes_twice(tmp_path: Path, precision: str) -> None:
    options = [option for option in (*TINY, *QUICK, *files(tmp_path)) if option != "trainer.device=cpu"]
    for name in ("a", "b"):
        run(*options, "trainer.device=cuda", f"precision={precision}", f"hydra.run.dir={tmp_path}/{name}")
    assert weights(tmp_path / "a") == weights(tmp_path / "b")


def test_cuda_and_cpu_learn_the_same_in_fp32(tmp_path: Path) -> None:
    options = [option for option in (*TINY, *QUICK, *files(tmp_path)) if option != "trainer.device=cpu"]
    for device in ("cpu", "cuda"):
        run(*options, f"trainer.device={device}", f"hydra.run.dir={tmp_path}/{device}")
    losses = [result(tmp_path / device)["metrics"]["dev"]["loss"] for device in ("cpu", "cuda")]
    assert losses[0] == pytest.approx(losses[1], abs=1e-4)
