"""What a search wants to know of a run besides its scores: latency and size.

The names are those of `nlu.search.goals.QUANTITIES`. Measured once, at the end of the run, and only if asked for.
"""

import statistics
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from nlu.config.errors import UserError
from nlu.data.collate import collate
from nlu.search.goals import QUANTITIES
from nlu.training.parts import Training

WARM_UP, TIMED = 8, 64
"""passes before the clock starts, and those that it times"""


def asked_for(run: Training) -> list[str]:
    """Return on all ranks which quantities are to be measured."""
    if not run.is_trial:
        return []
    found = run.trial.quantities if run.trial is not None else None
    return [name for name in run.stepper.ranks.from_first(found) if name in QUANTITIES]


def measured(run: Training, names: Sequence[str]) -> dict[str, object]:
    """Return these quantities by name, with the device and its threads; {} if nothing was asked for.

    Every rank must call it, since a strategy may communicate within a pass. The numbers are those of rank 0.
    """
    if not names:
        return {}
    ranks = run.stepper.ranks
    found: dict[str, object] = {"latency_ms": latency_ms(run)} if "latency_ms" in names else {}
    for name in names if ranks.is_first else ():
        if name == "parameters":
            found[name] = sum(parameter.numel() for parameter in run.stepper.model.parameters())
        elif name == "size_mb":
            found[name] = _size_mb(run.run_dir / "checkpoints" / "best-1" / "model.safetensors")
    device = ranks.device
    is_cuda = device.type == "cuda"
    return {
        **found,
        "device": torch.cuda.get_device_name(device) if is_cuda else device.type,
        "threads": torch.get_num_threads(),
    }


@torch.inference_mode()
def latency_ms(run: Training) -> float:
    """Return the median time of one text of the dev set, from its tokens to the outputs of the model.

    `TIMED` texts, spread evenly over the set, are timed one by one, after a pass over `WARM_UP` of them. Tokenizing is
    left out. A small set repeats texts.
    """
    part = next(iter(run.store.of_role("dev").values()))
    evaluator, device = run.evaluator(part.member), run.stepper.ranks.device
    was_training = evaluator.model.training
    evaluator.model.eval()
    try:
        times_s = []
        texts = np.linspace(0, len(part) - 1, TIMED).astype(int).tolist()
        for number, example in enumerate([*texts[:: TIMED // WARM_UP], *texts]):
            began_s = time.perf_counter()
            batch = collate(part, np.array([example]))
            with evaluator.precision.autocast(device):
                evaluator.task.forward(evaluator.model, batch.to(device))
            if device.type == "cuda":
                # The host runs ahead of the device.
                torch.cuda.synchronize(device)
            if number >= WARM_UP:
                times_s.append(time.perf_counter() - began_s)
    finally:
        evaluator.model.train(was_training)
    return statistics.median(times_s) * 1000


def _size_mb(path: Path) -> float:
    if not path.is_file():
        raise UserError(f"{path} does not exist, so size_mb cannot be measured; leave size_mb out")
    return path.stat().st_size / 1e6
