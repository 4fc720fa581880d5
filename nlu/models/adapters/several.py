"""The low-rank updates of several runs on the layers of one encoder, each for the tokens of its own run.

A layer multiplies the tokens of all runs by its dense weight at once, then those of each run by that run's two small
matrices, as `LoraLinear` does, so that a token has the bits that its own run computes.

Axes: S sequences, R rows of a layer's input: tokens or, where only first tokens are computed, sequences; O output
features.
"""

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from torch import Tensor, nn

from nlu.models.adapters.lora import LoraLinear
from nlu.models.layers.exact_linear import padding_rows, with_rows


@dataclass
class Owners:
    """The tokens and the sequences of each run in the current batch, by the name of the run."""

    tokens: dict[str, slice] = field(default_factory=dict)
    sequences: dict[str, slice] = field(default_factory=dict)
    count_S: int = 0

    def of(self, rows: int) -> dict[str, slice]:
        """Return the rows of each run in an input of that many rows."""
        return self.sequences if rows == self.count_S else self.tokens


class SeveralLora(nn.Module):
    """A linear layer plus, for the rows of each run, the product of that run's two matrices."""

    def __init__(self, layers: Mapping[str, LoraLinear], owners: Owners):
        super().__init__()
        # Not registered with torch: the matrices belong to the models of the runs.
        self._layers, self._owners = dict(layers), owners
        self.base = next(iter(layers.values())).base

    def forward(self, input: Tensor, outputs: slice | None = None) -> Tensor:
        """Return (R, O), or only the output features `outputs`."""
        found: Tensor = self.base(input) if outputs is None else self.base(input, outputs)
        for run, rows in self._owners.of(len(input)).items():
            own = input[rows]
            padded = with_rows(own, len(own) + padding_rows(len(own), own.device))
            found[rows] += self._layers[run].update(padded, outputs)[: len(own)]
        return found


def with_updates(encoders: Mapping[str, nn.Module], owners: Owners) -> Any:
    """Return an encoder with the weights that all of them share and the updates of each, by the name of its run.

    All adapt the same layers. `owners` has the rows of each run in the current batch.
    """
    first = next(iter(encoders.values()))
    kept: dict[int, object] = {id(each): each for each in chain(first.parameters(), first.buffers())}
    mixed = copy.deepcopy(first, kept)
    for name, layer in first.named_modules():
        if isinstance(layer, LoraLinear):
            layers: dict[str, Any] = {run: encoder.get_submodule(name) for run, encoder in encoders.items()}
            parent, _, last = name.rpartition(".")
            # Not setattr: the parent may be a ModuleDict.
            mixed.get_submodule(parent)._modules[last] = SeveralLora(layers, owners)
    return mixed
