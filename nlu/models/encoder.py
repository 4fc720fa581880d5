"""The contract of encoders: token numbers to word vectors, and these to vectors of tokens and of sequences.

Axes: T tokens of all sequences, S sequences, U units, H heads, L tokens of one sequence, V words of the vocabulary, D
width; that of x_TD is the width E of word vectors, which may be smaller.
"""

from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor, nn

from nlu.data.collate import Batch


@dataclass(frozen=True)
class Inside:
    """What `encode` returns of its layers on request, beside its result. Layers count from 0; -1 is the last one."""

    hidden: bool = False
    """the vectors of tokens before the first layer and after each layer"""
    projections: tuple[int, ...] = ()
    """the layers whose queries, keys and values are returned"""
    attention: tuple[int, ...] = ()
    """the layers whose attention weights are returned"""


@dataclass
class Encoded:
    """What `encode` was asked for; everything else is None or empty and was not computed."""

    tokens_TD: Tensor | None = None
    """one vector for each token"""
    pooled_SD: Tensor | None = None
    """one vector for each sequence"""
    units_UD: Tensor | None = None
    """one vector for each unit of the batch; TaskModel takes them from those of tokens"""
    hidden: list[Tensor] = field(default_factory=list)
    """(T, D) before the first layer, after the first layer, ...; the last one is `tokens_TD`"""
    projections: dict[int, tuple[Tensor, Tensor, Tensor]] = field(default_factory=dict)
    """query, key and value of each layer that was asked for, (T, D) each, the heads side by side"""
    attention: dict[int, list[Tensor]] = field(default_factory=dict)
    """weights of each layer that was asked for: (H, L, L) for each sequence, without dropout; a row adds up to 1"""


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
    def words(self) -> nn.Embedding:
        """The table of word vectors, (V, E). A head that predicts words shares its weight (`layers.linear.Tied`)."""

    @property
    def depth(self) -> int:
        """The depth of what lies above all layers; `depth_of` returns no larger number."""

    def width_of(self, layout: str) -> int:
        """Return D of the vectors from `encode`. Raises UserError for a layout that this encoder cannot read."""

    def embed(self, batch: Batch) -> Tensor:
        """Return x_TD, the word vector of each token before positions, segments, norm and dropout.

        Adversarial methods change it.
        """

    def encode(
        self, x_TD: Tensor, batch: Batch, *, tokens: bool = False, pooled: bool = False, inside: Inside | None = None
    ) -> Encoded:
        """Return the vectors that are asked for, of tokens, of sequences or of both, for the result of `embed`.

        An encoder without layers of attention leaves out the parameter `inside`; methods that need it are then refused.
        """

    def depth_of(self, name: str) -> int:
        """Return the layer of a parameter, for rates that fall with depth: 0 = embeddings, 1 = the first layer, ..."""

    def settings(self) -> dict[str, Any]:
        """Return what config.json of a checkpoint must hold for another run to build the same encoder."""

    def checkpoint_names(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return a foreign checkpoint's tensors under the names of this module's parameters."""


def layers_asked(layers: tuple[int, ...], count: int) -> dict[int, int]:
    """Return for each layer of `Inside` its number from 0 on, in an encoder of so many layers."""
    assert all(-count <= layer < count for layer in layers), f"there are {count} layers, not {layers}"
    return {layer: layer % count for layer in layers}
