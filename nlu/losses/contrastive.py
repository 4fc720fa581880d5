"""Contrastive loss of pairs: pulls matching texts together and pushes others apart, up to a margin.

    y D^2 / 2 + (1 - y) max(0, margin - D)^2 / 2
    (Hadsell et al. 2006, https://doi.org/10.1109/CVPR.2006.100, equation 4), y = 1 for a matching pair

Axes: N rows.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from nlu.config.errors import UserError
from nlu.config.keys import takes
from nlu.losses import keys as schemas
from nlu.losses.loss import RowLoss, require_two


@takes(schemas.Contrastive)
class Contrastive(RowLoss):
    """Half the squared distance of a matching pair, or half the square by which another pair misses the margin."""

    def __init__(self, keys: schemas.Contrastive):
        self.distance, self.margin = keys.distance, keys.margin

    def bind(self, names: Sequence[str], counts: Mapping[str, int] | None = None, examples: int | None = None) -> None:
        # The second class is that of matching pairs.
        require_two("contrastive", names, "loss=cross_entropy with head.features=concat")

    def per_row(self, logits_N1: Tensor, labels_N: Tensor) -> Tensor:
        """Return the loss of each row, (N,), from cosines. Raises UserError for logits of several classes."""
        if logits_N1.shape[1] != 1:
            raise UserError(
                "loss=contrastive reads the cosine of two texts, but the head gives logits; set head=sides and "
                "head.features=cosine"
            )
        apart_N = 1 - logits_N1[:, 0]
        if self.distance == "cosine":
            square_N, distance_N = apart_N.square(), apart_N
        else:
            # |u - v|^2 = 2 - 2 cos(u, v) for vectors of norm 1.
            square_N = 2 * apart_N
            # The gradient of the root is infinite at 0, the distance of equal texts.
            distance_N = square_N.clamp_min(torch.finfo(square_N.dtype).eps).sqrt()
        # A pair beyond the margin has the gradient 0, so pairs that are far apart do not move.
        missing_N = (self.margin - distance_N).clamp_min(0)
        return torch.where(labels_N > 0, square_N, missing_N.square()) / 2
