"""What doctor says of CUDA devices, on one."""

import pytest
import torch

from nlu.diagnosis.fast_paths import cuda
from nlu.diagnosis.machine import collectives, devices

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


def test_a_sum_over_all_devices_is_right() -> None:
    (found,) = collectives()
    assert found.mark == "ok" and found.says.startswith("nccl ") and "the sum is right" in found.says


def test_devices_and_their_fast_paths_are_listed() -> None:
    names = {check.name for check in devices()}
    assert {f"cuda:{number}" for number in range(torch.cuda.device_count())} <= names
    found = {check.name: check for check in cuda()}
    assert "TFLOP/s" in found["bf16 on CUDA"].says
    if torch.cuda.get_device_capability() >= (8, 0):
        assert found["varlen attention"].mark == "ok" and found["bf16 on CUDA"].mark == "ok"
