"""Squared difference from the logits of soft targets.

    mean over c of (x[c] - t[c])^2
    (Ba and Caruana 2014, https://arxiv.org/abs/1312.6184, section 2.2, with a mean for half the sum)

Axes: N rows, C classes.
"""

from torch import Tensor

from nlu.config.keys import takes
from nlu.losses import keys as schemas
from nlu.losses.loss import RowLoss


@takes(schemas.MseLogits)
class MseLogits(RowLoss):
    """Squared difference of logits, in their unit."""

    def per_row(self, logits_NC: Tensor, targets_NC: Tensor) -> Tensor:
        return (logits_NC.float() - targets_NC.float()).square().mean(1)
