"""What lies between the matrix products of a transformer layer, by kernels in C, for training on a CPU with AVX-512.

Attention, dropout with residual sum and norm, and activations, each with both passes. Their results differ from those
of torch's operators in the last bits; they have the same bits each time, in any batch and on any number of threads.
Random numbers are those of `nlu.models.layers.noise`, in the order of torch's path, so masks are the same.

Axes: T tokens of all sequences, S sequences, R rows, D width, C columns of queries, keys and values, L tokens of a
sequence, H heads.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from nlu.config.errors import UserError
from nlu.models.layers.activations import ACTIVATIONS, Activation
from nlu.models.layers.attention import LENGTH_STEP
from nlu.models.layers.compiled import random_streams
from nlu.models.layers.compiled.calls import Rooms, address, in_parts
from nlu.models.layers.compiled.library import TRAINING_INSTRUCTIONS, has_instructions, load
from nlu.models.layers.dropout import STEPS, random_bits
from nlu.models.rules import lacks

LANES = 16
TOKENS_PER_THREAD = 128
"""tokens whose attention is worth the start of another thread"""
_NAMES = {"gelu": 0, "gelu_new": 1, "gelu_pytorch_tanh": 1, "relu": 2}
_CODES = {ACTIVATIONS[name]: code for name, code in _NAMES.items()}
_rooms = Rooms()


def require_kernels() -> None:
    """Build the kernels. Raises UserError if this machine cannot compile them or cannot compute them."""
    if missing := [name for name in TRAINING_INSTRUCTIONS if not has_instructions(name)]:
        raise UserError(lacks(missing))
    _attention(), _rows(), random_streams.library()


@cache
def _attention() -> ctypes.CDLL:
    library = load("training_attention")
    library.nlu_attention_room.restype = ctypes.c_int64
    return library


@cache
def _rows() -> ctypes.CDLL:
    return load("training_rows")


class _AttentionCall(ctypes.Structure):
    _fields_ = [
        ("lengths", ctypes.c_void_p), ("begin", ctypes.c_int64), ("end", ctypes.c_int64),
        ("heads", ctypes.c_int64), ("width", ctypes.c_int64),
        ("is_bf16", ctypes.c_int32), ("first_only", ctypes.c_int32),
        ("query", ctypes.c_void_p), ("key", ctypes.c_void_p), ("value", ctypes.c_void_p),
        ("query_row", ctypes.c_int64), ("row", ctypes.c_int64),
        ("bits", ctypes.c_void_p), ("least", ctypes.c_uint32), ("kept", ctypes.c_float),
        ("weights", ctypes.c_void_p), ("mixed", ctypes.c_void_p), ("gradient", ctypes.c_void_p),
        ("mixed_row", ctypes.c_int64),
        ("to_query", ctypes.c_void_p), ("to_key", ctypes.c_void_p), ("to_value", ctypes.c_void_p),
        ("room", ctypes.c_void_p),
    ]  # fmt: skip


class _NormedCall(ctypes.Structure):
    _fields_ = [
        ("rows", ctypes.c_int64), ("width", ctypes.c_int64), ("is_bf16", ctypes.c_int32), ("least", ctypes.c_uint32),
        ("kept", ctypes.c_float), ("bits", ctypes.c_void_p), ("stays", ctypes.c_void_p),
        ("weight", ctypes.c_void_p), ("scaled", ctypes.c_void_p), ("deviation", ctypes.c_void_p),
        ("eps", ctypes.c_double), ("projected", ctypes.c_void_p), ("residual", ctypes.c_void_p),
        ("bias", ctypes.c_void_p), ("out", ctypes.c_void_p), ("low", ctypes.c_void_p),
        ("gradient", ctypes.c_void_p), ("added", ctypes.c_void_p), ("to_residual", ctypes.c_void_p),
        ("to_projected", ctypes.c_void_p), ("to_weight", ctypes.c_void_p), ("to_bias", ctypes.c_void_p),
        ("to_projected_bias", ctypes.c_void_p),
    ]  # fmt: skip


class CompiledAttention:
    """Attention of a batch, for all layers; `lengths` of its sequences, in the order of their tokens."""

    def __init__(self, lengths: Sequence[int], heads: int):
        self.lengths, self.tokens = list(lengths), sum(lengths)
        self._heads, self._lengths_S = heads, np.array(lengths, np.int32)
        stepped_S, padded_S = (-(-self._lengths_S.astype(np.int64) // to) * to for to in (LENGTH_STEP, LANES))
        self._bits_S = {False: (stepped_S**2 * heads).tolist(), True: (stepped_S * heads).tolist()}
        self._weights = {False: int((padded_S * self._lengths_S).sum()) * heads, True: int(padded_S.sum()) * heads}
        self._parts = [
            (begin, end, ctypes.c_int64(int(self._lengths_S[begin:end].max())))
            for begin, end in _parts(self._lengths_S)
        ]

    def forward(
        self, query_RC: Tensor | None, projected_RC: Tensor, dropout_p: float
    ) -> tuple[Tensor, list[Tensor | None]]:
        """Return the result, and what `backward` needs.

        `query_RC` has a query for the first token of each sequence; without it, queries of all tokens are the first
        part of `projected_RC`. Rows after those of the sequences are ignored, and their result is zero.
        """
        first_only = query_RC is not None
        asking_RC = projected_RC if query_RC is None else query_RC
        width = projected_RC.shape[1] // (2 if first_only else 3)
        weights = torch.empty(self._weights[first_only], dtype=projected_RC.dtype)
        mixed_RD = projected_RC.new_empty((len(asking_RC), width))
        mixed_RD[len(self.lengths) if first_only else self.tokens :] = 0
        call = self._call(query_RC, projected_RC, width)
        if dropout_p:
            counts, (call.least, call.kept) = self._bits_S[first_only], _dropping(dropout_p)
            bits = random_bits(sum(counts), counts)
            call.bits = bits.ctypes.data
        call.weights, call.mixed = weights.data_ptr(), mixed_RD.data_ptr()
        self._run(_attention().nlu_attention_forward, call)
        return mixed_RD, [query_RC, projected_RC, weights]

    def backward(
        self, saved: Sequence[Tensor | None], gradient_RD: Tensor, dropout_p: float
    ) -> tuple[Tensor | None, Tensor]:
        """Return the gradients of `query_RC`, if `forward` got one, and of `projected_RC`."""
        query_RC, projected_RC, weights = saved
        assert projected_RC is not None and weights is not None, "by `forward`"
        assert gradient_RD.is_contiguous() and gradient_RD.dtype == projected_RC.dtype
        width = gradient_RD.shape[1]
        to_query_RC = None if query_RC is None else torch.empty_like(query_RC)
        to_projected_RC = torch.empty_like(projected_RC)
        if to_query_RC is not None:
            to_query_RC[len(self.lengths) :] = 0
        to_projected_RC[self.tokens :] = 0
        call = self._call(query_RC, projected_RC, width)
        if dropout_p:
            call.kept = _dropping(dropout_p)[1]
        call.weights, call.gradient = weights.data_ptr(), gradient_RD.data_ptr()
        call.to_query, call.to_key, call.to_value = _places(to_query_RC, to_projected_RC, width)
        self._run(_attention().nlu_attention_backward, call)
        return to_query_RC, to_projected_RC

    def _call(self, query_RC: Tensor | None, projected_RC: Tensor, width: int) -> _AttentionCall:
        assert projected_RC.is_contiguous() and (query_RC is None or query_RC.is_contiguous())
        size = projected_RC.element_size()
        call = _AttentionCall(
            lengths=self._lengths_S.ctypes.data, heads=self._heads, width=width // self._heads,
            is_bf16=_is_bf16(projected_RC), first_only=query_RC is not None, kept=1.0,
            row=projected_RC.shape[1] * size, mixed_row=width * size,
            query_row=(projected_RC if query_RC is None else query_RC).shape[1] * size,
        )  # fmt: skip
        call.query, call.key, call.value = _places(query_RC, projected_RC, width)
        return call

    def _run(self, function: Any, call: _AttentionCall) -> None:
        """Compute the sequences, parts of them in other threads."""
        calls = [call, *(_AttentionCall.from_buffer_copy(call) for _ in self._parts[1:])]
        in_parts(_run_part, [(function, own, *part) for own, part in zip(calls, self._parts, strict=True)])


def _run_part(function: Any, call: _AttentionCall, begin: int, end: int, longest: ctypes.c_int64) -> None:
    call.begin, call.end = begin, end
    call.room = _rooms.of(4 * _attention().nlu_attention_room(ctypes.byref(call), longest))
    function(ctypes.byref(call))


def _parts(lengths_S: np.ndarray) -> list[tuple[int, int]]:
    """Return the first sequence of each thread and the one after its last, so that all have about as many tokens."""
    tokens = int(lengths_S.sum())
    threads = min(torch.get_num_threads(), tokens // TOKENS_PER_THREAD) or 1
    cuts = np.searchsorted(lengths_S.cumsum(), tokens * np.arange(1, threads) / threads).tolist()
    bounds = [0, *cuts, len(lengths_S)]
    return [(begin, end) for begin, end in zip(bounds, bounds[1:], strict=False) if begin < end]


def _places(query: Tensor | None, projected: Tensor, width: int) -> tuple[int, int, int]:
    """Return the addresses of queries, keys and values."""
    begin, part = projected.data_ptr(), width * projected.element_size()
    return (begin, begin + part, begin + 2 * part) if query is None else (query.data_ptr(), begin, begin + part)


@dataclass(frozen=True)
class Normed:
    """The norm of the sum of a residual and of a linear layer's output after dropout, and its backward pass."""

    norm: nn.LayerNorm
    dropout_p: float
    rows: Sequence[int]
    """the number of rows of each sequence; rows after those are padding"""

    def forward(
        self, projected_RD: Tensor, residual_RD: Tensor, *, with_low: bool
    ) -> tuple[Tensor, Tensor | None, list[Tensor | None]]:
        """Return the normed sum, float32, the same in the precision of products, and what `backward` needs."""
        assert projected_RD.is_contiguous() and residual_RD.is_contiguous() and residual_RD.dtype == torch.float32
        count, width = projected_RD.shape
        out_RD, scaled_RD, deviation_R = (
            torch.empty_like(residual_RD),
            torch.empty_like(projected_RD),
            torch.empty(count),
        )
        low_RD = torch.empty_like(projected_RD) if with_low and _is_bf16(projected_RD) else None
        bits = stays = None
        if self.dropout_p:
            bits = random_bits(count * width, [each * width for each in self.rows])
            stays = torch.empty(count, -(-width // LANES), dtype=torch.int16)
        call = self._call(stays, scaled_RD, deviation_R)
        if bits is not None:
            call.bits = bits.ctypes.data
        call.eps, call.projected, call.residual = self.norm.eps, projected_RD.data_ptr(), residual_RD.data_ptr()
        call.bias, call.out = self.norm.bias.data_ptr(), out_RD.data_ptr()
        call.low = None if low_RD is None else low_RD.data_ptr()
        _rows().nlu_normed_forward(ctypes.byref(call))
        return out_RD, out_RD if with_low and low_RD is None else low_RD, [stays, scaled_RD, deviation_R]

    def backward(
        self, saved: Sequence[Tensor | None], gradient_RD: Tensor, added_RD: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Return the gradients of the residual, of the projection in the precision of products, of the bias of its
        linear layer, and of the weight and bias of the norm; `added_RD` is added to the gradient of the result."""
        stays, scaled_RD, deviation_R = saved
        assert scaled_RD is not None and deviation_R is not None, "by `forward`"
        gradient_RD = gradient_RD.contiguous()
        to_residual_RD, to_projected_RD = torch.empty_like(gradient_RD), torch.empty_like(scaled_RD)
        sums_3D = torch.zeros(3, scaled_RD.shape[1])
        call = self._call(stays, scaled_RD, deviation_R)
        call.gradient, call.added = gradient_RD.data_ptr(), None if added_RD is None else added_RD.data_ptr()
        call.to_residual, call.to_projected = to_residual_RD.data_ptr(), to_projected_RD.data_ptr()
        call.to_weight, call.to_bias, call.to_projected_bias = (each.data_ptr() for each in sums_3D)
        _rows().nlu_normed_backward(ctypes.byref(call))
        to_weight_D, to_bias_D, to_projected_bias_D = sums_3D
        return to_residual_RD, to_projected_RD, to_projected_bias_D, to_weight_D, to_bias_D

    def _call(self, stays: Tensor | None, scaled_RD: Tensor, deviation_R: Tensor) -> _NormedCall:
        rows, width = scaled_RD.shape
        call = _NormedCall(rows, width, _is_bf16(scaled_RD))
        call.weight, call.scaled = self.norm.weight.data_ptr(), scaled_RD.data_ptr()
        call.deviation = deviation_R.data_ptr()
        if stays is not None:
            call.stays = stays.data_ptr()
            call.least, call.kept = _dropping(self.dropout_p)
        return call


def activated(activation: Activation, input_RI: Tensor) -> tuple[Tensor, Tensor]:
    """Return the activation of each number, and in the memory of the input its derivative."""
    assert input_RI.is_contiguous()
    active_RI = torch.empty_like(input_RI)
    _rows().nlu_activation_forward(
        _is_bf16(input_RI), _CODES[activation], ctypes.c_int64(input_RI.numel()), address(input_RI), address(active_RI),
        address(input_RI),
    )  # fmt: skip
    return active_RI, input_RI


def times_slopes(gradient_RI: Tensor, slopes_RI: Tensor) -> Tensor:
    """Multiply by derivatives in place; return the sum over rows, (I), float32."""
    return _sums(gradient_RI, address(slopes_RI))


def sum_of_rows(gradient_RC: Tensor) -> Tensor:
    """Return the sum over rows, (C), float32."""
    return _sums(gradient_RC, None)


def _sums(gradient_RI: Tensor, slopes: ctypes.c_void_p | None) -> Tensor:
    assert gradient_RI.is_contiguous()
    rows, width = gradient_RI.shape
    sums_I = torch.zeros(width)
    _rows().nlu_activation_backward(
        _is_bf16(gradient_RI), ctypes.c_int64(rows), ctypes.c_int64(width), address(gradient_RI), slopes,
        address(sums_I),
    )  # fmt: skip
    return sums_I


def _is_bf16(tensor: Tensor) -> bool:
    assert tensor.dtype in (torch.bfloat16, torch.float32)
    return tensor.dtype == torch.bfloat16


def _dropping(probability: float) -> tuple[int, float]:
    """Return the least random number that keeps an element, and the factor of those that are kept."""
    return round(probability * STEPS), 1 / (1 - probability)
