"""The machine that a figure was measured on: what it is, and how fast it multiplies matrices in the same run."""

import os
import platform
import time
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from turns import Turns

SHAPES = {"square": (2048, 2048, 2048), "bert": (1024, 768, 3072)}
"""rows, inner and columns of a product; the second is about 1,000 tokens through BERT-base's feed-forward layer"""
REPETITIONS_S = 0.3


def matmul_rates(turns: Turns, *, threads: int, device: str) -> None:
    """A side that measures GFLOP/s of matrix products at each turn, keys `bf16_square`, `fp32_bert` and so on."""
    import torch

    torch.set_num_threads(threads)
    operands = {}
    for precision, dtype in {"bf16": torch.bfloat16, "fp32": torch.float32}.items():
        for name, (rows, inner, columns) in SHAPES.items():
            left = torch.randn(rows, inner, dtype=dtype, device=device)
            # As in a linear layer: the weight is stored with its outputs first.
            right = torch.randn(columns, inner, dtype=dtype, device=device).t()
            left @ right
            operands[f"{precision}_{name}"] = left, right
    while True:
        turns.wait()
        turns.report(**{name: _gflops(*pair) for name, pair in operands.items()})


def _gflops(left: Any, right: Any) -> float:
    """Return the rate of a product in 10^9 operations per second, over a third of a second."""
    import torch

    done = 0
    began_s = time.perf_counter()
    # Several products between two looks at the clock, and on CUDA one synchronization for all of them.
    while (elapsed_s := time.perf_counter() - began_s) < REPETITIONS_S:
        for _ in range(8):
            left @ right
        if left.is_cuda:
            torch.cuda.synchronize()
        done += 8
    return done * 2 * left.shape[0] * left.shape[1] * right.shape[1] / elapsed_s / 1e9


def fast_precision() -> str:
    """Return bf16, or fp32 where the processor would do bf16 products many times slower, on either side."""
    import torch

    from nlu.training.precision import Precision

    return "fp32" if Precision(dtype="bfloat16").warning(torch.device("cpu")) else "bf16"


def best_rate(rates: dict[str, float], precision: str) -> float:
    """Return the higher rate of the two shapes: the limit that shares are measured against."""
    return max(value for name, value in rates.items() if name.startswith(precision))


def encoder_gflop_per_token(hidden: int, layers: int, intermediate: int, *, training: bool) -> float:
    """Return the work of the weights' matrix products for a real token, of a whole encoder without any shortcut.

    Attention between tokens is left out (under 1 % at these lengths), and so is padding: what a side computes beyond
    this lowers its share, what it can leave out raises it.
    """
    # For each token a multiplication and an addition for each weight: queries, keys, values and the output of attention
    # are four squares, the feed-forward layer two rectangles.
    forward = 2 * layers * (4 * hidden * hidden + 2 * hidden * intermediate)
    # The backward pass has two products for each one of the forward pass: for inputs and for weights.
    return (3 if training else 1) * forward / 1e9


def description(threads: int) -> str:
    """Return one line on the processor, its cores and the threads that both sides used."""
    name = platform.processor() or platform.machine()
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            facts = dict(line.split(":", 1) for line in lines if ":" in line)
        found = {key.strip(): value.strip() for key, value in facts.items()}
        flags = [flag for flag in ("avx512f", "avx512_bf16", "amx_bf16") if flag in found.get("flags", "").split()]
        name = f"{found.get('model name', name)} ({', '.join(flags) or 'no AVX-512'})"
    except OSError:
        name = f"{name} (no /proc/cpuinfo)"
    return f"{name}, {os.cpu_count()} cores, threads on both sides: {threads}, {platform.system()}"


def versions() -> str:
    """Return the versions of the compared packages."""
    names = ("torch", "transformers", "datasets", "accelerate", "tokenizers", "pyarrow")
    return ", ".join([f"Python {platform.python_version()}", *map(_named, names)])


def _named(package: str) -> str:
    try:
        return f"{package} {version(package)}"
    except PackageNotFoundError:
        return f"no {package}"
