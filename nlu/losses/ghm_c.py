"""GHM-C: rows whose gradient has a common size count less, the many easy ones as well as outliers.

    g = |sigmoid(logit) - target| of each row and class (one against the rest); with bins of equal width over [0, 1],
    weight = (number of values) / (number in the value's bin * number of bins that hold any)
    (Li et al. 2019, https://arxiv.org/abs/1811.05181, section 3)

The paper evens the numbers in bins out over micro-batches. Here they are those of the micro-batch alone: a moving
average would have to be agreed between processes, held by every checkpoint, and taken back where a micro-batch that did
not fit into memory is run again in halves; and rows * classes values fill the bins.

Axes: N rows, C classes.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from nlu.config.types import PositiveInt
from nlu.losses.loss import RowLoss


class GhmC:
    """Gradient-harmonised cross-entropy, one class against the rest, in nats."""

    by_row = False
    kinds = ("classes", "tags")
    reads = "logits"
    bind = RowLoss.bind

    def __init__(self, *, bins: PositiveInt = 10):
        """`bins`: of equal width, over the gradient's range from 0 to 1."""
        self.bins = bins

    def __call__(self, logits_NC: Tensor, labels_N: Tensor) -> Tensor:
        """Return the sum over rows of the mean over classes, float32."""
        targets_NC = F.one_hot(labels_N, logits_NC.shape[1]).to(logits_NC.dtype)
        weights_NC = self._weights((logits_NC.detach().sigmoid() - targets_NC).abs())
        return F.binary_cross_entropy_with_logits(logits_NC, targets_NC, weights_NC, reduction="sum") / max(
            1, logits_NC.shape[1]
        )

    def _weights(self, gradient_NC: Tensor) -> Tensor:
        bin_X = (gradient_NC.flatten() * self.bins).long().clamp_max(self.bins - 1)
        counts = torch.zeros(self.bins, device=bin_X.device).index_add(0, bin_X, torch.ones_like(bin_X).float())
        filled = (counts > 0).sum()
        return (bin_X.numel() / (counts.index_select(0, bin_X) * filled)).view_as(gradient_NC)
