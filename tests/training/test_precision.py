"""What is said where a number format costs more than it saves."""

from pathlib import Path
from unittest import mock

import pytest
import torch

from nlu.training.precision import Precision
from nlu.training.ranks import choose_device
from tests.training.in_process import TINY, sets, train

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("capability", "dtype", "device", "is_slow"),
    [
        ("AVX2", "bfloat16", CPU, True),
        ("NO AVX", "bfloat16", CPU, True),
        ("AVX512", "bfloat16", CPU, False),
        ("SVE256", "bfloat16", CPU, False),
        ("AVX2", "float32", CPU, False),
        ("AVX2", "bfloat16", torch.device("cuda"), False),
    ],
)
def test_bf16_is_called_slow_where_the_processor_has_no_such_products(
    capability: str, dtype: str, device: torch.device, is_slow: bool
) -> None:
    with mock.patch.object(torch.backends.cpu, "get_cpu_capability", return_value=capability):
        assert bool(Precision(dtype=dtype).warning(device)) == is_slow  # type: ignore[arg-type]


def test_a_slow_precision_warns_in_the_log(tmp_path: Path) -> None:
    options = (*TINY, *sets(tmp_path), "precision=bf16", "trainer.max_duration=1st", f"hydra.run.dir={tmp_path}/run")
    with mock.patch.object(torch.backends.cpu, "get_cpu_capability", return_value="AVX2"):
        train(*options)
    log = (tmp_path / "run/log.txt").read_text()
    assert "WARNING" in log and "choose precision=fp32" in log


def test_on_cuda_convolutions_in_fp32_are_fp32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    assert choose_device("auto", 0) == torch.device("cuda", 0)
    assert not torch.backends.cudnn.allow_tf32 and not torch.backends.cuda.matmul.allow_tf32
