"""What an encoder is: it looks tokens up, and turns what was looked up into vectors of tokens and of sequences.

Axes: T tokens of all sequences, S sequences, U units, D width; that of x_TD is the word embeddings', which may be less.
"""

from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from nlu.data.collate import Batch


@dataclass
class Encoded:
    """What `encode` was asked for; the rest is None and was not computed."""

    tokens_TD: Tensor | None = None
    """one vector for each token"""
    pooled_SD: Tensor | None = None
    """one vector for each sequence"""
    units_UD: Tensor | None = None
    """one vector for each unit of the batch; TaskModel takes them from those of tokens"""


class Encoder(Protocol):
    """An nn.Module over packed batches. No sequence may influence another's vectors.

    Its constructor takes `vocab_size` and the `Pretrained` source or None by position, its options by keyword.
    """

    layout: str
    """single, pair (two texts in one sequence), units, or sides (the texts of a pair as a sequence each); set once by
    TaskModel, since a batch does not show whether it holds pairs"""
    head_dropout: float
    """share of elements that are dropped between the encoder and the head"""
    max_positions: int | None
    """tokens of the longest sequence that can be encoded; None = any"""
    pads: bool
    """whether shorter sequences are padded to the longest one inside, so that lengths of a batch should not differ"""

    @property
    def depth(self) -> int:
        """The depth of what lies above all layers; `depth_of` gives no more than this."""

    def width_of(self, layout: str) -> int:
        """Return D of what `encode` gives. Raises UserError for a layout that this encoder cannot read."""

    def embed(self, batch: Batch) -> Tensor:
        """Return x_TD, the word vector of each token before positions, segments, norm and dropout.

        It is what an adversarial method perturbs.
        """

    def encode(self, x_TD: Tensor, batch: Batch, *, tokens: bool = False, pooled: bool = False) -> Encoded:
        """Return the vectors that are asked for, of tokens, of sequences or of both, from what `embed` gave."""

    def depth_of(self, name: str) -> int:
        """Return the layer of a parameter, for rates that fall with depth: 0 = embeddings, 1 = the first layer, ..."""

    def settings(self) -> dict[str, Any]:
        """Return what config.json of a checkpoint must hold for another run to build the same encoder."""

    def checkpoint_names(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return a foreign checkpoint's tensors under the names of this module's parameters."""
