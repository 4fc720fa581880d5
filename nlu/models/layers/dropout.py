"""Dropout whose masks are fast on a CPU and depend on the example, not on its batch.

Srivastava et al. 2014 (https://jmlr.org/papers/v15/srivastava14a.html). On a CPU torch draws a number from a serial
generator for each element, which takes longer than the normalization after it; here 16 bits of a fast generator decide.
During training each sequence has a random stream (`nlu.models.layers.noise`).

The modules of other libraries, such as transformers, draw from these streams too, on a CPU. Calls are replaced if the
tensor has padded sequences in a known layout: (S, L, D) for hidden states and (S, H, L, L) for attention. Other calls
draw from torch's generator, so their masks depend on the micro-batch.

Axes: S sequences, L the longest of a batch, D width, H heads.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from nlu.models.layers import noise

STEPS = 2**16
"""probabilities are rounded to a multiple of 1 / STEPS"""


class Dropout(nn.Module):
    """Zero elements with `probability` during training and scale the others by 1 / (1 - probability)."""

    def __init__(self, probability: float):
        super().__init__()
        self.probability = probability

    def forward(self, input: Tensor, rows: Sequence[int] | None = None) -> Tensor:
        """`rows`: the number of input rows of each sequence; None: a row for each token, or one for each sequence."""
        return dropout(input, self.probability, rows) if self.training else input

    def extra_repr(self) -> str:
        return f"probability={self.probability}"


def dropout(input: Tensor, probability: float, rows: Sequence[int] | None = None) -> Tensor:
    """Return the input with elements zeroed at random; `rows` is as in Dropout."""
    if not probability:
        return input
    if input.device.type != "cpu":
        # On an accelerator, drawing on the host would cost more than all else; the masks then depend on the
        # micro-batch.
        return F.dropout(input, probability)
    return input * dropout_mask(input, probability, rows)


def dropout_mask(input: Tensor, probability: float, rows: Sequence[int] | None = None, first: int = 0) -> Tensor:
    """Return the factors of `dropout` on a CPU, 0 or 1 / (1 - probability), with the shape and the type of the input.

    The first axis of the input has `rows` rows for each sequence, starting with the sequence `first`. Rows after those
    of the last sequence are kept.
    """
    return mask_of_bits(_bits(input, rows, first), input.dtype, probability).view(input.shape)


def mask_of_bits(bits: np.ndarray, dtype: torch.dtype, probability: float) -> Tensor:
    """Return the mask of type `dtype` for random numbers of 16 bits."""
    kept = bits >= round(probability * STEPS)
    # Multiplying the bits of a float by 0 or 1 is many times faster than converting or selecting.
    same_width: Any = np.uint32 if dtype == torch.float32 else np.uint16
    scale = torch.tensor(1 / (1 - probability), dtype=dtype)
    factor = scale.view(torch.int32 if dtype == torch.float32 else torch.int16).item()
    return torch.from_numpy(kept.astype(same_width) * same_width(factor)).view(dtype)


def _bits(input: Tensor, rows: Sequence[int] | None, first: int) -> np.ndarray:
    """Return 16 random bits for each element of the input."""
    count = input.numel()
    width = count // max(1, len(input))
    streams = noise.active()
    rows = rows or (streams.rows(len(input)) if streams else [])
    return random_bits(count, [each * width for each in rows], first)


def random_bits(count: int, counts: Sequence[int], first: int = 0) -> np.ndarray:
    """Return `count` random numbers of 16 bits: `counts` of them for each sequence from `first` on, and then the
    largest number, which keeps an element."""
    if (streams := noise.active()) is None:
        # From torch's generator, so that a seed of the user determines the masks outside of training steps too.
        seed = int(torch.randint(2**62, (1,)))
        words = np.random.Generator(np.random.SFC64(seed)).integers(
            0, 2**64 - 1, size=-(-count // 4), dtype=np.uint64, endpoint=True
        )
        return words.view(np.uint16)[:count]
    bits = streams.bits(counts, first)
    assert len(bits) <= count, "the rows are of another batch"
    return bits if len(bits) == count else np.pad(bits, (0, count - len(bits)), constant_values=STEPS - 1)


def padded_dropout(longest: int) -> AbstractContextManager[object]:
    """Return a context in which dropout draws from the streams; a batch is padded to `longest` tokens."""
    streams = noise.active()
    return nullcontext() if streams is None else _DropoutMode(streams, longest)


class _DropoutMode(TorchFunctionMode):
    def __init__(self, streams: noise.Noise, longest: int):
        super().__init__()
        self._streams, self._longest = streams, longest

    def __torch_function__(
        self,
        func: Callable[..., Tensor],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Tensor:
        named = dict(kwargs or {})
        if func is F.dropout:
            named |= dict(zip(("input", "p", "training", "inplace"), args, strict=False))
            input, probability = named["input"], named.get("p", 0.5)
            # A tensor of another shape belongs to no known sequence, so its mask cannot depend on one.
            if not named.get("training", True) or not probability or not self._is_known(input.shape):
                return func(**named)
            return input * self._mask(input.shape, input.dtype, probability)
        if func is F.scaled_dot_product_attention:
            names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
            named |= dict(zip(names, args, strict=False))
            shape = (*named["query"].shape[:-1], named["key"].shape[-2])
            # With grouped queries, key and value have fewer heads than the query, which `_attend` does not repeat.
            if named.get("dropout_p") and self._is_known(shape) and not named.get("enable_gqa"):
                return self._attend(**named)
            return func(**named)
        return func(*args, **named)

    def _is_known(self, shape: tuple[int, ...]) -> bool:
        lengths = {3: shape[1:2], 4: shape[2:4]}.get(len(shape))
        return lengths is not None and shape[0] == len(self._streams.lengths) and set(lengths) == {self._longest}

    def _attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        **_: object,
    ) -> Tensor:
        """Compute torch's scaled_dot_product_attention, which lacks a fused CPU kernel with dropout."""
        scores = query @ key.transpose(-2, -1) * (query.shape[-1] ** -0.5 if scale is None else scale)
        if is_causal:
            scores = scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), -torch.inf)
        if attn_mask is not None:
            is_bool = attn_mask.dtype == torch.bool
            scores = scores.masked_fill(~attn_mask, -torch.inf) if is_bool else scores + attn_mask
        # A row without keys is zero, as in torch.
        weights = scores.softmax(-1).masked_fill(scores.isneginf().all(-1, keepdim=True), 0)
        return (weights * self._mask(weights.shape, weights.dtype, dropout_p)).to(value.dtype) @ value

    def _mask(self, shape: tuple[int, ...], dtype: torch.dtype, probability: float) -> Tensor:
        """Return the factors of dropout. Random numbers are drawn only for tokens; padding is kept."""
        lengths = self._streams.lengths
        own = [(length, shape[2]) if len(shape) == 3 else (shape[1], length, length) for length in lengths]
        bits = self._streams.bits([int(np.prod(each)) for each in own])
        # The largest number keeps an element, so padding needs no random numbers.
        padded = np.full(shape, STEPS - 1, np.uint16)
        begin = 0
        for number, (length, each) in enumerate(zip(lengths, own, strict=True)):
            end = begin + int(np.prod(each))
            place = (number, slice(length)) if len(shape) == 3 else (number, slice(None), slice(length), slice(length))
            padded[place] = bits[begin:end].reshape(each)
            begin = end
        return mask_of_bits(padded, dtype, probability)
