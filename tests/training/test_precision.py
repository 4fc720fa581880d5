"""What `precision=auto` chooses, and what is said where a number format costs more than it saves."""

from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
import yaml

from nlu.diagnosis.machine import precision
from nlu.training import auto
from nlu.training.auto import choice_for
from nlu.training.fp16 import Fp16
from nlu.training.precision import Precision
from tests.training.in_process import TINY, sets, tensors, train

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)


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


@pytest.mark.parametrize(("sets_of_cpu", "is_slow"), [({"avx2"}, True), ({"avx512_fp16"}, False), (set(), True)])
def test_fp16_is_called_slow_where_the_processor_has_no_such_products(sets_of_cpu: set[str], is_slow: bool) -> None:
    with mock.patch("nlu.training.fp16.instruction_sets", return_value=frozenset(sets_of_cpu)):
        assert bool(Fp16().warning(CPU)) == is_slow
    assert Fp16().warning(CUDA) is None


def has(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """Let the processor have these instruction sets."""
    monkeypatch.setattr(auto, "instruction_sets", lambda: frozenset(names))


@pytest.mark.parametrize(
    ("names", "choice"),
    [(("avx2", "avx512f"), "fp32"), (("avx512_bf16",), "bf16"), (("amx_tile", "amx_bf16"), "bf16"), ((), "fp32")],
)
def test_on_a_cpu_auto_is_bf16_where_it_has_such_products_and_else_fp32(
    monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...], choice: str
) -> None:
    has(monkeypatch, *names)
    found, reason = choice_for(CPU)
    assert found == choice and reason.startswith("this processor ")
    said = precision()
    assert (said.name, said.says) == ("precision=auto", f"{choice}: {reason}")


def test_a_run_with_auto_records_its_choice_and_keeps_it_on_other_hardware(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = (*TINY, *sets(tmp_path), "trainer.max_duration=4st", "trainer.save_interval=1st")
    train(*options, "precision=bf16", f"hydra.run.dir={tmp_path}/bf16")
    options = (*options, "precision=auto", "resume=auto", f"hydra.run.dir={tmp_path}/run")
    has(monkeypatch, "amx_bf16")
    train(*options, "trainer.stop_after=2st")
    config = yaml.safe_load((tmp_path / "run/config.yaml").read_text())
    assert config["choices"]["precision"] == "bf16"
    assert config["precision"] == {"_target_": "nlu.training.precision.Precision", "dtype": "bfloat16"}
    has(monkeypatch)
    train(*options)
    log = (tmp_path / "run/log.txt").read_text()
    assert "INFO precision=auto is bf16: this processor has amx_bf16" in log
    assert "INFO precision=auto is bf16, with which the run was begun" in log
    assert yaml.safe_load((tmp_path / "run/config.yaml").read_text())["precision"]["dtype"] == "bfloat16"
    found, expected = (tensors(tmp_path / name, "last/model") for name in ("run", "bf16"))
    assert all(np.array_equal(found[name], expected[name]) for name in expected)
