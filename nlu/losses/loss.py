"""The contract of losses, and weights of classes, given by name or computed from their frequency.

Axes: N rows (examples or units), C outputs or classes.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from nlu.config.errors import UserError
from nlu.config.nearest import hint
from nlu.losses import keys as schemas


class Loss(Protocol):
    """A sum over rows, in nats unless the loss says otherwise. The constructor takes the keys by keyword.

    Sums are divided by the number of rows, without weights.
    """

    by_row: bool
    """whether the sum is that of `per_row`; false if the loss of a row depends on the other rows of the step or, with a
    method that has passes of its own, of the micro-batch"""
    kinds: tuple[str, ...]
    """the kinds of target that the loss accepts"""
    reads: str
    """logits (N, C), cosine (N, 1) of two texts, vectors (N, D) of the first and of the second ones, or similarities
    (N, N) of all first with all second texts, minus infinity if the second text of another row must not count as wrong,
    for example because it equals the right one"""

    def bind(self, names: Sequence[str], counts: Mapping[str, int] | None = None, examples: int | None = None) -> None:
        """Take the names of the outputs in order, and the occurrences of each among `examples` training examples.

        Called once, before anything else. Raises UserError if an option does not fit these names.
        """

    def __call__(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the sum over rows; a float32 scalar, 0 without rows."""


def require_two(loss: str, names: Sequence[str], remedy: str) -> None:
    """Raise UserError unless there are two classes."""
    if len(names) != 2:
        raise UserError(
            f"loss={loss} needs two classes, but the data has {len(names)} ({', '.join(names[:5])}); set {remedy}"
        )


def each_probability(logits: Tensor) -> Tensor:
    """Return the sigmoid of each logit, float32, independent of the other logits.

    `torch.sigmoid` depends on them in the last bit: it uses another formula for elements that do not fill a CPU vector.
    """
    # In float64, so that rounding to float32 hides the differences between the formulas.
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


def loss_of(loss: Loss, logits: Tensor, labels: Tensor, is_real_N: Tensor | None) -> Tensor:
    """Return the loss of the real rows; `is_real_N`: which rows are no filling, None: all. The loss must be by row."""
    if is_real_N is None:
        return loss(logits, labels)
    assert isinstance(loss, RowLoss), "losses that compare rows get no filling"
    return torch.where(is_real_N, loss.per_row(logits, labels), 0.0).sum()


class ClassWeights:
    """The weights under a key of the loss; None = off."""

    def __init__(self, key: str, given: schemas.ClassWeights):
        self._key = key
        # A command line and YAML yield a name such as 1 as a number.
        self._given = {str(name): one for name, one in given.items()} if isinstance(given, Mapping) else given
        self.weights_C: Tensor | None = None

    def bind(
        self, names: Sequence[str], counts: Mapping[str, int] | None, inverse: Callable[[Sequence[int]], list[float]]
    ) -> None:
        """Compute the weights of the classes; `inverse` converts numbers of occurrences to weights.

        Raises UserError with every unknown name, or if occurrences are needed and unknown.
        """
        if self._given is None:
            return
        if isinstance(self._given, str):
            if counts is None:
                raise UserError(
                    f"loss.{self._key} is {self._given}, but the frequency of each class is unknown; write a "
                    f"weight for each class, or set loss.{self._key}=null"
                )
            # A class that does not occur has the weight of one that occurs once.
            self.weights_C = torch.tensor(inverse([max(1, counts.get(name, 0)) for name in names]))
            return
        unknown = [name for name in self._given if name not in names]
        if unknown:
            raise UserError(*(f"loss.{self._key}.{name}: unknown class; {hint(name, list(names))}" for name in unknown))
        # Classes that are not named keep the weight 1.
        self.weights_C = torch.tensor([float(self._given.get(name, 1.0)) for name in names])

    def on(self, device: torch.device) -> Tensor | None:
        """Return the weights on a device; (C,), float32."""
        assert self.weights_C is not None or self._given is None, "bind was not called"
        # The device is known only at the first call; the copy is kept, so that later calls do not transfer it again.
        if self.weights_C is not None and self.weights_C.device != device:
            self.weights_C = self.weights_C.to(device)
        return self.weights_C

    def weighted(self, loss_N: Tensor, labels_N: Tensor) -> Tensor:
        """Return the loss of each row times the weight of its class; (N,)."""
        weights_C = self.on(loss_N.device)
        return loss_N if weights_C is None else loss_N * weights_C.index_select(0, labels_N)


def balanced(counts: Sequence[int]) -> list[float]:
    """Return total / (number of classes * occurrences), which gives every class the same total weight."""
    return [sum(counts) / (len(counts) * count) for count in counts]
