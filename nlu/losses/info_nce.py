"""InfoNCE: each first text has to find its second text among all second texts of the step.

    -log (exp(cos(u_i, v_i) / t) / sum_j exp(cos(u_i, v_j) / t))
    (van den Oord et al. 2018, https://arxiv.org/abs/1807.03748, equation 4; Gao et al. 2021,
    https://arxiv.org/abs/2104.08821, equation 1)

Axes: N rows, first texts, by N columns, second texts.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from nlu.config.keys import takes
from nlu.losses import keys as schemas
from nlu.losses.loss import RowLoss


@takes(schemas.InfoNce)
class InfoNce:
    """InfoNCE over all texts of a step, in nats; the larger the step, the harder the task."""

    by_row = False
    bind = RowLoss.bind

    def __init__(self, keys: schemas.InfoNce):
        self.temperature, self.symmetric = keys.temperature, keys.symmetric

    def __call__(self, similarities_NN: Tensor, labels_N: Tensor) -> Tensor:
        """Return the sum over rows with a label above 0, float32.

        A row with label 0 does not match: its second text is only a negative of other rows. A similarity of minus
        infinity excludes a second text from a row's negatives.
        """
        own_N = torch.arange(len(labels_N), device=labels_N.device)
        # The diagonal holds the matching pairs: the right column of a row is the row's own number.
        loss_N = F.cross_entropy(similarities_NN / self.temperature, own_N, reduction="none")
        # Multiplied instead of selected: a selection would make the host wait for the device to know its size. The
        # diagonal is never masked, so no loss is infinite.
        return (loss_N * (labels_N > 0)).sum()
