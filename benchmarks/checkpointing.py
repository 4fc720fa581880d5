"""The price of model.gradient_checkpointing: time of a step and memory of its passes, with and without it.

    python benchmarks/checkpointing.py
    python benchmarks/checkpointing.py --sizes "4 x 312" --precision fp32 --turns 3

Steps of the same rows in alternation, by nlu's own stepper. Time is that of the process (CPU) or of the wall (CUDA);
memory is the peak beyond what weights, gradients and the optimizer's state take.
"""

import statistics
import time
from pathlib import Path
from typing import Any

import options
from afqmc import native_run
from inputs import announce


def main() -> None:
    asked = options.parser(__doc__, steps_on_a_device=True).parse_args()
    announce()
    for size in asked.sizes:
        given = [
            f"precision={asked.precision}", f"trainer.batch_size={asked.batch_size}", f"trainer.device={asked.device}"
        ]  # fmt: skip
        runs = {on: native_run(size, *given, f"model.gradient_checkpointing={str(on).lower()}") for on in (False, True)}
        found: dict[bool, list[tuple[float, int]]] = {False: [], True: []}
        # The first step makes the optimizer's state.
        for number in range(asked.turns + 1):
            for on, run in runs.items():
                found[on].append(step(run, number))
        seconds, peaks = (
            {on: statistics.median(each[place] for each in values[1:]) for on, values in found.items()}
            for place in range(2)
        )
        print(
            f"{size}, {asked.precision}, batch {asked.batch_size}: {seconds[True] / seconds[False]:.2f} times the time "
            f"of a step ({seconds[False]:.2f} s without), {peaks[True] / peaks[False]:.2f} times the memory of passes "
            f"({peaks[False] / 1e6:,.0f} MB without)",
            flush=True,
        )


def step(run: Any, number: int) -> tuple[float, int]:
    """Do a step; returns its seconds, and the bytes at the peak of its passes."""
    import torch

    from nlu.training.host_memory import Peak
    from nlu.training.memory import release

    device = run.stepper.device
    on_cuda, clock = device.type == "cuda", time.perf_counter if device.type == "cuda" else time.process_time
    if on_cuda:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
    else:
        # What the allocator keeps would hide a smaller peak.
        release(device)
        peak = Peak()
        # Forgets the peak so far.
        Path("/proc/self/clear_refs").write_text("5")
    began_s = clock()
    # Epochs are the same rows again: the same step each time, so that only the setting differs.
    run.stepper.step(run.train_set(number), run.rank_batches(number), number + 1, False).result()
    if on_cuda:
        torch.cuda.synchronize()
        return clock() - began_s, torch.cuda.max_memory_allocated() - before
    return clock() - began_s, peak.bytes()


if __name__ == "__main__":
    main()
