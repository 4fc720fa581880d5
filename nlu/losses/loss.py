"""What a loss is. Axes: N rows (examples or units), C outputs."""

from collections.abc import Mapping, Sequence
from typing import Protocol

import torch.nn.functional as F
from torch import Tensor


class Loss(Protocol):
    """A sum over rows, in nats unless the loss says otherwise. Its constructor takes its options by keyword.

    The literals below are read from the source, so that a loss which does not fit a task is refused before torch is
    imported. Whoever adds losses up divides by a number of rows, which is never weighted.
    """

    by_row: bool
    """whether the sum is that of `per_row`; false where a row's share depends on the others of its micro-batch"""
    kinds: tuple[str, ...]
    """the kinds of target that it reads"""
    reads: str
    """logits (N, C), cosine (N, 1) of two texts, or similarities (N, N) of all first with all second texts, minus
    infinity where the second text of another row is no wrong answer, such as one equal to the right answer"""

    def bind(self, names: Sequence[str], counts: Mapping[str, int] | None = None, examples: int | None = None) -> None:
        """Take the names of the outputs in their order, and how often each occurs among so many training examples.

        Called once, before anything else. Raises UserError where an option does not fit these names.
        """

    def __call__(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the sum over rows; a float32 scalar, 0 without rows."""


def each_probability(logits: Tensor) -> Tensor:
    """Return the sigmoid of each logit, float32, which does not hang on the others.

    The library's own does, in the last bit: it computes those that fill no vector of the CPU by another formula.
    """
    return F.logsigmoid(logits.double()).exp().float()


def bernoulli_divergence(first_NC: Tensor, second_NC: Tensor) -> Tensor:
    """Return half of KL(p || q) + KL(q || p) of each output's own yes or no: mean over outputs, sum over rows; nats."""
    # For two Bernoulli distributions that is (p - q) (logit p - logit q).
    return 0.5 * ((first_NC.sigmoid() - second_NC.sigmoid()) * (first_NC - second_NC)).mean(1).sum()


class RowLoss:
    """A loss that is the sum of a value for each row."""

    by_row = True
    reads = "logits"

    def bind(self, names: Sequence[str], counts: Mapping[str, int] | None = None, examples: int | None = None) -> None:
        """Take the names of the outputs; a loss without options by name needs none."""

    def per_row(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the value of each row; (N,), float32."""
        raise NotImplementedError

    def __call__(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the sum over rows; a float32 scalar, 0 without rows."""
        return self.per_row(logits, labels).sum()
