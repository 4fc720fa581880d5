"""Does the estimate of a step's memory hold? Measured and estimated peaks of SimBERT-tiny, as a table for docs.

    python benchmarks/step_memory.py
    python benchmarks/step_memory.py --override model.dropout=0.1 model.attention_dropout=0.1

Measured is the resident memory of a step at its peak beyond that before it, on the longest rows of ChnSentiCorp, plus
the tensors of weights, gradients, the optimizer's state and the moving average. The data must be in NLU_DATA.
"""

import argparse
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from afqmc import built, composed

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
    print("| rows | tokens of a row | gradient_checkpointing | measured MB | estimated MB | ratio |")
    print("|---|---|---|---|---|---|")
    for size, length in CASES:
        for again in (False, True):
            keys = [
                "model=simbert_tiny", "data=chnsenticorp", f"data.max_len={length}", f"trainer.batch_size={size}",
                "trainer.device=cpu", f"model.gradient_checkpointing={str(again).lower()}", *own,
            ]  # fmt: skip
            run = built(composed(*keys))
            estimate = step_memory(plain(composed(*keys)))
            assert isinstance(estimate, StepMemory), estimate
            measured = sum(states(run)) + max(peak(run, size) for _ in range(TURNS))
            found = estimate.total
            print(
                f"| {size} | {length} | {'yes' if again else 'no'} | {measured / 1e6:,.0f} | {found / 1e6:,.0f} "
                f"| {found / measured:.2f} |",
                flush=True,
            )


def plain(config: Any) -> dict[str, Any]:
    """Return the configuration as the command has it."""
    from dataclasses import asdict

    return asdict(config)


def states(run: Any) -> Iterator[int]:
    """Yield the bytes of what a step keeps, after a first step has made it."""
    stepper = run.stepper
    peak(run, 2)
    for parameter in stepper.model.parameters():
        yield 2 * parameter.nbytes
    for state in stepper.optimizer.state.values():
        yield sum(value.nbytes for value in state.values() if isinstance(value, torch.Tensor))
    yield sum(value.nbytes for value in (stepper.average or {}).values())


def peak(run: Any, size: int) -> int:
    """Return the bytes at the peak of a step with the longest rows, beyond those before it."""
    part = run.train_set(0)
    longest_B: Sequence[int] = np.argsort(-part.lengths_N, kind="stable")[:size]
    release(run.stepper.device)
    found = Peak()
    found.restart()
    run.stepper.model.train()
    run.stepper.step(part, [longest_B], 1, False).result()
    return found.bytes()


if __name__ == "__main__":
    main()
