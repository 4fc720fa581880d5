"""What a benchmark found, as rows of one table, and the machine that it was found on."""

import os
import platform
import subprocess
import time
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from turns import Turns

HEADINGS = ("claim", "peer", "unit", "peer's", "ours", "ratio", "target", "met", "of the machine's limit", "compiling")
SHAPES = {"square": (2048, 2048, 2048), "bert": (1024, 768, 3072)}
"""rows, inner and columns of a product; the second is about 1,000 tokens through BERT-base's feed-forward layer"""
REPETITIONS_S = 0.3


@dataclass(frozen=True)
class Row:
    """One comparison. `ratio` is how many times better ours is, also if lower is better."""

    claim: str
    peer: str
    unit: str
    theirs: float | None
    ours: float
    target: float | None = None
    """the least ratio, or where `limit` is set the largest value of ours"""
    lower_is_better: bool = False
    limit: float | None = None
    """an absolute bound on ours, in `unit`; the ratio is then shown and not judged"""
    share: float | None = None
    """of the rate that the machine was measured to have in the same run"""
    least_share: float | None = None
    compared: bool = True
    """false where the two figures are differences near zero, whose ratio says nothing"""
    compiling: str = ""
    """how much later the compiled sides were ready than the eager ones"""

    @property
    def ratio(self) -> float | None:
        if self.theirs is None or not self.compared:
            return None
        return self.theirs / self.ours if self.lower_is_better else self.ours / self.theirs

    @property
    def met(self) -> bool | None:
        """Whether every bound holds; None without a bound."""
        verdicts = []
        if self.limit is not None:
            verdicts.append(self.ours <= self.limit)
        if self.target is not None and self.ratio is not None:
            verdicts.append(self.ratio >= self.target)
        if self.least_share is not None and self.share is not None:
            verdicts.append(self.share >= self.least_share)
        return all(verdicts) if verdicts else None

    def cells(self) -> tuple[str, ...]:
        """Return the row as the columns of HEADINGS."""
        bounds = []
        if self.target is not None:
            bounds.append(f">= {self.target:g}x")
        if self.limit is not None:
            bounds.append(f"<= {self.limit:g} {self.unit}")
        if self.least_share is not None:
            bounds.append(f">= {self.least_share:.0%} of the limit")
        return (
            self.claim, self.peer, self.unit, "" if self.theirs is None else number(self.theirs), number(self.ours),
            "" if self.ratio is None else f"{self.ratio:.2f}", ", ".join(bounds),
            {True: "yes", False: "no", None: ""}[self.met], "" if self.share is None else f"{self.share:.0%}",
            self.compiling,
        )  # fmt: skip


def number(value: float) -> str:
    """Write a figure with as many digits as a noisy measurement deserves."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def show(rows: list[Row]) -> None:
    """Print the rows as they are found, one line each."""
    for row in rows:
        claim, peer, unit, theirs, ours, ratio, bounds, met, share, compiling = row.cells()
        words = [f"{claim}:", f"ours {ours} {unit},"]
        words += [f"{peer} {theirs}{f', ratio {ratio}' if ratio else ''}"] if theirs else [f"({peer})"]
        words += [f"[{bounds}: {met or 'not judged'}]"] if bounds else []
        words += [f"{share} of the machine's limit"] if share else []
        words += [f"compiling: {compiling}"] if compiling else []
        print(" ".join(words), flush=True)


def markdown(rows: list[Row]) -> str:
    """Return the rows as a Markdown table, without the columns that are empty."""
    if not rows:
        return "nothing was measured\n"
    cells = [row.cells() for row in rows]
    used = [number for number in range(len(HEADINGS)) if any(row[number] for row in cells)]
    lines = [[row[number] for number in used] for row in (HEADINGS, ("---",) * len(HEADINGS), *cells)]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


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


def commit() -> str:
    """Return the commit measured, and whether the working tree differs from it."""
    try:
        done = subprocess.run(
            ["git", "describe", "--always", "--dirty"],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return "no git checkout"
    return done.stdout.strip()


def versions() -> str:
    """Return the versions of the compared packages."""
    names = ("torch", "triton", "transformers", "datasets", "accelerate", "tokenizers", "pyarrow")
    return ", ".join([f"Python {platform.python_version()}", *map(_named, names)])


def _named(package: str) -> str:
    try:
        return f"{package} {version(package)}"
    except PackageNotFoundError:
        return f"no {package}"
