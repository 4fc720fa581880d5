"""Self-attention over packed sequences: by length on a CPU, in one call on an accelerator.

Its gradient has the same bits each time in torch's deterministic mode. While that mode only warns, which is necessary
because some operations lack a deterministic kernel, torch uses attention kernels that sum gradients in any order. So
the mode is set to "error" for attention, forward and backward.

Axes: T tokens of all sequences, B sequences, L the longest, or the length of all sequences of a group, H heads, E width
of a head, D = H * E; Q queries of a sequence: L, or 1 if only first tokens have queries; N = sequences of a group * H.
With a window, B are blocks of sequences (`local_attention`), Q and L their queries and keys.
"""

import inspect
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache, partial
from itertools import groupby
from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from nlu.data.collate import to_device
from nlu.models.layers.dropout import dropout
from nlu.models.layers.exact_linear import with_rows
from nlu.models.layers.local_attention import Blocks

log = logging.getLogger(__name__)

HEAD_STEP, WIDEST_HEAD = 8, 256
"""widths of a head: a multiple of which, and the largest one, that torch's kernel over packed rows computes"""
Kernel = Callable[..., Tensor]
"""has the signature of torch.nn.attention.varlen.varlen_attn"""
Kernels = Callable[[torch.device, float], Kernel | None]
"""returns the attention over packed rows with a probability of dropout, or None"""


def repeatable(compute: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
    """Return `compute(*inputs)`; in the deterministic mode, its gradient has the same bits each time.

    Only one backward pass is possible; it releases the graph even if the result is still referenced.
    """
    if not _is_wanted():
        return compute(*inputs)
    return _Repeatable.apply(compute, *inputs)


def repeatable_attention() -> AbstractContextManager[object]:
    """Return a context in which calls of torch's attention by other libraries, such as transformers, are repeatable."""
    return _AttentionMode() if _is_wanted() else nullcontext()


def _is_wanted() -> bool:
    return torch.is_grad_enabled() and bool(torch.get_deterministic_debug_mode())


class _AttentionMode(TorchFunctionMode):
    def __torch_function__(
        self,
        func: Callable[..., Tensor],
        types: object,
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> Tensor:
        named = dict(kwargs or {})
        if func is not F.scaled_dot_product_attention:
            return func(*args, **named)
        names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
        # Arguments by name, because tensors among them must be passed to `repeatable` one by one for their gradients.
        named |= dict(zip(names, args, strict=False))
        tensors = {name: value for name, value in named.items() if isinstance(value, Tensor)}
        return repeatable(lambda *given: func(**named | dict(zip(tensors, given, strict=True))), *tensors.values())


class _Repeatable(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, compute: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
        # A separate graph inside forward, so that both passes run in strict mode; autograd would otherwise run
        # backward after the block has ended.
        detached = [input.detach().requires_grad_(input.requires_grad) for input in inputs]
        with torch.enable_grad(), strictly():
            output = compute(*detached)
        ctx.held = detached, output
        return output.detach()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.held is None:
            raise RuntimeError("attention can run backward only once in the deterministic mode")
        # The node exists as long as the loss is referenced; the tensors must be released earlier.
        (inputs, output), ctx.held = ctx.held, None
        wanted = [input for input in inputs if input.requires_grad]
        with strictly():
            found = iter(torch.autograd.grad(output, wanted, gradients[0]))
        return None, *(next(found) if input.requires_grad else None for input in inputs)


@contextmanager
def strictly() -> Iterator[None]:
    """Refuse operations without a deterministic kernel in the block; attention then uses one that has it."""
    mode = torch.get_deterministic_debug_mode()
    torch.set_deterministic_debug_mode("error")
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(mode)


def packed_attention(
    query_QHE: Tensor, key_THE: Tensor, value_THE: Tensor, query_bounds: Tensor, bounds: Tensor, longest_query: int,
    longest: int, *, scale: float, dropout_p: float, window_size: tuple[int, int] = (-1, -1),
) -> Tensor:  # fmt: skip
    """Return attention over packed sequences of half precision on a CUDA device, with dropout; (Q, H, E).

    The public torch.nn.attention.varlen.varlen_attn is this kernel without dropout. `bounds`: the start of each
    sequence, and the end of the last one, int32. `window_size`: how many keys before and behind itself a query sees,
    -1 = all. Raises AttributeError, TypeError or RuntimeError where there is no such kernel.
    """
    # Private; read in torch 2.13.
    mixed_QHE: Tensor = torch.ops.aten._flash_attention_forward(
        query_QHE, key_THE, value_THE, query_bounds, bounds, longest_query, longest, dropout_p, False, False,
        scale=scale, window_size_left=window_size[0], window_size_right=window_size[1],
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
        reach: int | None = None,
    ):
        self._heads, self._count, self._longest = heads, len(lengths), max(lengths)
        self._packed_kernel = packed_kernel
        # Where all texts are short, the window cuts nothing off.
        self._reach = reach if reach is not None and self._longest > reach + 1 else None
        self._blocks = None if self._reach is None else Blocks(self._longest, self._reach)
        lengths_B = np.array(lengths, dtype=np.int64)
        real_BL = torch.from_numpy(np.arange(self._longest) < lengths_B[:, None])
        # Computed on the host, so that nothing here waits for the device.
        mask = real_BL[:, None, None] if self._blocks is None else self._blocks.seen(torch.from_numpy(lengths_B))
        self._mask = to_device(mask, device)
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
        assert self._reach is None, "a layer of a window computes all tokens"
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
            if (blocks := self._blocks) is not None:
                query, key, value = blocks.queries(query), blocks.keys(key), blocks.keys(value)
            mixed = F.scaled_dot_product_attention(
                query, key, value, attn_mask=self._mask, dropout_p=dropout_p, scale=width**-0.5
            )
            return mixed if blocks is None else blocks.joined(mixed)

        width = heads[0].shape[-1]
        return repeatable(attend, *map(_wide_enough, heads))[..., :width]

    def _mix_packed(self, kernel: Kernel, heads: tuple[Tensor, ...], query_bounds: Tensor, longest: int) -> Tensor:
        """Return (Q, D) of packed queries, keys and values; `longest` of the queries of a sequence."""

        def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            bounds = query_bounds, self._bounds
            near: dict[str, Any] = {} if self._reach is None else {"window_size": (self._reach, self._reach)}
            return kernel(query, key, value, *bounds, longest, self._longest, scale=width**-0.5, **near)

        width = heads[0].shape[-1]
        return repeatable(attend, *map(_wide_enough, heads))[..., :width].flatten(1)


def _wide_enough(heads: Tensor) -> Tensor:
    """Return heads padded by columns of zeros to a multiple of HEAD_STEP, which do not change products."""
    missing = -heads.shape[-1] % HEAD_STEP
    return F.pad(heads, (0, missing)) if missing else heads


class Attention(Protocol):
    """softmax(q k / sqrt(E)) v within each sequence of a batch, or within a window around each token.

    The result of a sequence does not depend on other sequences; on a CPU not even in the last bit, where rows after
    those of the last sequence are ignored and come out as zeros.
    """

    def self_attention(self, qkv_T3D: Tensor, dropout_p: float) -> Tensor:
        """Return the result for every token; (T, D)."""

    def first_token_attention(self, query_BD: Tensor, key_value_T2D: Tensor, dropout_p: float) -> Tensor:
        """Return the result for the first token of each sequence; (B, D)."""


def attention_over(lengths: list[int], heads: int, device: torch.device, reach: int | None = None) -> Attention:
    """Return the attention of a batch, for all layers.

    On a CPU it is the faster, the more neighbours in `lengths` are equal, as in the batches of `collate`.
    `reach`: how many places away a token may be to be seen; None: anywhere in its sequence.
    """
    if device.type == "cuda":
        return AttentionInOneKernel(lengths, heads, device, reach=reach)
    return AttentionByLength(lengths, heads, reach)


class AttentionByLength:
    """Attention on a CPU: sequences of the same length are computed together, so nothing is padded."""

    def __init__(self, lengths: list[int], heads: int, reach: int | None = None):
        self._heads, self._tokens = heads, sum(lengths)
        self._groups = [(length, len(list(same))) for length, same in groupby(lengths)]
        self._windows: dict[tuple[int, int], tuple[Blocks, Tensor]] = {}
        """blocks and mask of groups that are longer than a window, by their length and number"""
        for length, count in self._groups if reach is not None else ():
            assert reach is not None
            if length > reach + 1:
                blocks = Blocks(length, reach)
                self._windows[length, count] = blocks, blocks.seen(torch.full((count,), length))

    def self_attention(self, qkv_T3D: Tensor, dropout_p: float) -> Tensor:
        """Return the result for every token; (T, D)."""
        parts = [parts_BHLE.unbind(0) for parts_BHLE in self._by_head(qkv_T3D, 3)]
        return with_rows(self._mixed(parts, dropout_p), len(qkv_T3D))

    def first_token_attention(self, query_BD: Tensor, key_value_T2D: Tensor, dropout_p: float) -> Tensor:
        """Return the result for the first token of each sequence; (B, D)."""
        assert not self._windows, "a layer of a window computes all tokens"
        queries = query_BD.split([count for _, count in self._groups])
        parts = [
            (query_BD.view(len(query_BD), self._heads, 1, -1), *key_value.unbind(0))
            for query_BD, key_value in zip(queries, self._by_head(key_value_T2D, 2), strict=True)
        ]
        return self._mixed(parts, dropout_p)

    def _by_head(self, packed_TC: Tensor, parts: int) -> list[Tensor]:
        """Return (parts, B, H, L, E) for each group."""
        # Not one slice for each group, since the gradient of a slice is as large as the whole.
        width = packed_TC.shape[1] // (parts * self._heads)
        groups = packed_TC[: self._tokens].split([count * length for length, count in self._groups])
        return [
            group.view(-1, length, parts, self._heads, width).permute(2, 0, 3, 1, 4)
            for group, (length, _) in zip(groups, self._groups, strict=True)
        ]

    def _mixed(self, groups: list[tuple[Tensor, ...]], dropout_p: float) -> Tensor:
        mixed, first = [], 0
        for (query_BHQE, key_BHLE, value_BHLE), (length, count) in zip(groups, self._groups, strict=True):
            blocks, mask = self._windows.get((length, count), (None, None))
            if blocks is not None:
                query_BHQE, key_BHLE, value_BHLE = (
                    blocks.queries(query_BHQE), blocks.keys(key_BHLE), blocks.keys(value_BHLE),
                )  # fmt: skip
            if torch.is_grad_enabled():
                mixed_BHQE = _attend(query_BHQE, key_BHLE, value_BHLE, dropout_p, first, count, mask)
            else:
                mixed_BHQE = F.scaled_dot_product_attention(query_BHQE, key_BHLE, value_BHLE, attn_mask=mask)
            if blocks is not None:
                mixed_BHQE = blocks.joined(mixed_BHQE)
            mixed.append(mixed_BHQE.transpose(1, 2).flatten(2).flatten(0, 1))
            first += count
        return torch.cat(mixed)


def _attend(
    query_BHQE: Tensor, key_BHLE: Tensor, value_BHLE: Tensor, dropout_p: float, first: int, count: int,
    mask: Tensor | None,
) -> Tensor:  # fmt: skip
    """Return attention of `count` sequences from `first` on for training: torch's call drops weights by random numbers
    of the batch, and on a CPU its gradient in bf16 takes several times as long."""
    shape = query_BHQE.shape
    query_NQE, key_NLE, value_NLE = (each.flatten(0, 1) for each in (query_BHQE, key_BHLE, value_BHLE))
    scores_NQL = torch.bmm(query_NQE * shape[-1] ** -0.5, key_NLE.mT)
    if mask is not None:
        scores_NQL = scores_NQL.unflatten(0, shape[:2]).masked_fill(~mask, -torch.inf).flatten(0, 1)
    # Softmax and dropout in fp32.
    rows = [len(scores_NQL) // count] * count
    weights_NQL = dropout(scores_NQL.softmax(-1, dtype=torch.float32), dropout_p, rows, first)
    return torch.bmm(weights_NQL.to(value_NLE.dtype), value_NLE).view(shape)


def attention_weights(
    query_TD: Tensor, key_TD: Tensor, lengths: list[int], heads: int, reach: int | None = None
) -> list[Tensor]:
    """Return the attention weights of each sequence, before dropout; `reach` as in `attention_over`.

    One tensor (H, L, L), float32, for each sequence, with a gradient; a row (query) adds up to 1.
    """
    found: list[Tensor] = []
    with torch.autocast(query_TD.device.type, enabled=False):
        for query_LD, key_LD in zip(query_TD.split(lengths), key_TD.split(lengths), strict=True):
            query_HLE, key_HLE = (
                rows_LD.float().view(len(rows_LD), heads, -1).transpose(0, 1) for rows_LD in (query_LD, key_LD)
            )
            scores_HLL = query_HLE @ key_HLE.mT * query_HLE.shape[-1] ** -0.5
            if reach is not None:
                place_L = torch.arange(len(query_LD), device=query_LD.device)
                scores_HLL = scores_HLL.masked_fill((place_L - place_L[:, None]).abs() > reach, -torch.inf)
            found.append(scores_HLL.softmax(-1))
    return found
