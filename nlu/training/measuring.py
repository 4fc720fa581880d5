"""What a search wants to know of a run besides its scores: latency and size.

The names are those of `nlu.search.goals.QUANTITIES`. Measured once, at the end of the run, and only if asked for.
"""

import statistics
import time

import numpy as np
import torch

from nlu.data.collate import collate
from nlu.training.parts import Training

WARM_UP, TIMED = 8, 64
"""passes before the clock starts, and those that it times"""


def measured(run: Training) -> dict[str, float]:
    """Return by name the quantities that the search of this run asks for; {} if it is no trial.

    Every rank must call it. The numbers are those of rank 0.
    """
    if not run.is_trial:
        return {}
    asked = run.stepper.ranks.from_first(None if run.trial is None else run.trial.quantities)
    found = {"latency_ms": latency_ms(run)} if "latency_ms" in asked else {}
    if "parameters" in asked:
        found["parameters"] = sum(parameter.numel() for parameter in run.stepper.model.parameters())
    return found


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
