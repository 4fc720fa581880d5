"""The limit of a device: how fast it multiplies matrices."""

import time

import torch

from nlu.training.precision import NumberFormat

SQUARE = (2048, 2048, 2048)
BERT_SHAPED = (1024, 768, 3072)
"""about 1,000 tokens through the first half of BERT-base's feed-forward layer"""
SHAPES = {"square": SQUARE, "bert": BERT_SHAPED}
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
REPETITIONS_S = 0.3


class Products:
    """Matrix products whose rates are measured, by names such as `bf16_square` and `fp32_bert`."""

    def __init__(self, device: torch.device, precisions: tuple[str, ...] = ("bf16", "fp32")):
        self._device = device
        self._operands = {}
        for precision in precisions:
            for name, (rows, inner, columns) in SHAPES.items():
                left = torch.randn(rows, inner, dtype=DTYPES[precision], device=device)
                # As in a linear layer: the weight is stored with its outputs first.
                right = torch.randn(columns, inner, dtype=DTYPES[precision], device=device).t()
                self._operands[f"{precision}_{name}"] = left, right
        for left, right in self._operands.values():
            left @ right

    def gflops(self) -> dict[str, float]:
        """Measure each product for a third of a second; returns 10^9 operations per second."""
        return {name: self._rate(left, right) for name, (left, right) in self._operands.items()}

    def _rate(self, left: torch.Tensor, right: torch.Tensor) -> float:
        done = 0
        began_s = time.perf_counter()
        # Several products between two looks at the clock, and on CUDA one synchronization for all of them.
        while (elapsed_s := time.perf_counter() - began_s) < REPETITIONS_S:
            for _ in range(8):
                left @ right
            if self._device.type == "cuda":
                torch.cuda.synchronize()
            done += 8
        return done * 2 * left.shape[0] * left.shape[1] * right.shape[1] / elapsed_s / 1e9


def limit_gflops(precision: NumberFormat, device: torch.device) -> float:
    """Return the rate of a large matrix product in a number format, 10^9 operations per second."""
    with precision.autocast(device):
        is_lower = torch.is_autocast_enabled(device.type)
        dtype = torch.get_autocast_dtype(device.type) if is_lower else torch.float32
    name = next(name for name, known in DTYPES.items() if known == dtype)
    return max(Products(device, (name,)).gflops().values())
