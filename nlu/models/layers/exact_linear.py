"""Linear layers: on a CPU the result for a row does not depend on the other rows. Also the activations between them.

Matrix libraries choose the order of summation of a product by its number of rows, and a text would have another score
alone than among others. Two things prevent that: MKL's strict mode, which nlu sets (`nlu.config.mkl`) and which
suffices on processors of Intel; and zero rows and columns that are added where a product is small, for those of AMD,
where MKL uses other code for few rows, few outputs and rows that are not aligned, in the strict mode too. In bf16,
which oneDNN multiplies, a single row of many numbers needs them as well.

Axes: R rows, I input features, O output features.
"""

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

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


FEW_OUTPUTS = 16
"""outputs up to which rows are aligned; the library sums rows of up to 10 from their first aligned address on"""
ALIGNED, STRIDE = 4, 16
"""rows of a multiple of ALIGNED numbers need no padding; others are padded to a multiple of STRIDE"""
MIN_ROWS, MIN_ROWS_PER_THREAD = 16, 4
"""fewer rows in all, or for a thread, are multiplied by other code"""
ROW_COUNTS = 32


class Linear(nn.Linear):
    """nn.Linear on (rows, features)."""

    def forward(self, input: Tensor, outputs: slice | None = None) -> Tensor:
        """Return (R, O), or only the output features `outputs`."""
        if outputs is None:
            return product(input, self.weight, self.bias)
        return product(input, self.weight[outputs], None if self.bias is None else self.bias[outputs])


class Tied(Linear):
    """A score for every word: `Linear` with the weight of an embedding and a separate bias.

    The embedding still belongs to the encoder. It is saved, averaged and trained once, under the encoder's name; its
    gradient is the sum of both uses.
    """

    def __init__(self, words: nn.Embedding, bias: bool = True):
        # Linear.__init__ would create a weight.
        nn.Module.__init__(self)
        self.in_features, self.out_features = words.embedding_dim, words.num_embeddings
        # In a tuple, so that torch does not register it as a submodule.
        self._words = (words,)
        self.register_parameter("bias", nn.Parameter(torch.zeros(self.out_features)) if bias else None)

    @property
    def weight(self) -> Tensor:  # type: ignore[override]
        """The table, (O, I)."""
        return self._words[0].weight


def product(rows_RI: Tensor, weight_OI: Tensor, bias_O: Tensor | None) -> Tensor:
    """Return rows W' + b, (R, O), in the precision of autocast. On a CPU the bits of a row do not depend on the other
    rows. Rows may have several axes."""
    # A traced graph is for any number of rows, a compiled one for few shapes.
    if rows_RI.device.type != "cpu" or torch.jit.is_tracing() or torch.compiler.is_compiling():
        return F.linear(rows_RI, weight_OI, bias_O)
    if rows_RI.dim() > 2:
        return product(rows_RI.flatten(0, -2), weight_OI, bias_O).unflatten(0, rows_RI.shape[:-1])
    rows, outputs = len(rows_RI), len(weight_OI)
    if outputs <= FEW_OUTPUTS and rows_RI.shape[1] % ALIGNED:
        rows_RI, weight_OI = (F.pad(each, (0, -each.shape[1] % STRIDE)) for each in (rows_RI, weight_OI))
    if outputs == 1:
        # A matrix of one row is multiplied as a vector, whose order of summation depends on the rows of the input.
        weight_OI, bias_O = F.pad(weight_OI, (0, 0, 0, 1)), None if bias_O is None else F.pad(bias_O, (0, 1))
    product_RO = F.linear(with_rows(rows_RI, max(rows, min_rows())), weight_OI, bias_O)
    # Slices only where something was added: their gradients are copies.
    product_RO = product_RO if len(product_RO) == rows else product_RO[:rows]
    return product_RO if outputs > 1 else product_RO[:, :1].contiguous()


def min_rows() -> int:
    """Return the number of rows from which the order of summation does not depend on it."""
    return max(MIN_ROWS, MIN_ROWS_PER_THREAD * torch.get_num_threads())


def with_rows(input: Tensor, rows: int) -> Tensor:
    """Return the input padded with zero rows to `rows` rows; the input itself if it has as many."""
    return input if len(input) == rows else F.pad(input, (0, 0, 0, rows - len(input)))


def padding_rows(rows: int, device: torch.device) -> int:
    """Return the number of zero rows that are added to packed rows before they pass through many layers.

    In lower precision the CPU library compiles its kernels for each new number of rows, which takes a small model as
    long as several products. With ROW_COUNTS numbers between two powers of two, which cost 1.5 % of padding on average,
    all kernels are soon known.
    """
    return up_to_compiled(rows) if device.type == "cpu" and torch.is_autocast_enabled("cpu") else 0


def up_to_compiled(rows: int) -> int:
    """Return the number of rows that are missing for one of the numbers above."""
    return -rows % max(MIN_ROWS, 2 ** (rows.bit_length() - 1) // ROW_COUNTS)
