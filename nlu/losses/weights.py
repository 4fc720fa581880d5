"""Weights by class, written out or computed from how often each class occurs. Axes: C classes."""

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor

from nlu.config.errors import UserError
from nlu.config.nearest import hint

Given = Mapping[str, float] | Literal["inverse_frequency"] | None


class ClassWeights:
    """Weights under a key of the loss; None where there are none."""

    def __init__(self, key: str, given: Given):
        self._key, self._given = key, given
        if isinstance(given, Mapping):
            # Names that are numbers come as such from a command line and from YAML.
            self._given = {str(name): weight for name, weight in given.items()}
        self._weights_C: Tensor | None = None

    def bind(
        self, names: Sequence[str], counts: Mapping[str, int] | None, inverse: Callable[[Sequence[int]], list[float]]
    ) -> None:
        """Compute the weights of these classes; `inverse` turns numbers of occurrences into weights.

        Raises UserError listing every name that is no class, or where occurrences are wanted and unknown.
        """
        if self._given is None:
            return
        if isinstance(self._given, str):
            if counts is None:
                raise UserError(
                    f"loss.{self._key} is {self._given}, but nothing is known of how often each class occurs; write a "
                    f"weight for each class, or set loss.{self._key}=null"
                )
            # A class that does not occur is weighed as one that occurs once.
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
    """Return total / (number of classes * occurrences), with which every class weighs alike in all."""
    return [sum(counts) / (len(counts) * count) for count in counts]
