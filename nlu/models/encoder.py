"""The contract of encoders: token numbers to word vectors, and these to vectors of tokens and of sequences.

Axes: T tokens of all sequences, S sequences, U units, H heads, L tokens of one sequence, V words of the vocabulary, D
width; that of x_TD is the width E of word vectors, which may be smaller.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import numpy as np
from torch import Tensor, nn

from nlu.data.collate import Batch


@dataclass(frozen=True)
class Inside:
    """What `encode` also returns from its layers. Layers count from 0; -1 is the last one."""

    hidden: bool = False
    """the vectors of tokens before the first layer and after each layer"""
    projections: tuple[int, ...] = ()
    """the layers whose queries, keys and values are returned"""
    attention: tuple[int, ...] = ()
    """the layers whose attention weights are returned"""


@dataclass
class Encoded:
    """The result of `encode`. What was not requested is None or empty, and is not computed."""

    tokens_TD: Tensor | None = None
    """one vector for each token"""
    pooled_SD: Tensor | None = None
    """one vector for each sequence"""
    units_UD: Tensor | None = None
    """one vector for each unit of the batch, which TaskModel selects from `tokens_TD`"""
    hidden: list[Tensor] = field(default_factory=list)
    """(T, D) before the first layer, after the first layer, ...; the last one is `tokens_TD`"""
    projections: dict[int, tuple[Tensor, Tensor, Tensor]] = field(default_factory=dict)
    """query, key and value of each requested layer, (T, D) each, with the heads side by side"""
    attention: dict[int, list[Tensor]] = field(default_factory=dict)
    """weights of each requested layer: (H, L, L) for each sequence, before dropout; rows add up to 1"""


class Encoder(Protocol):
    """An nn.Module over packed batches. No sequence may influence the vectors of another one.

    The constructor takes `vocab_size` and the `Pretrained` source or None by position, and the options by keyword.
    """

    layout: str
    """single, pair (two texts in one sequence), units, or sides (a sequence for each text of a pair); set once by
    TaskModel, because a batch does not show whether it has pairs"""
    has_segments: bool
    """whether the texts of a pair differ by the number of their segment, as in BERT; False where the tokenizer of the
    weights numbers both texts alike, as XLM-RoBERTa's does; set by `assemble`"""
    head_dropout: float
    """probability of dropout between the encoder and the head"""
    max_positions: int | None
    """the most tokens of a sequence; None = any number"""
    pads: bool
    """whether sequences are padded inside to the longest one, so that the lengths in a batch should be similar"""

    @property
    def words(self) -> nn.Embedding:
        """The table of word vectors, (V, E). A head that predicts words shares its weight (`exact_linear.Tied`)."""

    @property
    def depth(self) -> int:
        """The depth of parameters above all layers, the largest result of `depth_of`."""

    def width_of(self, layout: str) -> int:
        """Return the width D of the vectors from `encode`. Raises UserError for a layout that this encoder does not
        support."""

    def embed(self, batch: Batch) -> Tensor:
        """Return x_TD, the word vector of each token before positions, segments, norm and dropout.

        Adversarial methods perturb the result.
        """

    def encode(
        self, x_TD: Tensor, batch: Batch, *, tokens: bool = False, pooled: bool = False, inside: Inside | None = None
    ) -> Encoded:
        """Return the requested vectors of tokens and of sequences, for the result of `embed`.

        An encoder without attention layers omits the parameter `inside`; methods that need it are then refused.
        """

    def depth_of(self, name: str) -> int:
        """Return the layer of a parameter, for learning rates by depth: 0 = embeddings, 1 = the first layer, ..."""

    def settings(self) -> dict[str, object]:
        """Return the content of a checkpoint's config.json, from which another run builds the same encoder."""

    def checkpoint_names(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the tensors of another library's checkpoint under the names of this module's parameters."""


@runtime_checkable
class WeighsTokens(Protocol):
    """An encoder that weighs tokens by how often the training texts have them."""

    def weigh(self, counts_V: np.ndarray, left_out: Sequence[int]) -> None:
        """Receive the number of occurrences of each token, and the special and unknown tokens, which mean nothing.

        Called once, when a run without weights begins."""


def layers_asked(layers: tuple[int, ...], count: int) -> dict[int, int]:
    """Return the index from 0 of each layer of `Inside`, in an encoder with `count` layers."""
    assert all(-count <= layer < count for layer in layers), f"there are {count} layers, not {layers}"
    # -1 and the number of the last layer are the same layer, which is then kept once.
    return {layer: layer % count for layer in layers}
