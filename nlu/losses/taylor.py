"""Taylor cross-entropy: the first terms of the series of cross-entropy, on which wrong labels have less effect.

    sum_{i=1..n} (1 - p)^i / i, p = softmax(logits)[y]
    (Feng et al. 2020, https://www.ijcai.org/proceedings/2020/305); n = 1 is half the mean absolute error,
    n to infinity is -log p

Axes: N rows, C classes.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from nlu.config.keys import takes
from nlu.losses import keys as schemas
from nlu.losses.loss import RowLoss


@takes(schemas.Taylor)
class Taylor(RowLoss):
    """Taylor cross-entropy in nats."""

    def __init__(self, keys: schemas.Taylor):
        self.taylor_n = keys.taylor_n

    def per_row(self, logits_NC: Tensor, labels_N: Tensor) -> Tensor:
        # 1 - p without cancellation where p is close to 1.
        wrong_N = -torch.expm1(-F.cross_entropy(logits_NC, labels_N, reduction="none"))
        # Horner's rule from the last term, which computes no power.
        loss_N = torch.full_like(wrong_N, 1 / self.taylor_n)
        for term in range(self.taylor_n - 1, 0, -1):
            loss_N = loss_N * wrong_N + 1 / term
        return loss_N * wrong_N
