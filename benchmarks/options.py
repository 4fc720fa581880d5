"""The command-line options that the speed benchmarks share."""

import argparse
import os

from afqmc import SIZES
from machine import fast_precision


def parser(description: str | None, *, turns: bool = True, steps_on_a_device: bool = False) -> argparse.ArgumentParser:
    """Return a parser with --threads and, where they apply, --turns and what describes steps of a size on a device."""
    out = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    out.add_argument("--threads", type=int, default=os.cpu_count())
    if turns:
        out.add_argument("--turns", type=int, default=5)
    if steps_on_a_device:
        out.add_argument("--sizes", nargs="+", choices=list(SIZES), default=list(SIZES))
        out.add_argument("--batch-size", type=int, default=32)
        out.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
        precision(out)
    return out


def precision(parser: argparse.ArgumentParser) -> None:
    """Give a parser --precision, of both sides."""
    parser.add_argument(
        "--precision", choices=("bf16", "fp32"), default=fast_precision(),
        help="by default bf16, but fp32 on a CPU without bf16 products (default %(default)s)",
    )  # fmt: skip
