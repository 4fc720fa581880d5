"""The contract of losses. Axes: N rows (examples or units), C outputs."""

from collections.abc import Mapping, Sequence
from typing import Protocol

import torch.nn.functional as F
from torch import Tensor


class Loss(Protocol):
    """A sum over rows, in nats unless the loss says otherwise. The constructor takes the options by keyword.

    The class constants are read from the source, so that a loss that does not fit a task is refused before torch is
    imported. Sums are divided by the number of rows, without weights.
    """

    by_row: bool
    """whether the sum is that of `per_row`; false if the loss of a row depends on other rows of the micro-batch"""
    kinds: tuple[str, ...]
    """the kinds of target that the loss accepts"""
    reads: str
    """logits (N, C), cosine (N, 1) of two texts, or similarities (N, N) of all first with all second texts, minus
    infinity if the second text of another row must not count as wrong, for example because it equals the right one"""

    def bind(self, names: Sequence[str], counts: Mapping[str, int] | None = None, examples: int | None = None) -> None:
        """Take the names of the outputs in order, and the occurrences of each among `examples` training examples.

        Called once, before anything else. Raises UserError if an option does not fit these names.
        """

    def __call__(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the sum over rows; a float32 scalar, 0 without rows."""


def each_probability(logits: Tensor) -> Tensor:
    """Return the sigmoid of each logit, float32, independent of the other logits.

    `torch.sigmoid` depends on them in the last bit: it uses another formula for elements that do not fill a CPU vector.
    """
    return F.logsigmoid(logits.double()).exp().float()


def bernoulli_divergence(first_NC: Tensor, second_NC: Tensor) -> Tensor:
    """Return (KL(p || q) + KL(q || p)) / 2 of independent Bernoulli outputs: mean over outputs, sum over rows; nats."""
    # KL(p || q) + KL(q || p) of two Bernoulli distributions is (p - q) (logit p - logit q).
    return 0.5 * ((first_NC.sigmoid() - second_NC.sigmoid()) * (first_NC - second_NC)).mean(1).sum()


class RowLoss:
    """A loss that is the sum of a value for each row."""

    by_row = True
    reads = "logits"

    def bind(self, names: Sequence[str], counts: Mapping[str, int] | None = None, examples: int | None = None) -> None:
        """Ignore the names of the outputs, because no option depends on them."""

    def per_row(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of each row; (N,), float32."""
        raise NotImplementedError

    def __call__(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the sum over rows; a float32 scalar, 0 without rows."""
        return self.per_row(logits, labels).sum()
