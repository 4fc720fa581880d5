"""Squared error of a number, or Huber's loss, which grows linearly for outliers.

    (x - y)^2; with delta d: (x - y)^2 / 2 if |x - y| <= d, else d (|x - y| - d / 2)
    (Huber 1964, https://doi.org/10.1214/aoms/1177703732)

Axes: N rows.
"""

import torch.nn.functional as F
from torch import Tensor

from nlu.config.keys import takes
from nlu.losses import keys as schemas
from nlu.losses.loss import RowLoss


@takes(schemas.Mse)
class Mse(RowLoss):
    """Squared error of the standardized target."""

    def __init__(self, keys: schemas.Mse):
        self.huber_delta = keys.huber_delta

    def per_row(self, logits_N1: Tensor, labels_N: Tensor) -> Tensor:
        found_N, labels_N = logits_N1[:, 0], labels_N.to(logits_N1.dtype)
        if self.huber_delta is None:
            return F.mse_loss(found_N, labels_N, reduction="none")
        return F.huber_loss(found_N, labels_N, reduction="none", delta=self.huber_delta)
