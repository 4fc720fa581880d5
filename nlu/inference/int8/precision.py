"""The choices int8 and int8_compiled of the group `precision`: what they need, and what they refuse."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch

from nlu.config.errors import UserError
from nlu.config.targets import build
from nlu.inference.int8.encoder import compile_layers
from nlu.inference.int8.encoder import quantize as quantize_encoder
from nlu.inference.int8.linear import multiplies_integers
from nlu.models.encoders.bert import Bert
from nlu.models.task_model import TaskModel
from nlu.training.hardware import instruction_sets
from nlu.training.precision import Precision

EXACT = ("avx512_vnni", "avx_vnni", "amx_int8")
"""instruction sets that sum products of bytes in 32 bits, as /proc/cpuinfo names them; older ones clip sums to 16"""
INT8 = "nlu.inference.int8.precision.Int8"


class Int8(Precision):
    """Weights of the encoder's linear layers and their inputs in int8, sums exact, all else in fp32.

    Weights have a scale for each output and inputs one for each row, so a prediction depends only on its own row. The
    scales are those of the weights and of the row: no rows are needed to choose them.
    """

    rules_of_config = "nlu.inference.int8.rules.int8_problems"

    def __init__(self, *, attention: Literal["auto", "bfloat16", "float32"] = "auto", compiled: bool = False):
        """`attention`: the format of its matrix products; auto = bf16 if the processor computes its products.
        `compiled`: by kernels in C, which this machine's compiler builds on first use, with attention in float32."""
        super().__init__(dtype="float32")
        self.attention, self.compiled = attention, compiled
        self.name = "int8_compiled" if compiled else "int8"
        """of the choice, for messages"""

    def hold(self, model: TaskModel) -> None:
        """Refuse to train: rounded weights have no gradient. Raises UserError."""
        raise UserError(
            f"precision is {self.name}, which only predicts; train with fp32 or bf16, and predict with {self.name}"
        )

    def quantize(self, model: TaskModel) -> None:
        """Hold the linear layers of the encoder in int8, in place.

        Raises UserError if this processor or torch cannot multiply integers, the encoder has no such layers, or the
        compiled kernels cannot be built.
        """
        if self.compiled and self.attention == "bfloat16":
            raise UserError(
                "precision.compiled is true and precision.attention is bfloat16, but compiled layers compute attention "
                "in float32; leave out one of them"
            )
        if not multiplies_integers():
            raise UserError(
                f"precision is {self.name}, but torch {torch.__version__} lacks the operators for its products on a "
                "CPU; set precision=bf16 or fp32, or install the torch of docs/troubleshooting.md"
            )
        if not instruction_sets().intersection(EXACT):
            raise UserError(
                f"precision is {self.name}, but this processor has none of {', '.join(EXACT)}, which sum products of "
                "bytes exactly; set precision=bf16 or fp32"
            )
        encoder = model.backbone
        if not isinstance(encoder, Bert):
            raise UserError(
                f"precision is {self.name}, but {type(encoder).__name__} has no linear layers of nlu to quantize; set "
                "precision=bf16 or fp32, or export with format=onnx-int8"
            )
        if self.compiled:
            compile_layers(encoder)
        else:
            quantize_encoder(encoder, self.dtype_of_attention())

    def dtype_of_attention(self) -> torch.dtype:
        """Return the format of the matrix products inside attention, without `compiled`."""
        if self.attention != "auto":
            return torch.bfloat16 if self.attention == "bfloat16" else torch.float32
        is_slow = Precision(dtype="bfloat16").warning(torch.device("cpu")) is not None
        has_products = any(name in instruction_sets() for name in ("avx512_bf16", "amx_bf16"))
        return torch.bfloat16 if has_products and not is_slow else torch.float32

    def require(self, device: torch.device) -> None:
        """Raise UserError for a device that is no CPU."""
        if device.type != "cpu":
            raise UserError(
                f"precision is {self.name}, which computes on a CPU, but the device is {device.type}; set device=cpu, "
                "or precision=bf16"
            )


def quantize(model: TaskModel, node: Mapping[str, Any], trusted: Sequence[str]) -> bool:
    """Hold the encoder in int8 if that is the precision of a configuration; return whether it is.

    Raises UserError if it cannot be.
    """
    precision = build(node, trusted=trusted)
    if not isinstance(precision, Int8):
        return False
    precision.quantize(model)
    return True


def require_int8(node: Mapping[str, Any], trusted: Sequence[str], device: torch.device, export: Path | None) -> None:
    """Raise UserError if the precision is int8 but cannot be used on the device, or because an export is scored."""
    precision = build(node, trusted=trusted)
    if not isinstance(precision, Int8):
        return
    precision.require(device)
    if export is not None:
        raise UserError(
            f"precision is {precision.name}, but export is {export}, which has its own format; leave out one of them"
        )
