"""Where the time of one training step goes: matrix products, attention, norms and activations, optimizer, the rest.

    python benchmarks/profile_step.py
    python benchmarks/profile_step.py --sizes "4 x 312" --precision fp32 --steps 20

Runs nlu's own step (forward, backward, clipping, AdamW) on AFQMC pairs under torch.profiler and adds up the time that
each operator spends in itself, by class; what the wall clock shows beyond that is Python and the profiler's own cost.
Operators that no class names are listed, so that nothing hides in the rest.
"""

import argparse
import itertools
import re
import sys
import time
from collections import Counter

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
    from torch.autograd import DeviceType

    from nlu.diagnosis.traced import MODULE, trace

    torch.set_num_threads(arguments.threads)
    run = native_run(
        size, f"precision={arguments.precision}", f"trainer.device={arguments.device}",
        f"trainer.batch_size={arguments.batch_size}",
    )  # fmt: skip
    run.stepper.model.train()
    numbers = itertools.count()

    def step() -> None:
        number = next(numbers)
        run.stepper.step(run.train_set(number), run.rank_batches(number), number + 1, False)

    for _ in range(WARM_UP_STEPS[size]):
        step()
    began_s = time.perf_counter()
    found = trace(run.stepper.model, torch.device(arguments.device), step, arguments.steps, None)
    step_s = (time.perf_counter() - began_s) / arguments.steps
    spent_s: Counter[str] = Counter()
    unnamed_s: Counter[str] = Counter()
    for row in found.rows:
        # The time of a kernel is that of the operator that started it too.
        if row.device_type == DeviceType.CPU and not row.key.startswith(MODULE):
            own_us = row.self_device_time_total if found.on_cuda else row.self_cpu_time_total
            spent_s[class_of(row.key)] += own_us / 1e6 / arguments.steps
            if class_of(row.key) == "everything else":
                unnamed_s[row.key] += own_us / 1e6 / arguments.steps
    print(f"\n{size}, {arguments.precision}, batch {arguments.batch_size}: {1e3 * step_s:.1f} ms a step")
    for title, seconds in [*spent_s.most_common(), ("outside of operators", max(0.0, step_s - spent_s.total()))]:
        print(f"  {seconds / step_s:6.1%}  {1e3 * seconds:8.1f} ms  {title}")
    shown = ", ".join(f"{name} {seconds / step_s:.1%}" for name, seconds in unnamed_s.most_common(LISTED))
    print(f"  everything else begins with: {shown}", flush=True)


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
