"""Where the time of one training step goes: matrix products, attention, norms and activations, optimizer, the rest.

    python benchmarks/profile_step.py
    python benchmarks/profile_step.py --sizes "4 x 312" --precision fp32 --steps 20

Runs nlu's own step (forward, backward, clipping, AdamW) on AFQMC pairs under torch.profiler and adds up the time that
each operator spends in itself, by class; what the wall clock shows beyond that is Python and the profiler's own cost.
Operators that no class names are listed, so that nothing hides in the rest.
"""

import argparse
import re
import sys
import time
from collections import Counter
from typing import Any

import options
from afqmc import native_run
from inputs import announce

WARM_UP_STEPS = {"BERT-base": 5, "4 x 312": 150}
"""until the library has met most shapes"""
CLASSES = {
    "attention": r"scaled_dot_product|flash_attention|efficient_attention|attention|bmm|softmax",
    "matrix products": r"\b(mm|addmm|matmul|linear|mkldnn_linear|mkldnn_linear_backward|mkldnn_reorder_linear)|_mm\b",
    "norms, activations, dropout": r"layer_norm|gelu|tanh|relu|dropout|bernoulli",
    "optimizer and clipping": r"adamw|_foreach|linalg_vector_norm",
    "embeddings": r"embedding|index_select|\bindex\b|index_put|index_add|gather|scatter",
    "copies and casts": r"copy_|_to_copy|\bto\b|contiguous|clone|\bcat\b|split|transpose|\bt\b|view|reshape|as_strided",
}
"""operator names, the first class that fits; batched products (bmm) occur only in attention"""
LISTED = 8


def class_of(name: str) -> str:
    """Return the class of an operator."""
    bare = name.removeprefix("aten::")
    return next((title for title, pattern in CLASSES.items() if re.search(pattern, bare)), "everything else")


def profile(size: str, arguments: argparse.Namespace) -> None:
    """Print the shares of one size."""
    import torch
    from torch.profiler import ProfilerActivity

    torch.set_num_threads(arguments.threads)
    run = native_run(
        size, f"precision={arguments.precision}", f"trainer.device={arguments.device}",
        f"trainer.batch_size={arguments.batch_size}",
    )  # fmt: skip
    run.stepper.model.train()

    def step(number: int) -> None:
        run.stepper.step(run.train_set(number), run.rank_batches(number), number + 1, False)

    warm_up_steps = WARM_UP_STEPS[size]
    for number in range(warm_up_steps):
        step(number)
    on_cuda = arguments.device == "cuda"
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_cuda else [])]
    with torch.profiler.profile(activities=activities) as profiler:
        began_s = time.perf_counter()
        for number in range(warm_up_steps, warm_up_steps + arguments.steps):
            step(number)
        if on_cuda:
            torch.cuda.synchronize()
        elapsed_s = time.perf_counter() - began_s
    spent_s: Counter[str] = Counter()
    unnamed_s: Counter[str] = Counter()
    for event in profiler.key_averages():
        # The time of an operator without that of the operators it calls, so that none counts twice.
        self_s = own_seconds(event, on_cuda)
        spent_s[class_of(event.key)] += self_s
        if class_of(event.key) == "everything else":
            unnamed_s[event.key] += self_s
    step_ms = 1e3 * elapsed_s / arguments.steps
    print(f"\n{size}, {arguments.precision}, batch {arguments.batch_size}: {step_ms:.1f} ms a step")
    for title, seconds in [*spent_s.most_common(), ("outside of operators", max(0.0, elapsed_s - spent_s.total()))]:
        print(f"  {seconds / elapsed_s:6.1%}  {1e3 * seconds / arguments.steps:8.1f} ms  {title}")
    shown = ", ".join(f"{name} {seconds / elapsed_s:.1%}" for name, seconds in unnamed_s.most_common(LISTED))
    print(f"  everything else begins with: {shown}", flush=True)


def own_seconds(event: Any, on_cuda: bool) -> float:
    """Return the time that an operator spent in itself, on the device if it ran there."""
    return (event.self_device_time_total if on_cuda else event.self_cpu_time_total) / 1e6


def main() -> None:
    """Profile every asked-for size."""
    parser = options.parser(__doc__, turns=False, steps_on_a_device=True)
    parser.add_argument("--steps", type=int, default=5)
    arguments = parser.parse_args(sys.argv[1:])
    announce()
    for size in arguments.sizes:
        profile(size, arguments)


if __name__ == "__main__":
    main()
