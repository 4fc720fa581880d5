"""Dropout of other libraries' modules, such as transformers', from the streams of sequences (`noise`), on a CPU.

Calls are replaced if the tensor has padded sequences in a known layout: (S, L, D) for hidden states and (S, H, L, L)
for attention. Other calls draw from torch's generator, so their masks depend on the micro-batch.

Axes: S sequences, L the longest of a batch, D width, H heads.
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from nlu.models.layers import noise
from nlu.models.layers.dropout import STEPS, mask_of_bits


def padded_dropout(x_SLD: Tensor) -> AbstractContextManager[object]:
    """Return a context in which dropout draws from the streams; `x_SLD` are the padded vectors of a batch."""
    streams = noise.active()
    return nullcontext() if streams is None else _DropoutMode(streams, x_SLD.shape[1])


class _DropoutMode(TorchFunctionMode):
    def __init__(self, streams: noise.Noise, longest: int):
        super().__init__()
        self._streams, self._longest = streams, longest

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        named = dict(kwargs or {})
        if func is F.dropout:
            named |= dict(zip(("input", "p", "training", "inplace"), args, strict=False))
            input, probability = named["input"], named.get("p", 0.5)
            if not named.get("training", True) or not probability or not self._is_known(input.shape):
                return func(**named)
            return input * self._mask(input.shape, input.dtype, probability)
        if func is F.scaled_dot_product_attention:
            names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
            named |= dict(zip(names, args, strict=False))
            shape = (*named["query"].shape[:-1], named["key"].shape[-2])
            if named.get("dropout_p") and self._is_known(shape) and not named.get("enable_gqa"):
                return self._attend(**named)
            return func(**named)
        return func(*args, **named)

    def _is_known(self, shape: tuple[int, ...]) -> bool:
        lengths = {3: shape[1:2], 4: shape[2:4]}.get(len(shape))
        return lengths is not None and shape[0] == len(self._streams.lengths) and set(lengths) == {self._longest}

    def _attend(
        self, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
        is_causal: bool = False, scale: float | None = None, **_: Any,
    ) -> Tensor:  # fmt: skip
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
        padded = np.full(shape, STEPS - 1, np.uint16)
        begin = 0
        for number, (length, each) in enumerate(zip(lengths, own, strict=True)):
            end = begin + int(np.prod(each))
            place = (number, slice(length)) if len(shape) == 3 else (number, slice(None), slice(length), slice(length))
            padded[place] = bits[begin:end].reshape(each)
            begin = end
        return mask_of_bits(padded, dtype, probability)
