"""The layers of a BERT encoder in int8 as one call of C for each batch, for predicting on a CPU with AVX-512 VNNI.

The arithmetic is that of `nlu.models.layers.quantized`, with attention in float32; the results differ from those of
torch's operators in the last bits. They have the same bits in any batch, on any number of threads and on any processor
that can compute them (`int8_layers.c`). A call computes on the thread that makes it and releases Python's lock, so
several threads can predict different batches at the same time.

Axes: T tokens of all sequences, S sequences, D width, I inputs, O outputs.
"""

import ctypes
import threading
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nlu.config.errors import UserError
from nlu.models.layers.compiled.library import has_instructions, load
from nlu.models.layers.quantized import MIDDLE, QuantizedLinear

INSTRUCTIONS = ("__AVX512F__", "__AVX512BW__", "__AVX512DQ__", "__AVX512VL__", "__AVX512VNNI__")
"""what the kernels are written for, as compilers name it"""
ACTIVATIONS = {"gelu": 0, "gelu_new": 1, "gelu_pytorch_tanh": 1, "relu": 2}
PANEL = 64
"""outputs whose weights lie together, as in int8_layers.c"""


class _Linear(ctypes.Structure):
    _fields_ = [
        ("packed", ctypes.c_void_p), ("scale", ctypes.c_void_p), ("bias", ctypes.c_void_p), ("zero", ctypes.c_void_p),
        ("inputs", ctypes.c_int64), ("outputs", ctypes.c_int64), ("lowest", ctypes.c_float),
        ("has_lowest", ctypes.c_int32),
    ]  # fmt: skip


class _Norm(ctypes.Structure):
    _fields_ = [("weight", ctypes.c_void_p), ("bias", ctypes.c_void_p), ("eps", ctypes.c_double)]


class _Layer(ctypes.Structure):
    _fields_ = [
        *((name, _Linear) for name in ("query", "key_value", "mixing", "inner", "outer")),
        ("first", _Norm), ("second", _Norm),
        ("heads", ctypes.c_int64), ("head_width", ctypes.c_int64), ("activation", ctypes.c_int64),
    ]  # fmt: skip


@dataclass(frozen=True)
class LayerParts:
    """The modules of a layer, and its number of heads."""

    qkv: QuantizedLinear
    mixing: QuantizedLinear
    inner: QuantizedLinear
    outer: QuantizedLinear
    first: nn.LayerNorm
    second: nn.LayerNorm
    heads: int


class Int8Layers:
    """Copies of the weights of all layers in the memory layout of the kernels."""

    def __init__(self, layers: Sequence[LayerParts], activation: str):
        """`layers` in their order; those that share modules share the copies. Raises UserError if this machine cannot
        compile the kernels or cannot compute them."""
        if missing := [name for name in INSTRUCTIONS if not has_instructions(name)]:
            raise UserError(
                f"precision is int8_compiled, but this processor, or its compiler, lacks {', '.join(missing)}; set "
                "precision=int8"
            )
        self._library = load("int8_layers")
        self._library.nlu_int8_room.restype = ctypes.c_int64
        self._kept: list[Tensor] = []
        known = {id(parts.qkv): self._layer(parts, ACTIVATIONS[activation]) for parts in layers}
        self._layers = (_Layer * len(layers))(*(known[id(parts.qkv)] for parts in layers))
        self._width = layers[0].mixing.out_features
        self._rooms = _Rooms()

    def size_bytes(self) -> int:
        """Return the bytes of the copies."""
        return sum(each.numel() * each.element_size() for each in self._kept)

    def __call__(self, hidden_TD: Tensor, lengths: Sequence[int], *, first_only: bool) -> Tensor:
        """Return the last layer's vectors of all tokens, (T, D), or only of first tokens, (S, D); float32."""
        hidden_TD = hidden_TD.contiguous()
        assert hidden_TD.dtype == torch.float32 and hidden_TD.shape == (sum(lengths), self._width)
        out = torch.empty((len(lengths), self._width) if first_only else hidden_TD.shape)
        lengths_S = np.array(lengths, dtype=np.int32)
        longest = max(lengths, default=0)
        layers, count = ctypes.byref(self._layers), ctypes.c_int64(len(self._layers))
        size = self._library.nlu_int8_room(layers, count, ctypes.c_int64(longest))
        self._library.nlu_int8_layers(
            layers, count, _address(hidden_TD), _address(out), ctypes.c_void_p(lengths_S.ctypes.data),
            ctypes.c_int64(len(lengths)), ctypes.c_int64(longest), ctypes.c_int32(first_only),
            ctypes.c_void_p(self._rooms.of(size)),
        )  # fmt: skip
        return out

    def _layer(self, parts: LayerParts, activation: int) -> _Layer:
        wide = parts.qkv.out_features // 3
        return _Layer(
            self._linear(parts.qkv, slice(wide)), self._linear(parts.qkv, slice(wide, None)),
            self._linear(parts.mixing), self._linear(parts.inner), self._linear(parts.outer),
            self._norm(parts.first), self._norm(parts.second), parts.heads, wide // parts.heads, activation,
        )  # fmt: skip

    def _linear(self, layer: QuantizedLinear, outputs: slice = slice(None)) -> _Linear:
        whole_OI, scale_O, bias_O = (each[outputs] for each in layer.integers())
        sums_O = whole_OI.sum(1, dtype=torch.int32)
        zero_O = -MIDDLE * sums_O if layer.lowest is None else torch.zeros_like(sums_O)
        count, inputs = whole_OI.shape
        padded = F.pad(whole_OI, (0, -inputs % 4, 0, -count % PANEL))
        packed = padded.view(len(padded) // PANEL, PANEL, -1, 4).transpose(1, 2)
        places = [self._place(each) for each in (packed, scale_O, bias_O, zero_O)]
        return _Linear(*places, inputs, count, layer.lowest or 0.0, layer.lowest is not None)

    def _norm(self, norm: nn.LayerNorm) -> _Norm:
        return _Norm(self._place(norm.weight), self._place(norm.bias), norm.eps)

    def _place(self, tensor: Tensor) -> int:
        """Keep a copy and return its address."""
        self._kept.append(tensor.detach().clone(memory_format=torch.contiguous_format))
        return self._kept[-1].data_ptr()


class _Rooms(threading.local):
    """Memory of the last call, of each thread: clearing new pages takes long."""

    _kept: np.ndarray | None = None

    def of(self, size: int) -> int:
        """Return the address of `size` bytes, until the next call."""
        if self._kept is None or len(self._kept) < size:
            self._kept = np.empty(size, np.uint8)
        return int(self._kept.ctypes.data)


def _address(tensor: Tensor) -> ctypes.c_void_p:
    return ctypes.c_void_p(tensor.data_ptr())
