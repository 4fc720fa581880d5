"""Linear layers and embeddings with the same result for any batch and gradients that cost no new memory.

The result of a linear layer for a row does not depend on the number of other rows. The memory of gradients is kept
between steps (`nlu.models.layers.reused`).

Axes: R rows, I input features, O output features; T positions, V entries of the table, D width.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nlu.models.layers.reused import ReusedMemory, ReusedTable
from nlu.models.layers.torch_private import (
    in_blocks,
    linear_product,
    product_of_blocks,
    reads_blocks,
    version_of,
)

FEW_OUTPUTS = 16
"""outputs up to which rows are aligned; the library sums rows of up to 10 from their first aligned address on"""
ALIGNED, STRIDE = 4, 16
"""rows of a multiple of ALIGNED numbers need no padding; others are padded to a multiple of STRIDE"""
MIN_ROWS = 16
MIN_ROWS_PER_THREAD = 4
ROW_COUNTS = 32


class Linear(nn.Linear):
    """nn.Linear on (rows, features), padded to at least `min_rows()` rows. Its weight may be float16, its bias not.

    Under autocast it uses copies of weight and bias in the lower precision. The copies are kept until weight or bias
    changes, so that micro-batches and evaluation batches do not cast them again; gradients reach the fp32 originals.
    The values are those of autocast. On a CPU the weight's gradient reuses its memory, and if no gradient is needed the
    copies have the memory layout of the library's kernels, which is a tenth faster. In float16 autocast a float16
    weight is used as it is; without autocast, a temporary float32 copy of it is.
    """

    may_be_half = True
    """whether `halve` includes the weight"""
    _kept: tuple[tuple[object, ...], Tensor, Tensor] | None = None
    """the state from which the copies were made, the copy of the weight and that of the bias"""
    _laid_out: dict[tuple[int, int], tuple[Tensor, Tensor]]

    def __init__(self, in_features: int, out_features: int):
        super().__init__(in_features, out_features)
        self.memory = ReusedMemory()

    def forward(self, input: Tensor, outputs: slice | None = None) -> Tensor:
        """Return (R, O), or only the output features `outputs`."""
        weight, bias, device = self.weight, self.bias, input.device.type
        used_weight, used_bias = self.operands(device)
        if device == "cpu" and not torch.is_grad_enabled() and torch.is_autocast_enabled(device):
            if reads_blocks(used_weight.dtype):
                laid_out = self._in_blocks(used_weight, used_bias, outputs)
                return _with_min_rows(input, lambda rows: product_of_blocks(rows.to(used_bias.dtype), *laid_out))
        # The gradient of a slice has another shape than the memory, and that of a float16 weight another type.
        memory = self.memory if device == "cpu" and outputs is None and weight.dtype != torch.float16 else None
        operands = [weight, bias, used_weight, used_bias]
        if outputs is not None:
            operands = [operand[outputs] for operand in operands]
        if not torch.is_grad_enabled():
            # A node of autograd costs 20 µs also where it is not needed, which a single text notices.
            return _with_min_rows(input, lambda rows: _product(rows.to(operands[2].dtype), *operands[2:]))
        # Our own product instead of F.linear under autocast: it casts neither weight nor bias again, and its gradients
        # reach the fp32 originals.
        return _with_min_rows(input, lambda rows: _Product.apply(rows, *operands, memory))

    def operands(self, device: str) -> tuple[Tensor, Tensor]:
        """Return weight and bias as a product on this type of device uses them, in the precision of autocast."""
        if torch.is_autocast_enabled(device):
            return self._low_precision(torch.get_autocast_dtype(device))
        return widened(self.weight.detach()), self.bias.detach()

    def gradients(self, *parts: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Return the gradients of a float32 weight and its bias, for products on a CPU.

        `parts`: a gradient (R, O) and an input (R, I), in the precision of the product, for each product; several
        products are those of consecutive parts of the outputs.
        """
        weight_OI = self.gradient_of_weight(*parts)
        biases = [gradient_RO.sum(0).float() for gradient_RO, _ in parts]
        if len(parts) == 1:
            return weight_OI, biases[0]
        # Autograd adds the gradients of slices, which turns -0 into 0.
        return weight_OI.add_(0.0), torch.cat(biases).add_(0.0)

    def gradient_of_weight(self, *parts: tuple[Tensor, Tensor]) -> Tensor:
        """Return the first one of `gradients`."""
        weight_OI = self.memory.take(self.weight.shape)
        begin = 0
        for gradient_RO, input_RI in parts:
            end = begin + gradient_RO.shape[1]
            _write_product(gradient_RO, input_RI, weight_OI[begin:end])
            begin = end
        return weight_OI

    def keep(self, weight_OI: Tensor, bias_O: Tensor) -> None:
        """Use these copies of weight and bias in lower precision, which have their owner, until either changes."""
        self._kept, self._laid_out = (self._state(weight_OI.dtype), weight_OI, bias_O), {}

    def _state(self, dtype: torch.dtype) -> tuple[object, ...]:
        """Return what changes when copies become invalid."""
        # A version changes with each write in place, the address when a tensor is replaced.
        weight, bias = self.weight, self.bias
        return version_of(weight), version_of(bias), weight.data_ptr(), bias.data_ptr(), dtype

    def _low_precision(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        state = self._state(dtype)
        # Without versions nothing can be kept.
        if self._kept is None or self._kept[0] != state or None in state:
            # A copy that is made during scoring must be usable in training.
            with torch.inference_mode(False), torch.no_grad():
                self._kept = state, self.weight.detach().to(dtype), self.bias.to(dtype)
            self._laid_out = {}
        return self._kept[1], self._kept[2]

    def _in_blocks(self, weight: Tensor, bias: Tensor, outputs: slice | None) -> tuple[Tensor, Tensor]:
        start, stop, _ = (outputs or slice(None)).indices(self.out_features)
        if (start, stop) not in self._laid_out:
            self._laid_out[start, stop] = in_blocks(weight[start:stop]), bias[start:stop]
        return self._laid_out[start, stop]


class Tied(Linear):
    """A score for every word: `Linear` with the weight of an embedding and a separate bias.

    The embedding still belongs to the encoder. It is saved, averaged and trained once, under the encoder's name; its
    gradient is the sum of both uses.
    """

    def __init__(self, words: nn.Embedding):
        # Linear.__init__ would create a weight.
        nn.Module.__init__(self)
        self.in_features, self.out_features = words.embedding_dim, words.num_embeddings
        # In a tuple, so that torch does not register it as a submodule.
        self._words = (words,)
        self.bias = nn.Parameter(torch.zeros(self.out_features))
        self.memory = ReusedMemory()

    @property
    def weight(self) -> Tensor:  # type: ignore[override]
        """The table, (O, I)."""
        return self._words[0].weight


class _Product(torch.autograd.Function):
    """x W' + b in the precision of the copies of W and b, with gradients for the originals, in their types."""

    @staticmethod
    def forward(
        ctx: Any,
        input: Tensor,
        weight: Tensor,
        bias: Tensor,
        used_weight: Tensor,
        used_bias: Tensor,
        memory: ReusedMemory | None,
    ) -> Tensor:
        used_input = input.to(used_weight.dtype)
        # A frozen weight needs no input for its gradient, which saves the memory of the activations.
        ctx.save_for_backward(used_input if weight.requires_grad else None, used_weight)
        ctx.input_dtype, ctx.weight_dtype, ctx.memory = input.dtype, weight.dtype, memory
        return _product(used_input, used_weight, used_bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient_RO,) = gradients
        used_input, used_weight = ctx.saved_tensors
        to_input, to_weight, to_bias = ctx.needs_input_grad[:3]
        return (
            (gradient_RO @ used_weight).to(ctx.input_dtype) if to_input else None,
            _gradient_of_weight(gradient_RO, used_input, ctx.weight_dtype, ctx.memory) if to_weight else None,
            gradient_RO.sum(0).float() if to_bias else None,
            None,
            None,
            None,
        )


def _product(rows_RI: Tensor, weight_OI: Tensor, bias_O: Tensor) -> Tensor:
    """Return rows W' + b, (R, O), all in one precision. The sums of a row do not depend on the other rows."""
    if len(weight_OI) <= FEW_OUTPUTS:
        rows_RI, weight_OI = with_aligned_rows(rows_RI), with_aligned_rows(weight_OI)
    if len(weight_OI) == 1:
        # A matrix of one row is multiplied as a vector, whose order of summation depends on the rows of the input.
        return F.linear(rows_RI, F.pad(weight_OI, (0, 0, 0, 1)), F.pad(bias_O, (0, 1)))[:, :1].contiguous()
    return linear_product(rows_RI, weight_OI, bias_O)


def _gradient_of_weight(
    gradient_RO: Tensor, input_RI: Tensor, dtype: torch.dtype, memory: ReusedMemory | None
) -> Tensor:
    """Return (O, I) in the type of the weight; `memory` is for fp32."""
    if memory is None:
        return (gradient_RO.t() @ input_RI).to(dtype)
    return _write_product(gradient_RO, input_RI, memory.take(torch.Size((gradient_RO.shape[1], input_RI.shape[1]))))


def _write_product(gradient_RO: Tensor, input_RI: Tensor, out_OI: Tensor) -> Tensor:
    """Write the gradient of a weight into float32 memory, and return it."""
    # mm cannot write a bf16 product into fp32 memory.
    if gradient_RO.dtype == out_OI.dtype:
        return torch.mm(gradient_RO.t(), input_RI, out=out_OI)
    return out_OI.copy_(gradient_RO.t() @ input_RI)


def with_aligned_rows(input: Tensor) -> Tensor:
    """Return the input with zeros after each row (the last dimension) if rows begin at unaligned addresses.

    In products with few outputs the matrix library sums a row from its first aligned address on. The order of summation
    of an example would then depend on whether its row is an odd or an even one.
    """
    if input.device.type != "cpu" or input.shape[-1] % ALIGNED == 0:
        return input
    return F.pad(input, (0, -input.shape[-1] % STRIDE))


def min_rows() -> int:
    """Return the number of rows from which the order of summation does not depend on it.

    Matrix libraries split rows among threads, and a thread with three rows or fewer uses a kernel with another order of
    summation. The score of a single example would then differ in the last bits from its score in a batch.
    """
    return max(MIN_ROWS, MIN_ROWS_PER_THREAD * torch.get_num_threads())


def padding_rows(rows: int, device: torch.device) -> int:
    """Return the number of zero rows that are added to packed rows before they pass through many layers.

    In lower precision the CPU library compiles its kernels for each new number of rows, which takes a small model as
    long as several products. With ROW_COUNTS numbers between two powers of two, which cost 1.5 % of padding on average,
    all kernels are soon known. The library for CUDA chooses a kernel for each number too; on the one device on which
    this was measured it made no difference (benchmarks/CUDA.md).
    """
    known_soon = torch.is_autocast_enabled("cpu") if device.type == "cpu" else device.type == "cuda"
    return up_to_compiled(rows) if known_soon else 0


def up_to_compiled(rows: int) -> int:
    """Return the number of rows that are missing for one of the numbers above."""
    return -rows % max(MIN_ROWS, 2 ** (rows.bit_length() - 1) // ROW_COUNTS)


def _with_min_rows(input: Tensor, compute: Callable[[Tensor], Tensor]) -> Tensor:
    """Compute rows, on a CPU padded with zero rows to `min_rows()` if necessary."""
    rows = len(input)
    if input.device.type != "cpu" or rows >= min_rows():
        # Without a slice, whose gradient would be copied.
        return compute(input)
    return compute(with_rows(input, min_rows()))[:rows]


def with_rows(input: Tensor, rows: int) -> Tensor:
    """Return the input padded with zero rows to `rows` rows; the input itself if it has as many."""
    return input if len(input) == rows else F.pad(input, (0, 0, 0, rows - len(input)))


class Embedding(nn.Embedding):
    """nn.Embedding; on a CPU its gradient reuses the memory of the last step. Its weight may be float16."""

    may_be_half = True
    """whether `halve` includes the weight"""

    def __init__(self, entries: int, width: int):
        super().__init__(entries, width)
        self.memory = ReusedTable()

    def forward(self, input: Tensor) -> Tensor:
        """Return the vectors (T, D) of the entries (T,); float32 of a float16 table, since sums need more digits."""
        if self.weight.device.type != "cpu":
            return widened(F.embedding(input, self.weight))
        return _LookUp.apply(input, self.weight, self.memory)


class _LookUp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, entries_T: Tensor, weight_VD: Tensor, memory: ReusedTable) -> Tensor:
        ctx.save_for_backward(entries_T)
        ctx.shape, ctx.memory = weight_VD.shape, memory if weight_VD.dtype != torch.float16 else None
        return widened(F.embedding(entries_T, weight_VD))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (entries_T,) = ctx.saved_tensors
        # Summed in fp32 also for a float16 table; autograd then rounds it.
        if ctx.memory is None:
            return None, torch.zeros(ctx.shape).index_add_(0, entries_T, gradients[0].float()), None
        return None, ctx.memory.sums(ctx.shape, entries_T, gradients[0]), None


def widened(tensor: Tensor) -> Tensor:
    """Return a float16 tensor in float32, and any other one as it is."""
    return tensor.float() if tensor.dtype == torch.float16 else tensor


def halve(module: nn.Module) -> list[str]:
    """Hold the weights of all our linear layers and embeddings within a module in float16; returns their names.

    Biases, norms and all other parameters stay float32. Raises OverflowError with the name of a weight that float16
    does not hold.
    """
    names = []
    for name, each in module.named_modules():
        if isinstance(each, Linear | Embedding) and each.may_be_half and isinstance(each.weight, nn.Parameter):
            half = each.weight.detach().half()
            if not torch.isfinite(half).all():
                raise OverflowError(f"{name}.weight")
            # The parameter stays the same object, to which heads and methods may refer.
            each.weight.data = half
            names.append(f"{name}.weight")
    return names
