"""What `precision=auto` chooses, and what is said where a number format costs more than it saves."""

import json
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
import yaml

from nlu.diagnosis.machine import precision
from nlu.models.layers.exact_linear import product
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


@pytest.fixture(autouse=True)
def nothing_measured() -> Iterator[None]:
    """Forget, before and after a test, what this process has measured."""
    with mock.patch.dict(auto.SPEEDS, clear=True):
        yield


def has(monkeypatch: pytest.MonkeyPatch, *names: str, speeds: tuple[float, float] = (60.0, 240.0)) -> None:
    """Let the processor have these instruction sets, and these speeds in fp32 and in the other format."""
    monkeypatch.setattr(auto, "instruction_sets", lambda: frozenset(names))
    monkeypatch.setattr(auto, "speeds", lambda device, other: dict(zip(("fp32", other), speeds, strict=True)))


@pytest.mark.parametrize(
    ("names", "speeds", "choice", "reason"),
    [
        (("avx2", "avx512f"), (60.0, 240.0), "fp32", "this processor lacks bf16 products"),
        ((), (60.0, 240.0), "fp32", "this processor lacks bf16 products"),
        (("avx512_bf16",), (60.0, 240.0), "bf16", "products make 60 in fp32 and 240 in bf16, in GFLOP/s"),
        (("amx_tile", "amx_bf16"), (100.0, 111.0), "bf16", "products make 100 in fp32 and 111 in bf16, in GFLOP/s"),
        (("avx512_bf16",), (100.0, 109.0), "fp32", "products make 100 in fp32 and 109 in bf16, in GFLOP/s"),
        (("avx512_bf16",), (60.0, 30.0), "fp32", "products make 60 in fp32 and 30 in bf16, in GFLOP/s"),
    ],
)
def test_on_a_cpu_auto_is_bf16_where_its_products_are_clearly_faster(
    monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...], speeds: tuple[float, float], choice: str, reason: str
) -> None:
    has(monkeypatch, *names, speeds=speeds)
    assert choice_for(CPU) == (choice, reason)
    said = precision()
    assert (said.name, said.says) == ("precision=auto", f"{choice}: {reason}")


@pytest.mark.parametrize(
    ("has_bf16", "speeds", "choice"),
    [(True, (40.0, 400.0), "bf16"), (False, (10.0, 50.0), "fp16"), (False, (10.0, 1.0), "fp32")],
)
def test_on_cuda_auto_is_bf16_or_else_fp16_where_it_is_faster_than_fp32(
    monkeypatch: pytest.MonkeyPatch, has_bf16: bool, speeds: tuple[float, float], choice: str
) -> None:
    has(monkeypatch, speeds=speeds)
    monkeypatch.setattr(torch.cuda, "device", nullcontext)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: has_bf16)
    assert choice_for(CUDA)[0] == choice


def test_the_fastest_turn_after_the_first_decides_how_fast_a_format_is(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s, formats = 0.0, []
    turns_s = {False: iter([0.001, 0.02, 0.01, 0.04]), True: iter([0.001, 0.008, 0.005, 0.006])}

    def timed(*tensors: torch.Tensor | None) -> torch.Tensor:
        nonlocal now_s
        now_s += next(turns_s[torch.is_autocast_enabled("cpu")])
        formats.append((found := product(*tensors)).dtype)  # type: ignore[arg-type]
        return found

    monkeypatch.setattr(auto, "product", timed)
    monkeypatch.setattr(auto, "time", mock.Mock(perf_counter=lambda: now_s))
    # Three products of 1,024 x 312 x 312 multiplications and additions.
    assert auto.speeds(CPU, "bf16") == {"fp32": 59.8, "bf16": 119.6}
    assert formats == [torch.float32, torch.bfloat16] * 4


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
    assert "INFO precision=auto is bf16: products make 60 in fp32 and 240 in bf16, in GFLOP/s" in log
    begun = json.loads((tmp_path / "run/provenance.json").read_text())["starts"][0]
    assert begun["gflops"] == {"fp32": 60.0, "bf16": 240.0}
    assert "INFO precision=auto is bf16, with which the run was begun" in log
    assert yaml.safe_load((tmp_path / "run/config.yaml").read_text())["precision"]["dtype"] == "bfloat16"
    found, expected = (tensors(tmp_path / name, "last/model") for name in ("run", "bf16"))
    assert all(np.array_equal(found[name], expected[name]) for name in expected)
