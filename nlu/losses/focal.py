"""Focal loss: cross-entropy that reduces the weight of rows that are already classified well.

    -w[y] (1 - p)^gamma log p, p = softmax(logits)[y]
    (Lin et al. 2017, https://arxiv.org/abs/1708.02002, equation 5, with a softmax instead of the sigmoid)

Axes: N rows, C classes.
"""

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from nlu.config.keys import takes
from nlu.losses import keys as schemas
from nlu.losses.loss import ClassWeights, RowLoss, balanced


@takes(schemas.Focal)
class Focal(RowLoss):
    """Focal loss in nats."""

    def __init__(self, keys: schemas.Focal):
        self.gamma = keys.gamma
        self._weights = ClassWeights("class_weights", keys.class_weights)

    def bind(self, names: Sequence[str], counts: Mapping[str, int] | None = None, examples: int | None = None) -> None:
        self._weights.bind(names, counts, balanced)

    def per_row(self, logits_NC: Tensor, labels_N: Tensor) -> Tensor:
        log_p_N = -F.cross_entropy(logits_NC, labels_N, reduction="none")
        # 1 - p by expm1, because 1 - exp(log p) rounds to 0 for a confident row.
        # For gamma < 1 the gradient of the power is infinite at 0.
        wrong_N = (-torch.expm1(log_p_N)).clamp_min(torch.finfo(log_p_N.dtype).tiny)
        return self._weights.weighted(-log_p_N * wrong_N**self.gamma, labels_N)
