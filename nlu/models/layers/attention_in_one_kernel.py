"""Self-attention over packed sequences in one call, for an accelerator.

Axes: T tokens of all sequences, B sequences, L the longest, H heads, E width of a head, D = H * E; Q queries of a
sequence: L, or 1 if only first tokens have queries.
"""

import inspect
import logging
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from nlu.data.collate import to_device
from nlu.models.layers.repeatable import repeatable, strictly

log = logging.getLogger(__name__)

HEAD_STEP, WIDEST_HEAD = 8, 256
"""widths of a head: a multiple of which, and the largest one, that torch's kernel over packed rows computes"""
Kernel = Callable[..., Tensor]
"""has the signature of torch.nn.attention.varlen.varlen_attn"""
Kernels = Callable[[torch.device, float], Kernel | None]
"""returns the attention over packed rows with a probability of dropout, or None"""


def packed_attention(
    query_QHE: Tensor, key_THE: Tensor, value_THE: Tensor, query_bounds: Tensor, bounds: Tensor, longest_query: int,
    longest: int, *, scale: float, dropout_p: float,
) -> Tensor:  # fmt: skip
    """Return attention over packed sequences of half precision on a CUDA device, with dropout; (Q, H, E).

    The public torch.nn.attention.varlen.varlen_attn is this kernel without dropout. `bounds`: the start of each
    sequence, and the end of the last one, int32. Raises AttributeError, TypeError or RuntimeError where there is no
    such kernel.
    """
    # Private; read in torch 2.13.
    mixed_QHE: Tensor = torch.ops.aten._flash_attention_forward(
        query_QHE, key_THE, value_THE, query_bounds, bounds, longest_query, longest, dropout_p, False, False,
        scale=scale,
    )[0]  # fmt: skip
    return mixed_QHE


def packed_kernel(device: torch.device, dropout_p: float = 0.0) -> Kernel | None:
    """Return torch's attention over packed rows in half precision, or None if it does not work.

    Whether it works depends on device, driver and build, so it is tried once on each device, with and without dropout.
    """
    if not dropout_p:
        return _without_dropout(device)
    return partial(packed_attention, dropout_p=dropout_p) if _drops(device) else None


@cache
def _without_dropout(device: torch.device) -> Kernel | None:
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError as error:
        log.info("attention over packed rows is not available on %s (%s); rows are padded", device, error)
        return None
    # Otherwise the longest sequence decides how keys are split, and so in which order the others are summed.
    unsplit: dict[str, Any] = {"num_splits": 1} if "num_splits" in inspect.signature(varlen_attn).parameters else {}
    kernel: Any = partial(varlen_attn, **unsplit)
    return kernel if _computes(kernel, device, {1.0}) else None


@cache
def _drops(device: torch.device) -> bool:
    # A probe must not change the random numbers of a run.
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        return _computes(partial(packed_attention, dropout_p=0.5), device, {0.0, 1.0, 2.0})


def _computes(kernel: Kernel, device: torch.device, expected: set[float]) -> bool:
    """Return whether a kernel runs forward and backward, and computes nothing but `expected` from ones.

    A weighted mean of ones is 1 for any weights, and with dropout of a half, for one or two equal weights, 0, 1 or 2:
    a kernel that runs but computes nonsense is not used either.
    """
    try:
        # The first call may come from scoring, which disables gradients; training calls it in this mode.
        with torch.inference_mode(False), torch.enable_grad(), strictly():
            rows_T3HE = torch.ones(3, 3, 1, HEAD_STEP, dtype=torch.bfloat16, device=device, requires_grad=True)
            bounds = torch.tensor([0, 1, 3], dtype=torch.int32, device=device)
            mixed_THE = kernel(*rows_T3HE.unbind(1), bounds, bounds, 2, 2, scale=1.0)
            (gradient,) = torch.autograd.grad(mixed_THE.float().sum(), rows_T3HE)
        return set(mixed_THE.flatten().tolist()) <= expected and bool(gradient.isfinite().all())
    except (RuntimeError, TypeError, AttributeError) as error:
        log.info("attention over packed rows is not available on %s (%s); rows are padded", device, error)
        return False


class AttentionInOneKernel:
    """Attention in one call, for an accelerator, on which one masked call costs less than a call for each length.

    In half precision the kernel reads packed rows; else rows are padded to the longest sequence inside this call. Heads
    are padded to a multiple of HEAD_STEP, because torch takes a slow path for others. In torch's deterministic mode the
    gradient has the same bits each time.
    """

    def __init__(
        self,
        lengths: list[int],
        heads: int,
        device: torch.device,
        packed_kernel: Kernels = packed_kernel,
    ):
        self._heads, self._count, self._longest = heads, len(lengths), max(lengths)
        self._packed_kernel = packed_kernel
        lengths_B = np.array(lengths, dtype=np.int64)
        real_BL = torch.from_numpy(np.arange(self._longest) < lengths_B[:, None])
        # Computed on the host, so that nothing here waits for the device.
        self._mask_B11L = to_device(real_BL[:, None, None], device)
        self._place_T = to_device(torch.from_numpy(np.flatnonzero(real_BL)), device)
        self._bounds = to_device(torch.from_numpy(np.cumsum([0, *lengths], dtype=np.int32)), device)
        """the start of each sequence in T, and the end of the last one"""
        self._firsts = to_device(torch.arange(len(lengths) + 1, dtype=torch.int32), device)

    def self_attention(self, qkv_T3D: Tensor, dropout_p: float) -> Tensor:
        """Return the result for every token; (T, D)."""
        if kernel := self._kernel_for(qkv_T3D, 3, dropout_p):
            return self._mix_packed(kernel, self._by_head(qkv_T3D, 3), self._bounds, self._longest)
        mixed_BHLE = self._mix(self._padded(qkv_T3D, 3), dropout_p)
        return mixed_BHLE.transpose(1, 2).flatten(0, 1).flatten(1).index_select(0, self._place_T)

    def first_token_attention(self, query_BD: Tensor, key_value_T2D: Tensor, dropout_p: float) -> Tensor:
        """Return the result for the first token of each sequence; (B, D)."""
        if kernel := self._kernel_for(key_value_T2D, 2, dropout_p):
            heads = *self._by_head(query_BD, 1), *self._by_head(key_value_T2D, 2)
            return self._mix_packed(kernel, heads, self._firsts, 1)
        query_BH1E = query_BD.view(self._count, self._heads, 1, -1)
        return self._mix((query_BH1E, *self._padded(key_value_T2D, 2)), dropout_p).flatten(1)

    def _kernel_for(self, packed_TC: Tensor, parts: int, dropout_p: float) -> Kernel | None:
        fits = packed_TC.dtype in (torch.bfloat16, torch.float16)
        fits &= packed_TC.shape[1] <= parts * self._heads * WIDEST_HEAD
        return self._packed_kernel(packed_TC.device, dropout_p) if fits else None

    def _by_head(self, packed_TC: Tensor, parts: int) -> tuple[Tensor, ...]:
        """Return the parts of the columns as (T, H, E) each."""
        return packed_TC.view(len(packed_TC), parts, self._heads, -1).unbind(1)

    def _padded(self, packed_TC: Tensor, parts: int) -> tuple[Tensor, ...]:
        """Return the parts of the columns as (B, H, L, E) each; padding is zero."""
        padded = packed_TC.new_zeros(self._count * self._longest, packed_TC.shape[1])
        padded = padded.index_copy(0, self._place_T, packed_TC)
        return padded.view(self._count, self._longest, parts, self._heads, -1).permute(2, 0, 3, 1, 4).unbind(0)

    def _mix(self, heads: tuple[Tensor, ...], dropout_p: float) -> Tensor:
        """Return (B, H, Q, E) of padded queries, keys and values."""

        def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            return F.scaled_dot_product_attention(
                query, key, value, attn_mask=self._mask_B11L, dropout_p=dropout_p, scale=width**-0.5
            )

        width = heads[0].shape[-1]
        return repeatable(attend, *map(_wide_enough, heads))[..., :width]

    def _mix_packed(self, kernel: Kernel, heads: tuple[Tensor, ...], query_bounds: Tensor, longest: int) -> Tensor:
        """Return (Q, D) of packed queries, keys and values; `longest` of the queries of a sequence."""

        def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            bounds = query_bounds, self._bounds
            return kernel(query, key, value, *bounds, longest, self._longest, scale=width**-0.5)

        width = heads[0].shape[-1]
        return repeatable(attend, *map(_wide_enough, heads))[..., :width].flatten(1)


def _wide_enough(heads: Tensor) -> Tensor:
    """Return heads padded by columns of zeros to a multiple of HEAD_STEP, which do not change products."""
    missing = -heads.shape[-1] % HEAD_STEP
    return F.pad(heads, (0, missing)) if missing else heads
