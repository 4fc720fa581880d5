"""The keys of the number format that only predicts; see `nlu.config.keys`."""

from dataclasses import dataclass


@dataclass(kw_only=True)
class Int8:
    """Only for predicting on a CPU with VNNI: the encoder's linear layers multiply int8 weights (a scale for each
    output) by int8 activations (a scale for each row). Attention multiplies in bf16 if the processor computes its
    products. All else (embeddings, norms, softmax, activation, pooling, head) stays float32: docs/predicting.md."""

    rules_of_config = "nlu.inference.int8.rules.int8_problems"
    compiled: bool = False
    """true = the layers by kernels in C, twice as fast and more, which the machine's C compiler builds on first use (a
    second, kept in NLU_CACHE), with attention in float32; for processors with AVX-512 VNNI; false = by torch. The last
    bits of predictions differ."""
