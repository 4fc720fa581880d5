"""precision=auto: the format in which this machine multiplies fastest, measured before a run begins.

The run's configuration and records hold the choice, so a continued run computes as it began. Whether hardware has
instructions for a format is asked first, since it computes other formats many times slower than fp32.

Axes: R rows, I input features, O output features.
"""

import logging
import time
from pathlib import Path
from typing import Any, TypeVar

import torch
import yaml

from nlu.config.choices import node_of, target_of
from nlu.config.keys import takes
from nlu.config.schema import Run
from nlu.config.targets import TARGET
from nlu.models.layers.exact_linear import product
from nlu.runs.folder import CONFIG
from nlu.training import keys as schemas
from nlu.training.precision import instruction_sets
from nlu.training.ranks import Ranks

log = logging.getLogger(__name__)

GROUP, NAME = "precision", "auto"
_BF16 = ("amx_bf16", "avx512_bf16", "bf16", "svebf16")
"""instruction sets with bf16 products, as /proc/cpuinfo names them; the last two are Arm's"""
_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
_SIZES = {"cpu": (1024, 312, 312), "cuda": (8192, 768, 3072)}
"""rows, inputs and outputs of the layer that is measured: on a CPU small, for many turns; on CUDA large, since there a
small product takes as long as its start"""
CLEARLY = 1.1
"""how many times as fast as fp32 another format must be, so that noise does not decide"""
BUDGET_S, LEAST = 0.05, 3
"""how long speeds are measured, and how often at least"""
SPEEDS: dict[str, float] = {}
"""GFLOP/s of fp32 and the other format, once this process has measured them; for the records of its runs"""
AnyRun = TypeVar("AnyRun", bound=Run)


@takes(schemas.Auto)
class Auto:
    """The choice `auto`; nothing computes in it, since `with_precision` replaces it."""


def choice_for(device: torch.device) -> tuple[str, str]:
    """Return the choice of the group `precision` for a device, and the reason.

    bf16, or fp16 on CUDA without bf16 products, if the hardware has such products and they are clearly faster than
    those of fp32; else fp32. A process measures once.
    """
    if device.type == "cuda":
        with torch.cuda.device(device):
            # Emulated ones are slower than those in fp16.
            other = "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp16"
    elif torch.backends.mkldnn.is_available() and instruction_sets().intersection(_BF16):
        other = "bf16"
    else:
        return "fp32", "this processor lacks bf16 products"
    if not SPEEDS:
        SPEEDS.update(speeds(device, other))
    said = " and ".join(f"{SPEEDS[name]:,.0f} in {name}" for name in SPEEDS)
    return other if SPEEDS[other] >= CLEARLY * SPEEDS["fp32"] else "fp32", f"products make {said}, in GFLOP/s"


def speeds(device: torch.device, other: str) -> dict[str, float]:
    """Return the GFLOP/s of fp32 and of another format in what training computes of a layer: its product, and the two
    of its gradient.

    The formats take turns, and the fastest turn of each counts, since other work on the machine only makes it slower.
    """
    rows, inputs, outputs = _SIZES[device.type]
    rows_RI = torch.full((rows, inputs), 0.01, device=device, requires_grad=True)
    weight_OI = torch.full((outputs, inputs), 0.01, device=device, requires_grad=True)

    def seconds(name: str) -> float:
        began_s = time.perf_counter()
        with torch.autocast(device.type, dtype=_DTYPES.get(name), enabled=name in _DTYPES):
            product_RO = product(rows_RI, weight_OI, None)
        torch.autograd.grad(product_RO, (rows_RI, weight_OI), product_RO.detach())
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter() - began_s

    turns_s: dict[str, list[float]] = {"fp32": [], other: []}
    for name in turns_s:
        # The first turn loads libraries and compiles kernels.
        seconds(name)
    while min(map(len, turns_s.values())) < LEAST or sum(map(sum, turns_s.values())) < BUDGET_S:
        for name, turns in turns_s.items():
            turns.append(seconds(name))
    return {name: round(6e-9 * rows * inputs * outputs / min(turns), 1) for name, turns in turns_s.items()}


def with_precision(config: AnyRun, ranks: Ranks, run_dir: Path | None = None) -> AnyRun:
    """Return the configuration with a choice for this hardware if its precision is auto, else the same.

    A run of `run_dir` that is continued keeps the precision with which it was begun. Rank 0 decides for all, and every
    rank must call it.
    """
    if config.precision[TARGET] != target_of(GROUP, NAME):
        return config

    def choose() -> tuple[dict[str, Any], str]:
        if run_dir is not None and config.resume != "never" and (run_dir / CONFIG).is_file():
            begun = yaml.safe_load((run_dir / CONFIG).read_text(encoding="utf-8"))
            choice = begun["choices"].get(GROUP, begun[GROUP][TARGET])
            log.info("precision=auto is %s, with which the run was begun", choice)
            return begun[GROUP], choice
        choice, reason = choice_for(ranks.device)
        log.info("precision=auto is %s: %s", choice, reason)
        return node_of(GROUP, choice), choice

    node, choice = ranks.from_first(choose() if ranks.is_first else None)
    return config.with_choice(GROUP, node, choice)
