"""A linear layer whose result for a row does not depend on how many other rows are computed with it."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

MIN_ROWS = 16
MIN_ROWS_PER_THREAD = 4


class Linear(nn.Linear):
    """As nn.Linear on (rows, features), with at least `min_rows()` rows computed."""

    def forward(self, input: Tensor) -> Tensor:
        return linear(input, self.weight, self.bias)


def min_rows() -> int:
    """Return the number of rows from which on the order of summation no longer depends on it.

    Matrix libraries share rows out among threads, and a thread with three rows or fewer runs a kernel with another
    order of summation; a lone example would then score differently, in the last bits, from the same example among
    others.
    """
    return max(MIN_ROWS, MIN_ROWS_PER_THREAD * torch.get_num_threads())


def linear(input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Apply a weight to rows, padded with zero rows to `min_rows()` where there are fewer."""
    rows, wanted = input.shape[0], min_rows()
    if rows >= wanted:
        return F.linear(input, weight, bias)
    padding = input.new_zeros(wanted - rows, *input.shape[1:])
    return F.linear(torch.cat([input, padding]), weight, bias)[:rows]
