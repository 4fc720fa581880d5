"""Does the estimate of a step's memory hold? Measured and estimated peaks of SimBERT-tiny, as a table for docs.

    python benchmarks/step_memory.py
    python benchmarks/step_memory.py --override model.dropout=0.1 model.attention_dropout=0.1

Measured are the tensors of weights, gradients, the optimizer's state and the moving average, plus those of a step at
its peak by torch's profiler, with the longest rows of ChnSentiCorp. For the process, the growth of its resident memory
stands in place of the latter; it has also what glibc keeps between tensors. The data must be in NLU_DATA.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from afqmc import built, composed
from torch.profiler import ProfilerActivity, profile

from nlu.models.memory import StepMemory, step_memory
from nlu.training.host_memory import Peak
from nlu.training.memory import release

CASES = [(16, 64), (32, 64), (64, 64), (16, 128), (32, 128), (8, 256)]
"""batch size and length"""
TURNS = 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--override", nargs="*", default=[], help="further keys of the run")
    own = parser.parse_args().override
    print("| rows | tokens of a row | gradient_checkpointing | measured MB | estimated MB | ratio | process MB |")
    print("|---|---|---|---|---|---|---|")
    for size, length in CASES:
        for again in (False, True):
            keys = [
                "model=simbert_tiny", "data=chnsenticorp", f"data.max_len={length}", f"trainer.batch_size={size}",
                "trainer.device=cpu", f"model.gradient_checkpointing={str(again).lower()}", *own,
            ]  # fmt: skip
            run = built(composed(*keys))
            estimate = step_memory(asdict(composed(*keys)))
            assert isinstance(estimate, StepMemory), estimate
            held = sum(states(run))
            measured, process = held + traced_peak(run, size), held + max(peak(run, size) for _ in range(TURNS))
            found = estimate.total
            print(
                f"| {size} | {length} | {'yes' if again else 'no'} | {measured / 1e6:,.0f} | {found / 1e6:,.0f} "
                f"| {found / measured:.2f} | {process / 1e6:,.0f} |",
                flush=True,
            )


def states(run: Any) -> Iterator[int]:
    """Yield the bytes of what a step keeps, after a first step has made it."""
    stepper = run.stepper
    step(run, 2)
    for parameter in stepper.model.parameters():
        yield 2 * parameter.nbytes
    for state in stepper.optimizer.state.values():
        yield sum(value.nbytes for value in state.values() if isinstance(value, torch.Tensor))
    yield sum(value.nbytes for value in (stepper.average or {}).values())


def step(run: Any, size: int) -> None:
    """Do a step with the longest rows."""
    part = run.train_set(0)
    longest_B: Sequence[int] = np.argsort(-part.lengths_N, kind="stable")[:size]
    run.stepper.model.train()
    run.stepper.step(part, [longest_B], 1, False).result()


def traced_peak(run: Any, size: int) -> int:
    """Return the bytes of tensors at the peak of a step, beyond those before it."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        step(run, size)
    with TemporaryDirectory() as name:
        path = Path(name) / "trace.json"
        profiler.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    # The profiler counts from zero, without the tensors from before.
    totals = [event["args"]["Total Allocated"] for event in events if event.get("name") == "[memory]"]
    return int(max(totals))


def peak(run: Any, size: int) -> int:
    """Return the resident bytes at the peak of a step, beyond those before it."""
    release(run.stepper.device)
    found = Peak()
    found.restart()
    step(run, size)
    return found.bytes()


if __name__ == "__main__":
    main()
