"""The gain of computing a layer as one node of autograd over its modules, by torch and with kernels in C.

    python benchmarks/layer_nodes.py
    python benchmarks/layer_nodes.py --sizes "4 x 312" --precision fp32 --threads 1 --turns 10

Forward and backward passes of the same steps in alternation, by nlu's own stepper. Modules and `one node`
(`nlu.models.layers.layer_in_one_node`) have the same bits, `compiled` (trainer.kernels=compiled) has others. With one
thread the time is that of the thread, which other programs hardly change, else of the wall.
"""

import statistics
import sys
import time
from typing import Any

import options
from afqmc import native_run
from inputs import announce

STEPS = {"BERT-base": 2, "4 x 312": 8}
"""of a turn: always the same ones, so that the library meets no new shape after the first turn"""


def main() -> None:
    asked = options.parser(__doc__, steps_on_a_device=True).parse_args()
    announce()
    import torch

    from nlu.models.encoders.bert_layers import Layer

    torch.set_num_threads(asked.threads)
    clock = time.thread_time if asked.threads == 1 else time.perf_counter
    for size in asked.sizes:
        run = native_run(
            size, f"precision={asked.precision}", f"trainer.batch_size={asked.batch_size}", "trainer.device=cpu"
        )
        run.stepper.model.train()
        whole, encoder = Layer.in_one_node, run.stepper.model.backbone
        encoder.train_in_c()
        found: dict[str, list[float]] = {"modules": [], "one node": [], "compiled": []}
        for turn in range(asked.turns + 1):
            for name, seconds in found.items():
                # What may not be one node is computed by modules.
                Layer.in_one_node = whole if name != "modules" else lambda *_: None  # type: ignore[method-assign]
                encoder.trains_in_c = name == "compiled"
                began_s = clock()
                for number in range(STEPS[size]):
                    passes(run, number)
                if turn:
                    seconds.append((clock() - began_s) / STEPS[size])
        Layer.in_one_node = whole  # type: ignore[method-assign]
        medians_s = {name: statistics.median(seconds) for name, seconds in found.items()}
        print(f"{size}, {asked.precision}, batch {asked.batch_size}, threads {asked.threads}, forward and backward:")
        for name, median_s in medians_s.items():
            gain = medians_s["modules"] / median_s
            print(f"  {name:8} {1e3 * median_s:8.1f} ms, {gain:.3f} times as fast as modules")
        sys.stdout.flush()


def passes(run: Any, number: int) -> None:
    """Run the passes of a step, without its update."""
    stepper = run.stepper
    shares = stepper.passes.shares(run.train_set(number), run.rank_batches(number), 0)
    counts, _, _ = stepper.passes.count(shares, False)
    stepper.passes.run(shares, {name: 1 / max(1, count) for name, count in counts.items()}, number + 1)


if __name__ == "__main__":
    main()
