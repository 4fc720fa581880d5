"""What is said where a number format costs more than it saves."""

from pathlib import Path
from unittest import mock

import pytest
import torch

from nlu.training.precision import Precision
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


def test_a_run_says_so_in_its_log(tmp_path: Path) -> None:
    options = (*TINY, *sets(tmp_path), "precision=bf16", "trainer.max_duration=1st", f"hydra.run.dir={tmp_path}/run")
    with mock.patch.object(torch.backends.cpu, "get_cpu_capability", return_value="AVX2"):
        train(*options)
    log = (tmp_path / "run/log.txt").read_text()
    assert "WARNING" in log and "choose precision=fp32" in log
