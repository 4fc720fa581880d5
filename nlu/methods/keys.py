"""The keys of the methods; see `nlu.config.keys`."""

from dataclasses import dataclass
from typing import Literal

from nlu.config.types import MethodNode, NonNegativeFloat, PositiveFloat, PositiveInt


@dataclass(kw_only=True)
class Plain:
    """The gradient of the task's loss."""


@dataclass(kw_only=True)
class RDrop:
    """The mean loss of two passes, plus the weighted divergence of their predictions."""

    alpha: NonNegativeFloat = 1.0
    """Weight of the divergence between two passes, 1 to 5 in the paper for text; 0 = two passes without it."""


@dataclass(kw_only=True)
class Frozen:
    """The encoder stays as it is; the head is a logistic regression on its vectors."""

    head_rows: PositiveInt = 10_000
    """Most training rows that the head is fitted to, drawn by the seed, the same share of each class."""
    penalty: PositiveFloat = 100.0
    """Weight of half the squared norm of the head's weights, on standardized vectors, beside the sum of the rows'
    losses; 1 / C of scikit-learn."""


@dataclass(kw_only=True)
class FewShot(Frozen):
    """The encoder learns from pairs of texts of the same or another class; the head is a logistic regression."""

    temperature: PositiveFloat = 0.3
    """Divisor of the cosines of two texts; lower = the nearest texts of other classes count more."""
    freeze_words: bool = True
    """Leave the word vectors as they are, of which few rows show few; false = train them too, as for an encoder without
    weights."""


@dataclass(kw_only=True)
class Fgm:
    """The loss, and the loss at word vectors that are moved along its gradient."""

    epsilon: PositiveFloat = 0.1
    """Euclidean norm of the perturbation of a sequence, in the unit of word vectors."""
    weight: PositiveFloat = 1.0
    """Weight of the adversarial loss, relative to the loss; 1 in the paper."""
    of: MethodNode | None = None
    """The method whose loss it is, such as {_target_: nlu.methods.rdrop.RDrop, alpha: 1.0}; null = plain."""


@dataclass(kw_only=True)
class FreeLb:
    """The mean gradient over K passes, with a perturbation of word vectors that increases the loss inside a ball."""

    steps: PositiveInt = 3
    """Passes of a micro-batch, K in the paper; not optimizer steps."""
    lr: PositiveFloat = 0.1
    """Norm of a move of a sequence's vectors, in their unit, alpha in the paper; not the optimizer's lr."""
    init_magnitude: NonNegativeFloat = 0.2
    """Size of the random start: with l2 it is uniform in +-init_magnitude / sqrt(tokens * width), so that its norm does
    not depend on the length; with linf uniform in +-init_magnitude; 0 = start at the word vectors."""
    max_norm: NonNegativeFloat = 0.6
    """Radius of the ball that bounds the perturbation, in the unit of word vectors, epsilon in the paper; 0 = no
    bound."""
    norm: Literal["l2", "linf"] = "l2"
    """Norm over a sequence; l2 = Euclidean norm; linf = largest component."""
    of: MethodNode | None = None
    """The method whose loss is climbed, such as {_target_: nlu.methods.rdrop.RDrop, alpha: 1.0}; null = plain."""
