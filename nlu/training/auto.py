"""precision=auto: the format that this machine computes fastest, chosen before a run begins.

The run's configuration and records hold the choice, so a continued run computes as it began.
"""

import logging
from pathlib import Path
from typing import Any, TypeVar

import torch
import yaml

from nlu.config.choices import node_of, target_of
from nlu.config.keys import takes
from nlu.config.schema import Run
from nlu.config.targets import TARGET
from nlu.runs.folder import CONFIG
from nlu.training import keys as schemas
from nlu.training.precision import instruction_sets
from nlu.training.ranks import Ranks

log = logging.getLogger(__name__)

GROUP, NAME = "precision", "auto"
_BF16 = ("amx_bf16", "avx512_bf16", "bf16", "svebf16")
"""instruction sets with bf16 products, as /proc/cpuinfo names them; the last two are Arm's"""
AnyRun = TypeVar("AnyRun", bound=Run)


@takes(schemas.Auto)
class Auto:
    """The choice `auto`; nothing computes in it, since `with_precision` replaces it."""


def choice_for(device: torch.device) -> tuple[str, str]:
    """Return the choice of the group `precision` for a device, and the reason.

    bf16 if the hardware computes its products, else fp16 on CUDA, else fp32: a CPU without such instructions computes
    bf16 and fp16 many times slower than fp32.
    """
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
        with torch.cuda.device(device):
            # Emulated ones are slower than those in fp16.
            has_products = torch.cuda.is_bf16_supported(including_emulation=False)
        return ("bf16", f"{name} computes bf16 products") if has_products else ("fp16", f"{name} lacks bf16 products")
    found = [name for name in _BF16 if name in instruction_sets()]
    if found and torch.backends.mkldnn.is_available():
        return "bf16", f"this processor has {found[0]}"
    return "fp32", "this processor lacks bf16 products"


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
