"""GHM-C: reduces the weight of rows with a frequent gradient norm, both of many easy rows and of outliers.

    g = |sigmoid(logit) - target| of each row and class (one against the rest); with bins of equal width over [0, 1],
    weight = (number of values) / (number in the value's bin * number of bins that hold any)
    (Li et al. 2019, https://arxiv.org/abs/1811.05181, section 3)

The paper averages the counts of bins over micro-batches. Here each micro-batch has its own counts: a moving average
would have to be synchronized between processes, saved in every checkpoint, and reverted if a micro-batch does not fit
into memory and is repeated in halves; and rows * classes values are enough to fill the bins.

Axes: N rows, C classes.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from nlu.config.keys import takes
from nlu.losses import keys as schemas
from nlu.losses.loss import RowLoss


@takes(schemas.GhmC)
class GhmC:
    """Gradient-harmonized one-vs-rest cross-entropy, in nats."""

    by_row = False
    bind = RowLoss.bind

    def __init__(self, keys: schemas.GhmC):
        self.bins = keys.bins

    def __call__(self, logits_NC: Tensor, labels_N: Tensor) -> Tensor:
        """Return the sum over rows of the mean over classes, float32."""
        targets_NC = F.one_hot(labels_N, logits_NC.shape[1]).to(logits_NC.dtype)
        # Detached: the weights are constants for the gradient, as in the paper.
        weights_NC = self._weights((logits_NC.detach().sigmoid() - targets_NC).abs())
        total = F.binary_cross_entropy_with_logits(logits_NC, targets_NC, weights_NC, reduction="sum")
        return total / logits_NC.shape[1]

    def _weights(self, gradient_NC: Tensor) -> Tensor:
        # A norm of exactly 1 belongs to the last bin.
        bin_X = (gradient_NC.flatten() * self.bins).long().clamp_max(self.bins - 1)
        # Counts of whole numbers are exact in float32 up to 2^24, in any order of the accelerator's additions.
        counts = torch.zeros(self.bins, device=bin_X.device).index_add(0, bin_X, torch.ones_like(bin_X).float())
        filled = (counts > 0).sum()
        return (bin_X.numel() / (counts.index_select(0, bin_X) * filled)).view_as(gradient_NC)
