"""Memory of gradients that is kept from step to step.

If a gradient as large as its weight is allocated in every step, the system maps and clears its pages each time; for a
word embedding this takes ten times as long as computing the gradient. In the gradient of an embedding, moreover, only
the rows of a step's tokens are not zero, and only they are cleared for the next step.

Axes: T positions, V entries of the table, D width, N entries, some of them several times.
"""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from nlu.models.layers.torch_private import storage_use_count, version_of


class ReusedMemory:
    """A float32 tensor on the CPU whose memory is reused once all other references to it are gone."""

    _tensor: Tensor | None = None
    _counts_at_rest: int | None = None
    _further: "ReusedMemory | None" = None
    """for gradients of further micro-batches, which are added to the first one"""

    def use(self, tensor: Tensor) -> None:
        """Reuse the memory of this contiguous tensor from now on, which has another owner."""
        self._hold(tensor)
        self._further = ReusedMemory()

    def take(self, shape: torch.Size) -> Tensor:
        """Return an uninitialized tensor of this shape without other references.

        It has the same memory as the last one unless that is still in use, for example by a gradient to which further
        micro-batches are added.
        """
        if self._tensor is None or self._tensor.shape != shape:
            self._hold(torch.empty(shape))
        assert self._tensor is not None
        # While a gradient still refers to the memory, writing into it would change that gradient.
        is_free = self._counts_at_rest is not None and storage_use_count(self._tensor) == self._counts_at_rest
        # A new alias, so that autograd can adopt it as the gradient instead of copying it.
        if is_free:
            return self._tensor.detach()
        return torch.empty(shape) if self._further is None else self._further.take(shape)

    def _hold(self, tensor: Tensor) -> None:
        self._tensor, self._counts_at_rest = tensor, storage_use_count(tensor)


class ReusedTable(ReusedMemory):
    """The memory of an embedding's gradient (V, D), which knows the rows in which it is not zero.

    It notices every write in place that torch counts, and then clears all rows. Writes that are not counted, as through
    `.data`, must leave zeros as they are, or be told to `note`.
    """

    _rows_N: Tensor | None = None
    """all other rows are zero, unless there was a write since `_version`"""
    _version: int | None = None

    def _hold(self, tensor: Tensor) -> None:
        super()._hold(tensor)
        self._rows_N = None

    def sums(self, shape: torch.Size, entries_T: Tensor, gradient_TD: Tensor) -> Tensor:
        """Return (V, D): for each entry of the table the sum of the gradients of its positions, float32."""
        sums_VD = self.take(shape)
        is_own = self._tensor is not None and sums_VD.data_ptr() == self._tensor.data_ptr()
        rows_N = self.rows_of(sums_VD) if is_own else None
        sums_VD = sums_VD.zero_() if rows_N is None else sums_VD.index_fill_(0, rows_N, 0)
        sums_VD.index_add_(0, entries_T, gradient_TD.float())
        if is_own:
            self._rows_N, self._version = entries_T, version_of(sums_VD)
        return sums_VD

    def rows_of(self, gradient_VD: Tensor) -> Tensor | None:
        """Return the entries (N,) outside of which this gradient is zero; None if they are not known."""
        if self._tensor is None or self._rows_N is None or gradient_VD.data_ptr() != self._tensor.data_ptr():
            return None
        version = version_of(self._tensor)
        return self._rows_N if version is not None and version == self._version else None

    def note(self, rows_N: Tensor | None) -> None:
        """Take notice of an uncounted write to these rows; None: to any."""
        if rows_N is None or self._rows_N is None:
            self._rows_N = None
        else:
            self._rows_N = torch.cat([self._rows_N, rows_N])


def memories_of(module: nn.Module) -> Iterator[tuple[nn.Parameter, ReusedMemory]]:
    """Yield the weights whose gradients are written into reused memory, each with the first memory that it has."""
    known: set[int] = set()
    for each in module.modules():
        memory, weight = getattr(each, "memory", None), each._parameters.get("weight")
        if isinstance(memory, ReusedMemory) and weight is not None and id(weight) not in known:
            known.add(id(weight))
            yield weight, memory
