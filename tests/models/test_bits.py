"""Rows have the same bits among any number of others also in a process whose library uses AVX2.

The library chooses other code for these processors, and reads which one when it computes its first product.
"""

import os
import subprocess
import sys

import pytest
import torch

SHAPES = (
    (312, 936), (312, 312), (1200, 312), (384, 1536), (1536, 384), (768, 2304), (768, 3072), (3072, 768), (768, 2),
    (15, 10), (234, 1),
)  # fmt: skip
COUNTS = (1, 2, 3, 5, 7, 9, 15, 16, 17, 22, 31, 33, 46, 64, 65, 100, 128, 200, 256, 300, 400, 500)


@pytest.mark.thorough
def test_layers_have_the_same_bits_alone_and_among_others_with_avx2() -> None:
    code = "from tests.models.test_bits import differing\nprint(*differing(), sep='\\n')"
    environment = os.environ | {"MKL_ENABLE_INSTRUCTIONS": "AVX2", "OMP_NUM_THREADS": "2"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


@torch.inference_mode()
def differing() -> list[str]:
    """Return what gives rows other bits among few others than among many."""
    from nlu.models.layers.exact_linear import Linear

    found = []
    for in_bf16 in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=in_bf16):
            for inputs, outputs in SHAPES:
                torch.manual_seed(inputs)
                layer, rows = Linear(inputs, outputs), torch.randn(600, inputs)
                together = layer(rows)
                bad = [n for n in COUNTS if not torch.equal(layer(rows[50 : 50 + n]), together[50 : 50 + n])]
                found += [f"{inputs} to {outputs}, bf16 {in_bf16}: {bad} rows"] if bad else []
    return found
