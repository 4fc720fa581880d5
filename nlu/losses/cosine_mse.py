"""Squared error of a cosine: the numbers from `lowest` to `highest` are cosines from 0 to 1.

Reimers and Gurevych 2019 (https://arxiv.org/abs/1908.10084), section 3, regression objective. Axes: N pairs.
"""

from torch import Tensor

from nlu.config.errors import UserError
from nlu.config.keys import takes
from nlu.losses import keys as schemas
from nlu.losses.loss import RowLoss


@takes(schemas.CosineMse)
class CosineMse(RowLoss):
    """Squared error of a cosine."""

    def __init__(self, keys: schemas.CosineMse):
        """Raises UserError unless `highest` is above `lowest`."""
        if keys.highest <= keys.lowest:
            raise UserError(
                f"loss.highest is {keys.highest:g}, but loss.lowest is {keys.lowest:g}; set loss.highest above it"
            )
        self.lowest, self.highest = keys.lowest, keys.highest

    def per_row(self, cosines_N1: Tensor, labels_N: Tensor) -> Tensor:
        wanted_N = (labels_N.to(cosines_N1.dtype) - self.lowest) / (self.highest - self.lowest)
        return (cosines_N1[:, 0] - wanted_N).square()
