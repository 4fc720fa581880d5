"""Focal loss: cross-entropy that reduces the weight of rows that are already classified well.

    -w[y] (1 - p)^gamma log p, p = softmax(logits)[y]
    (Lin et al. 2017, https://arxiv.org/abs/1708.02002, equation 5, with a softmax instead of the sigmoid)

Axes: N rows, C classes.
"""

from collections.abc import Mapping, Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from nlu.config.types import NonNegativeFloat
from nlu.losses.loss import ClassWeights, RowLoss, balanced


class Focal(RowLoss):
    """Focal loss in nats."""

    kinds = ("classes", "tags")

    def __init__(
        self,
        *,
        gamma: NonNegativeFloat = 2.0,
        class_weights: dict[str, NonNegativeFloat] | Literal["inverse_frequency"] | None = None,
    ):
        """`gamma`: how strongly the weight of confident, correct rows is reduced; 0 = cross-entropy. `class_weights`
        multiply the loss of a row by its class, the paper's alpha: by name (others 1), or inverse_frequency = rows /
        (classes * rows of the class); null = off."""
        self.gamma = gamma
        self._weights = ClassWeights("class_weights", class_weights)

    def bind(self, names: Sequence[str], counts: Mapping[str, int] | None = None, examples: int | None = None) -> None:
        """Take the classes. Raises UserError for the weight of an unknown class."""
        self._weights.bind(names, counts, balanced)

    def per_row(self, logits_NC: Tensor, labels_N: Tensor) -> Tensor:
        """Return the loss of each row; (N,)."""
        log_p_N = -F.cross_entropy(logits_NC, labels_N, reduction="none")
        # 1 - p by expm1, because 1 - exp(log p) rounds to 0 for a confident row.
        # For gamma < 1 the gradient of the power is infinite at 0.
        wrong_N = (-torch.expm1(log_p_N)).clamp_min(torch.finfo(log_p_N.dtype).tiny)
        loss_N = -log_p_N * wrong_N**self.gamma
        weights_C = self._weights.on(logits_NC.device)
        return loss_N if weights_C is None else loss_N * weights_C.index_select(0, labels_N)
