"""Sums over the outputs of modules and over attention weights, from passes without gradient and without dropout.

Axes: S sequences, L tokens of one sequence, T tokens of all sequences, R rows (one for each token, or for each text
above the encoder), U units (features), H heads.
"""

import inspect
import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from nlu.data.arrays import ranges
from nlu.data.collate import Batch, to_device
from nlu.models.encoder import Inside
from nlu.models.task_model import TaskModel
from nlu.runs import summary
from nlu.training.passes import Passes, Share

NEGLIGIBLE = 1e-3
"""a unit is dead if it never exceeds this share of the root mean square of its layer"""


@dataclass
class Tally:
    """Sums over values."""

    values: int = 0
    total: float = 0.0
    squares: float = 0.0
    largest: float = 0.0
    """the largest magnitude"""
    units_U: np.ndarray | None = None
    """the largest magnitude of each unit, if wanted"""

    def add(self, rows_RU: Tensor, *, by_unit: bool) -> None:
        """Add values, in float64."""
        if not rows_RU.numel():
            return
        numbers = [
            rows_RU.sum(dtype=torch.float64),
            torch.linalg.vector_norm(rows_RU, dtype=torch.float64).square(),
            torch.linalg.vector_norm(rows_RU, math.inf).double(),
        ]
        total, squares, largest = torch.stack(numbers).tolist()
        units_U = None
        if by_unit:
            low_U, high_U = torch.aminmax(rows_RU, dim=0)
            units_U = torch.maximum(-low_U, high_U).float().cpu().numpy()
        self.merge(type(self)(rows_RU.numel(), total, squares, largest, units_U))

    def merge(self, other: Self) -> None:
        self.values += other.values
        self.total += other.total
        self.squares += other.squares
        # numpy's maximum keeps NaN.
        self.largest = float(np.maximum(self.largest, other.largest))
        if other.units_U is not None:
            self.units_U = other.units_U if self.units_U is None else np.maximum(self.units_U, other.units_U)

    @property
    def mean(self) -> float:
        return self.total / self.values

    @property
    def rms(self) -> float:
        """The root mean square."""
        return math.sqrt(self.squares / self.values)

    @property
    def std(self) -> float:
        return math.sqrt(max(0.0, self.squares / self.values - self.mean**2))

    @property
    def dead(self) -> float | None:
        """The share of units that are negligible in all rows; None without units."""
        return None if self.units_U is None else float((self.units_U <= NEGLIGIBLE * self.rms).mean())


@dataclass
class AttentionTally:
    """Sums over the queries of all heads of a layer, each a distribution over the tokens of its sequence."""

    queries: int = 0
    entropy: float = 0.0
    """relative to that of equal weights"""
    peak: float = 0.0
    """the largest weight"""

    def add(self, weights_HLL: Tensor) -> None:
        """Add the attention weights of a sequence. One of a single token is left out, since its weight is always 1."""
        length = weights_HLL.shape[-1]
        if length == 1:
            return
        entropies_HL = torch.special.entr(weights_HLL).sum(-1) / math.log(length)
        sums = torch.stack([entropies_HL.double().sum(), weights_HLL.amax(-1).double().sum()])
        entropy, peak = sums.tolist()
        self.merge(type(self)(entropies_HL.numel(), entropy, peak))

    def merge(self, other: Self) -> None:
        self.queries += other.queries
        self.entropy += other.entropy
        self.peak += other.peak


@dataclass
class Seen:
    """What the modules of a model gave in the passes of a step."""

    outputs: dict[str, Tally] = field(default_factory=dict)
    """by module, over its outputs"""
    inputs: dict[str, Tally] = field(default_factory=dict)
    """by linear layer, over what it reads"""
    attention: dict[int, AttentionTally] = field(default_factory=dict)
    """by layer, from 0"""

    def merge(self, other: Self) -> None:
        """Add what another rank has seen."""
        for own, more in ((self.outputs, other.outputs), (self.inputs, other.inputs)):
            for name, tally in more.items():
                own.setdefault(name, Tally()).merge(tally)
        for layer, attention in other.attention.items():
            self.attention.setdefault(layer, AttentionTally()).merge(attention)


def look(
    passes: Passes, shares: Iterable[Share | None], modules: Mapping[str, nn.Module], with_inputs: Collection[str],
    layers: int, *, runs_placeholders: bool,
) -> Seen:  # fmt: skip
    """Run the model over this rank's rows and return what `modules`, by name, gave for them.

    The inputs of linear layers are summed for the names in `with_inputs`, attention for the first `layers` layers. With
    `runs_placeholders`, also the batch of a rank without rows is run, which counts for nothing. Neither weights,
    gradients nor random numbers of a later pass change.
    """
    seen, model, device = Seen(), passes.model, passes.device
    here: list[_Rows] = []

    def see(name: str, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        if not here:
            return
        if (found := _first_tensor(output)) is not None:
            rows_RU = here[0].of(found, module)
            seen.outputs.setdefault(name, Tally()).add(rows_RU, by_unit=False)
        if name in with_inputs and isinstance(module, nn.Linear) and args:
            seen.inputs.setdefault(name, Tally()).add(here[0].of(args[0], module), by_unit=True)

    handles = [module.register_forward_hook(partial(see, name)) for name, module in modules.items()]
    try:
        # The model's own records are those of its training passes.
        with torch.no_grad(), summary.unheard(), _evaluating(model), _attending(model, layers) as encoded:
            for share in shares:
                if share is None or not (share.is_own or runs_placeholders):
                    continue
                batch = share.batch.to(device)
                here[:] = [_Rows(batch)] if share.is_own else []
                with passes.precision.autocast(device):
                    passes.task.forward(model, batch)
                for found in encoded:
                    for layer, weights in found.attention.items() if share.is_own else ():
                        tally = seen.attention.setdefault(layer, AttentionTally())
                        for weights_HLL in weights:
                            tally.add(weights_HLL)
                encoded.clear()
    finally:
        for handle in handles:
            handle.remove()
    return seen


def layers_with_attention(model: TaskModel) -> int:
    """Return the number of attention layers of the encoder; 0 if it has none."""
    encoder: Any = model.backbone
    if "inside" not in inspect.signature(encoder.encode).parameters:
        return 0
    count = encoder.settings().get("num_hidden_layers")
    if count is None:
        # Of an encoder of transformers.
        count = getattr(getattr(getattr(encoder, "inner", None), "config", None), "num_hidden_layers", 0)
    return int(count)


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Put the model in evaluation mode, and each module back into its own."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


@contextmanager
def _attending(model: TaskModel, layers: int) -> Iterator[list[Any]]:
    """Yield the list to which each pass of the encoder adds its result, with the attention of the first layers."""
    if not layers_with_attention(model):
        yield []
        return
    # Also without attention weights: otherwise the last layer may compute only what the first tokens need.
    with model.watching(Inside(attention=tuple(range(layers)))) as encoded:
        yield encoded


class _Rows:
    """Which rows of a tensor are tokens of a batch, and not padding."""

    def __init__(self, batch: Batch):
        lengths_S, self._longest = np.array(batch.lengths, dtype=np.int64), max(batch.lengths)
        self._shape, self._tokens = (len(lengths_S), self._longest), batch.num_tokens
        place_T = torch.from_numpy(ranges(np.arange(len(lengths_S)) * self._longest, lengths_S))
        self._place_T = to_device(place_T, batch.tokens_T.device)

    def of(self, values: Tensor, module: nn.Module) -> Tensor:
        """Return (R, U) of the input or output of a module; padding that cannot be recognized stays."""
        if isinstance(module, nn.Conv1d) and values.dim() == 3:
            values = values.transpose(1, 2)
        if values.dim() == 3 and tuple(values.shape[:2]) == self._shape:
            return values.flatten(0, 1).index_select(0, self._place_T)
        if values.dim() == 2 and len(values) > self._tokens:
            # The rows of zeros after the packed tokens.
            return values[: self._tokens]
        return values.reshape(-1, values.shape[-1]) if values.dim() else values.view(1, 1)


def _first_tensor(value: Any) -> Tensor | None:
    """Return the first floating tensor of an output: of a recurrent layer, its outputs at all tokens."""
    if isinstance(value, Tensor):
        return value.detach() if value.is_floating_point() else None
    parts = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    return next((found for part in parts if (found := _first_tensor(part)) is not None), None)
