"""The functions between the two linear layers of a feed-forward block, by their names in configurations of weights."""

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

Activation = Callable[[Tensor], Tensor]
_gelu_ = torch.ops.aten.gelu_
ACTIVATIONS: dict[str, Activation] = {
    "gelu": F.gelu,
    "gelu_new": lambda x: F.gelu(x, approximate="tanh"),
    "gelu_pytorch_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
}
IN_PLACE: dict[str, Activation] = {
    "gelu": _gelu_,
    "gelu_new": partial(_gelu_, approximate="tanh"),
    "gelu_pytorch_tanh": partial(_gelu_, approximate="tanh"),
    "relu": F.relu_,
}
"""the same functions, which overwrite their argument"""
