"""Weights of classes, given by name or computed from their frequency. Axes: C classes."""

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor

from nlu.config.errors import UserError
from nlu.config.nearest import hint

Given = Mapping[str, float] | Literal["inverse_frequency"] | None


class ClassWeights:
    """The weights under a key of the loss; None = off."""

    def __init__(self, key: str, given: Given):
        self._key, self._given = key, given
        if isinstance(given, Mapping):
            # A command line and YAML yield a name such as 1 as a number.
            self._given = {str(name): weight for name, weight in given.items()}
        self._weights_C: Tensor | None = None

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
            self._weights_C = torch.tensor(inverse([max(1, counts.get(name, 0)) for name in names]))
            return
        unknown = [name for name in self._given if name not in names]
        if unknown:
            raise UserError(*(f"loss.{self._key}.{name}: unknown class; {hint(name, list(names))}" for name in unknown))
        self._weights_C = torch.tensor([float(self._given.get(name, 1.0)) for name in names])

    def on(self, device: torch.device) -> Tensor | None:
        """Return the weights on a device; (C,), float32."""
        if self._weights_C is None:
            assert self._given is None, "bind was not called"
            return None
        if self._weights_C.device != device:
            self._weights_C = self._weights_C.to(device)
        return self._weights_C


def balanced(counts: Sequence[int]) -> list[float]:
    """Return total / (number of classes * occurrences), which gives every class the same total weight."""
    return [sum(counts) / (len(counts) * count) for count in counts]
