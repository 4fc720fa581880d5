"""The choices int8 and int8_compiled of the group `precision`: what they need, and what they refuse."""

import torch

from nlu.config.errors import UserError
from nlu.config.keys import takes
from nlu.config.targets import build
from nlu.config.types import ConfigLike
from nlu.inference import keys as schemas
from nlu.inference.int8.compiled import compile_layers
from nlu.inference.int8.compiled import quantize as quantize_encoder
from nlu.inference.int8.int8_linear import multiplies_integers
from nlu.models.encoders.bert import Bert
from nlu.models.task_model import TaskModel
from nlu.training import keys as formats
from nlu.training.precision import Precision, instruction_sets

EXACT = ("avx512_vnni", "avx_vnni", "amx_int8")
"""instruction sets that sum products of bytes in 32 bits, as /proc/cpuinfo names them; older ones clip sums to 16"""


@takes(schemas.Int8)
class Int8(Precision):
    """Weights of the encoder's linear layers and their inputs in int8, sums exact, all else in fp32.

    Weights have a scale for each output and inputs one for each row, so a prediction depends only on its own row. The
    scales are those of the weights and of the row: no rows are needed to choose them.
    """

    def __init__(self, keys: schemas.Int8):
        super().__init__(formats.Precision(dtype="float32"))
        self.compiled = keys.compiled
        self.name = "int8_compiled" if keys.compiled else "int8"

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
            is_slow = Precision(formats.Precision(dtype="bfloat16")).warning(torch.device("cpu")) is not None
            has_products = any(name in instruction_sets() for name in ("avx512_bf16", "amx_bf16"))
            quantize_encoder(encoder, torch.bfloat16 if has_products and not is_slow else torch.float32)

    def require(self, device: torch.device) -> None:
        """Raise UserError for a device that is no CPU."""
        if device.type != "cpu":
            raise UserError(
                f"precision is {self.name}, which computes on a CPU, but the device is {device.type}; set device=cpu, "
                "or precision=bf16"
            )


def int8_of(node: ConfigLike) -> Int8 | None:
    """Return the precision of a configuration if it is int8."""
    precision = build(node)
    return precision if isinstance(precision, Int8) else None
