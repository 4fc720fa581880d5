"""The keys of the number format that only predicts (see `nlu.config.keys`), and which commands can use it.

This module imports nothing heavy, because validation needs it.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from nlu.config.types import ConfigLike


@dataclass(kw_only=True)
class Int8:
    """Only for predicting on a CPU with VNNI: the encoder's linear layers multiply int8 weights (a scale for each
    output) by int8 activations (a scale for each row). Attention multiplies in bf16 if the processor computes its
    products. All else (embeddings, norms, softmax, activation, pooling, head) stays float32: docs/predicting.md."""

    rules_of_config = "nlu.inference.keys.int8_problems"
    compiled: bool = False
    """true = the layers by kernels in C, twice as fast and more, which the machine's C compiler builds on first use (a
    second, kept in NLU_CACHE), with attention in float32; for processors with AVX-512 VNNI; false = by torch. The last
    bits of predictions differ."""


def int8_problems(config: ConfigLike, task: ConfigLike) -> Iterator[str]:
    """Yield why the command cannot use int8: of those with the keys of a run, only nlu.evaluate predicts."""
    name = "int8_compiled" if config["precision"].get("compiled") else "int8"
    if "compare" not in config:
        yield (
            f"precision is {name}, which only predicts: rounded weights have no gradient; train with precision=fp32 or "
            f"bf16, then set precision={name} in nlu.predict, nlu.evaluate or nlu.serve"
        )
    elif config["trainer"]["device"] == "cuda":
        yield f"precision is {name}, which computes on a CPU, but trainer.device is cuda; set one of them otherwise"
