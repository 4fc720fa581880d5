"""InfoNCE: each first text is to find its own second text among all those of the micro-batch.

    -log (exp(cos(u_i, v_i) / t) / sum_j exp(cos(u_i, v_j) / t))
    (van den Oord et al. 2018, https://arxiv.org/abs/1807.03748, equation 4; Gao et al. 2021,
    https://arxiv.org/abs/2104.08821, equation 1)

Axes: N rows, first texts, by N columns, second texts.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from nlu.config.types import PositiveFloat
from nlu.losses.loss import RowLoss


class InfoNce:
    """InfoNCE with in-batch negatives, in nats; the larger the micro-batch, the harder the task."""

    by_row = False
    kinds = ("classes", "none")
    reads = "similarities"
    bind = RowLoss.bind

    def __init__(self, *, temperature: PositiveFloat = 0.05):
        """`temperature` divides cosines; the lower, the more the nearest negatives count."""
        self.temperature = temperature

    def __call__(self, similarities_NN: Tensor, labels_N: Tensor) -> Tensor:
        """Return the sum over rows of which label is 1 or more, float32.

        The second text of a row with label 0, which does not belong to its first, is a negative for all others, and the
        row itself adds nothing. A similarity of minus infinity leaves a second text out of a row's negatives.
        """
        own_N = torch.arange(len(labels_N), device=labels_N.device)
        loss_N = F.cross_entropy(similarities_NN / self.temperature, own_N, reduction="none")
        return (loss_N * (labels_N > 0)).sum()
