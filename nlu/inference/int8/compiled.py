"""The layers of a BERT encoder in int8 as one call of C for each batch, for predicting on a CPU with AVX-512 VNNI.

The arithmetic is that of `nlu.inference.int8.int8_linear`, with attention in float32; the results differ from those of
torch's operators in the last bits. They have the same bits in any batch, on any number of threads and on any processor
that can compute them (`layers.c`). Calls release Python's lock: parts of a large batch are computed by as many
threads as torch has, and several threads can predict different batches at the same time.

The machine's own compiler builds `layers.c` on first use, and the library is kept in the cache. `quantize` replaces
only the linear layers of a loaded encoder, for torch's operators, and needs no compiler.

Axes: T tokens of all sequences, S sequences, D width, I inputs, O outputs.
"""

import ctypes
import logging
import os
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nlu.config.errors import UserError
from nlu.data.collate import Batch
from nlu.inference.int8.int8_linear import MIDDLE, QuantizedLinear
from nlu.models.encoders.bert import Bert
from nlu.storage.cache import cache_dir, staging_folder, text_digest
from nlu.training.precision import instruction_sets

log = logging.getLogger(__name__)

SOURCE = Path(__file__).with_name("layers.c")
ACTIVATIONS = {"gelu": 0, "gelu_new": 1, "gelu_pytorch_tanh": 1, "relu": 2}
TOKENS_PER_THREAD = 128
"""tokens of a batch that are worth the start of another thread, half a millisecond of a small encoder"""
PANEL = 64
"""outputs whose weights lie together, as in layers.c"""

LOWEST = {"gelu": -0.17, "gelu_new": -0.1701, "gelu_pytorch_tanh": -0.1701, "relu": 0.0}
"""a number that no result of an activation is below"""
INSTRUCTIONS = ("avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni")
"""what a library may use, as /proc/cpuinfo names it"""
FLAGS = (
    "-std=gnu11", "-O3", *(f"-m{name.replace('_', '')}" for name in INSTRUCTIONS), "-ffp-contract=off",
    "-fno-math-errno", "-shared", "-fPIC",
)  # fmt: skip
"""For any processor with the instructions, and without -ffast-math: a compiler must not change the order of sums, nor
fuse a product with a sum by itself."""
COMPILERS = ("cc", "gcc", "clang")


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


class Layers:
    """Copies of the weights of all layers in the memory layout of the kernels."""

    def __init__(self, encoder: Bert):
        """Copy the weights of an encoder whose linear layers are in int8; those of shared layers once.

        Raises UserError if this machine cannot compile the kernels or cannot compute them.
        """
        if missing := [name for name in INSTRUCTIONS if name not in instruction_sets()]:
            raise UserError(
                f"precision is int8_compiled, but this processor lacks {', '.join(missing)}; set precision=int8"
            )
        self._library = load(SOURCE)
        self._kept: list[Tensor] = []
        activation = ACTIVATIONS[encoder.sizes["activation"]]
        self._norm_of_sum = self._norm(encoder.embeddings.LayerNorm)
        weights, numbers = list(encoder.encoder["layer"].children()), range(encoder.sizes["layers"])
        # Layers that share weights have the same number of heads.
        known = {encoder.group_of(number): encoder.heads_of(number) for number in numbers}
        copies = [self._layer(weights[group], heads, activation) for group, heads in known.items()]
        self._layers = (_Layer * len(numbers))(*(copies[encoder.group_of(number)] for number in numbers))
        self._width = encoder.width

    def normalize(self, sum_TD: Tensor) -> None:
        """Compute the norm of the embeddings in place, of (T, D) float32."""
        assert sum_TD.dtype == torch.float32 and sum_TD.is_contiguous()
        rows, width = map(ctypes.c_int64, sum_TD.shape)
        self._library.nlu_int8_norm(_address(sum_TD), ctypes.byref(self._norm_of_sum), rows, width)

    def __call__(self, hidden_TD: Tensor, lengths: Sequence[int], *, first_only: bool) -> Tensor:
        """Return the last layer's vectors of all tokens, (T, D), or only of first tokens, (S, D); float32."""
        lengths_S = np.array(lengths, dtype=np.int32)
        ends_S = lengths_S.cumsum()
        tokens = int(ends_S[-1]) if len(ends_S) else 0
        hidden_TD = hidden_TD.contiguous()
        assert hidden_TD.dtype == torch.float32 and hidden_TD.shape == (tokens, self._width)
        out = torch.empty((len(lengths), self._width) if first_only else hidden_TD.shape)
        if not tokens:
            return out
        threads = min(torch.get_num_threads(), tokens // TOKENS_PER_THREAD) or 1
        layers, count = ctypes.byref(self._layers), ctypes.c_int64(len(self._layers))
        longest = ctypes.c_int64(int(lengths_S.max()))

        def compute(begin: int, end: int) -> None:
            """Write the result of some sequences."""
            token = int(ends_S[begin] - lengths_S[begin])
            has_failed = self._library.nlu_int8_layers(
                layers, count, _address(hidden_TD[token:]), _address(out[begin if first_only else token :]),
                ctypes.c_void_p(lengths_S[begin:].ctypes.data), ctypes.c_int64(end - begin), longest,
                ctypes.c_int32(first_only),
            )  # fmt: skip
            if has_failed:
                raise MemoryError

        if threads == 1:
            compute(0, len(lengths_S))
            return out
        # Consecutive sequences, about as many tokens for each thread. All have ended when the block is left, also by
        # an error: none may write into freed memory.
        cuts = [0, *np.searchsorted(ends_S, tokens * np.arange(1, threads) / threads).tolist(), len(lengths_S)]
        with ThreadPoolExecutor(threads) as pool:
            parts = [pool.submit(compute, begin, end) for begin, end in pairwise(cuts) if begin < end]
        for part in parts:
            part.result()
        return out

    def _layer(self, layer: Any, heads: int, activation: int) -> _Layer:
        attention, qkv = layer.attention.output, layer.attention.self["qkv"]
        wide = qkv.out_features // 3
        return _Layer(
            self._linear(qkv, slice(wide)), self._linear(qkv, slice(wide, None)), self._linear(attention.dense),
            self._linear(layer.intermediate["dense"]), self._linear(layer.output.dense),
            self._norm(attention.LayerNorm), self._norm(layer.output.LayerNorm), heads, wide // heads, activation,
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


def _address(tensor: Tensor) -> ctypes.c_void_p:
    """Return where the numbers of a tensor begin; it must be contiguous and outlive the call."""
    return ctypes.c_void_p(tensor.data_ptr())


def quantize(encoder: Bert, dtype: torch.dtype) -> None:
    """Hold the linear layers of all layers in int8, in place and for good; `dtype` is that of attention's inputs.

    Embeddings and their projection, norms, pooling and the softmax stay as they are.
    """
    layer: Any
    for layer in encoder.encoder["layer"].children():
        projections, dense = layer.attention.self, layer.attention.output.dense
        projections["qkv"] = QuantizedLinear(projections["qkv"], dtype=dtype)
        layer.attention.output.dense = QuantizedLinear(dense)
        layer.intermediate["dense"] = QuantizedLinear(layer.intermediate["dense"])
        layer.output.dense = QuantizedLinear(layer.output.dense, lowest=LOWEST[encoder.sizes["activation"]])


def compile_layers(encoder: Bert) -> None:
    """Hold the encoder in int8 and compute its layers in C, with attention in float32.

    Raises UserError if this machine cannot do that, or if the pooling reads the layers in between.
    """
    if encoder.pooling == "layers":
        raise UserError(
            "precision is int8_compiled, which computes all layers at once, but model.pooling is layers; set "
            "precision=int8"
        )
    quantize(encoder, torch.float32)
    layers = Layers(encoder)
    encoder.__class__ = CompiledBert
    cast(CompiledBert, encoder).in_c = layers


class CompiledBert(Bert):
    """A BERT in int8 whose layers are one call of C, where nothing needs a gradient or what is inside of layers."""

    in_c: Layers

    def _hidden(self, x_TD: Tensor, batch: Batch, *, first_only: bool, seen: Any = None) -> Tensor:
        """Return the last layer's vectors of all tokens, (T, D), or only of first tokens, (S, D)."""
        if seen is not None or torch.is_grad_enabled():
            return super()._hidden(x_TD, batch, first_only=first_only, seen=seen)
        own = self.embeddings
        types, differ = own.token_type_embeddings, self.has_segments and own.token_type_embeddings.num_embeddings > 1
        hidden_TD = x_TD + own.position_embeddings(batch.positions_T)
        hidden_TD += types(batch.segments_T) if differ else types.weight[0]
        self.in_c.normalize(hidden_TD)
        if self.embeddings_project is not None:
            hidden_TD = self.embeddings_project(hidden_TD)
        return self.in_c(hidden_TD, batch.lengths, first_only=first_only)


@cache
def load(source: Path) -> ctypes.CDLL:
    """Return the library of a source, built if the cache lacks it. Several threads and processes may ask.

    Raises UserError if there is no compiler, if it refuses the source, or if the cache cannot be written.
    """
    library = cache_dir() / "compiled" / f"int8-{text_digest(source.read_text(encoding='utf-8'), *FLAGS)}.so"
    if not library.exists():
        with staging_folder() as folder:
            staged = folder / library.name
            _compile(source, staged)
            library.parent.mkdir(exist_ok=True)
            # The file of another process, if it was first, has the same content.
            os.replace(staged, library)
    return ctypes.CDLL(str(library))


def _compile(source: Path, library: Path) -> None:
    given = shlex.split(os.environ.get("CC", ""))
    command = given or [next(filter(shutil.which, COMPILERS), COMPILERS[0])]
    log.info("compiling %s with %s", source.name, command[0])
    command += [*FLAGS, "-o", str(library), str(source), "-lm"]
    try:
        # In English, whose word for an error is looked for below.
        plain = os.environ | {"LC_ALL": "C"}
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False, env=plain)
    except OSError as error:
        raise UserError(
            f"precision=int8_compiled needs a C compiler, but {command[0]} does not start ({error.strerror}); install "
            "gcc or clang, set CC to another, or set precision=int8"
        ) from error
    if done.returncode:
        lines = done.stderr.splitlines()
        said = next((line for line in lines if "error" in line), f"exit status {done.returncode}")
        raise UserError(f"the C compiler {command[0]} cannot compile {source.name}: {said}; set CC to another compiler")
