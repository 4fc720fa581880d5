"""The contract of heads: vectors of the encoder to logits of the target.

Axes: N rows to be labelled (examples or units), C outputs.
"""

from collections.abc import Mapping, Sequence
from typing import Literal, Protocol, runtime_checkable

from torch import Tensor

from nlu.data.collate import Batch
from nlu.models.encoder import Encoded

Wanted = Literal["pooled", "units"]


class HeadTarget(Protocol):
    """What a head must know of the target that it is built for."""

    @property
    def names(self) -> Sequence[str]:
        """Classes or tags in their order; empty for a number."""

    @property
    def kind(self) -> str:
        """classes, tags, label_set, number, none, or a word of the user's own target."""

    @property
    def num_outputs(self) -> int:
        """C"""


class Head(Protocol):
    """An nn.Module. Its constructor takes the width of the encoder's vectors, the target and the encoder by position,
    its options by keyword. No row may influence another's logits. It is given float32 vectors and computes in fp32,
    outside autocast.

    A head that predicts words shares the weight of `encoder.words` through `nlu.models.layers.linear.Tied`. It must not
    register a module of the encoder as its own: the weights would be saved twice, and averaged once.
    """

    wants: Wanted | tuple[Wanted, ...]
    """The vectors of `Encoded` that it reads: of sequences, of units, or of both. Units are the tokens that the target
    selected in `Batch.units_U`, such as masked words; only these pass through the head."""

    def __call__(self, encoded: Encoded, batch: Batch) -> Tensor:
        """Return logits (N, C), float32: a row for each example, or for each unit."""


@runtime_checkable
class HasLearningRates(Protocol):
    """A head that trains some parameters at rates of their own instead of the optimizer's."""

    learning_rates: Mapping[str, float]
    """peak rates, by name of a parameter in the head"""


def wanted_by(target: HeadTarget) -> Wanted:
    """Return which vectors a target is read from: tags belong to units, everything else to a sequence."""
    return "units" if target.kind == "tags" else "pooled"


def vectors_of(encoded: Encoded, batch: Batch, wants: Wanted) -> Tensor:
    """Return the vectors that are labelled; (N, D). Each example must be one sequence."""
    if wants == "units":
        assert encoded.units_UD is not None
        return encoded.units_UD
    assert encoded.pooled_SD is not None and len(batch.sequences_KB) == 1
    return encoded.pooled_SD.index_select(0, batch.sequences_KB[0])
