"""MKL's strict mode holds in every process of nlu from the first product on; where it cannot, a line says so."""

import os
import subprocess
import sys

import pytest

STRICT = "import torch\nfrom nlu.config.mkl import is_strict\n"
PRODUCT = "import torch\ntorch.randn(50, 50) @ torch.randn(50, 50)\n"
SHOW = "print(is_strict(torch))\n"


def run(code: str, **environment: str) -> tuple[str, str]:
    """Return what a new process prints and what it logs, without the mode that this process has set."""
    known = {name: value for name, value in os.environ.items() if name not in ("MKL_CBWR", "ONEDNN_MAX_CPU_ISA")}
    done = subprocess.run(
        [sys.executable, "-c", code], env=known | environment, capture_output=True, text=True, check=True
    )
    return done.stdout.strip(), done.stderr


@pytest.fixture(scope="module")
def asks_mkl() -> None:
    import torch

    from nlu.config.mkl import is_strict

    if is_strict(torch) is None:
        pytest.skip("torch has no MKL that says its mode")


def test_a_process_that_imports_nlu_has_those_that_it_starts_multiply_in_strict_mode(asks_mkl: None) -> None:
    child = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {PRODUCT + STRICT + SHOW!r}], check=True)\n"
    said, logged = run("import nlu\n" + child)
    assert said == "True" and "MKL" not in logged


@pytest.mark.thorough
def test_a_product_before_the_import_is_reported(asks_mkl: None) -> None:
    said, logged = run(PRODUCT + STRICT + SHOW)
    assert said == "False"
    assert "a product was computed before nlu was imported" in logged and "MKL_CBWR=AUTO,STRICT" in logged


def test_a_mode_of_the_user_stays(asks_mkl: None) -> None:
    assert run("import nlu, os\nprint(os.environ['MKL_CBWR'])", MKL_CBWR="COMPATIBLE") == ("COMPATIBLE", "")


def test_bf16_is_multiplied_without_tiles_unless_the_user_wants_them() -> None:
    asked = "import nlu, os\nprint(os.environ['ONEDNN_MAX_CPU_ISA'])"
    assert run(asked)[0] == "AVX512_CORE_FP16" and run(asked, ONEDNN_MAX_CPU_ISA="ALL")[0] == "ALL"
