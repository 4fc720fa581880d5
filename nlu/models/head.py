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
    """The properties of a target that its head depends on."""

    @property
    def names(self) -> Sequence[str]:
        """Classes or tags in their order; empty for a number."""

    @property
    def kind(self) -> str:
        """classes, tags, label_set, number, none, or the kind of a user's target."""

    @property
    def num_outputs(self) -> int:
        """The number of outputs C."""


class Head(Protocol):
    """An nn.Module. Its constructor takes the width of the encoder's vectors, the target and the encoder by position,
    and the options by keyword. No row may influence the logits of another one. The head receives float32 vectors and
    computes in fp32, outside autocast.

    A head that predicts words shares the weight of `encoder.words` through `nlu.models.layers.exact_linear.Tied`. It
    must not register a module of the encoder as its own: the weights would be saved twice, and averaged once.

    A head with the attribute `drops` = True has its own dropout of pooled vectors, so that it gets them without.
    """

    wants: Wanted | tuple[Wanted, ...]
    """The vectors of `Encoded` that the head uses: of sequences, of units, or of both. Units are the tokens that the
    target selected in `Batch.units_U`, such as masked words; only these pass through the head."""

    def __call__(self, encoded: Encoded, batch: Batch) -> Tensor:
        """Return logits (N, C), float32: a row for each example, or for each unit."""


@runtime_checkable
class HasLearningRates(Protocol):
    """A head that sets the learning rates of some of its parameters."""

    learning_rates: Mapping[str, float]
    """peak rates by name of a parameter in the head"""


@runtime_checkable
class ReadsCheckpoints(Protocol):
    """A head that other libraries' checkpoints of encoders have too."""

    def checkpoint_names(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return its tensors in such a checkpoint under the names of its parameters; {} if there are none."""


def wanted_by(target: HeadTarget) -> Wanted:
    """Return the vectors that predict a target: those of units for tags and masked words, else those of sequences."""
    return "units" if target.kind in ("tags", "words") else "pooled"


def vectors_of(encoded: Encoded, batch: Batch, wants: Wanted) -> Tensor:
    """Return the vectors of the rows; (N, D). Each example must be one sequence."""
    if wants == "units":
        assert encoded.units_UD is not None
        return encoded.units_UD
    assert encoded.pooled_SD is not None and len(batch.sequences_KB) == 1
    # Sequences are sorted by length in a batch; this restores the order of examples.
    return encoded.pooled_SD.index_select(0, batch.sequences_KB[0])
