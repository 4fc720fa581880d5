"""Squared difference from the logits of soft targets.

    mean over c of (x[c] - t[c])^2
    (Ba and Caruana 2014, https://arxiv.org/abs/1312.6184, section 2.2, with a mean for half the sum)

Where the logits of each row add up to 0, half of it is the limit of `nlu.losses.kl` for high temperatures
(Hinton et al. 2015, https://arxiv.org/abs/1503.02531, section 2.1).

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
        """Return the loss of each row; (N,)."""
        return (logits_NC.float() - targets_NC.float()).square().mean(1)
