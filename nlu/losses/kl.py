"""Kullback-Leibler divergence of softened distributions, from soft targets.

    T^2 sum over c of p[c] (log p[c] - log q[c]), p = softmax(targets / T), q = softmax(logits / T)
    (Hinton et al. 2015, https://arxiv.org/abs/1503.02531, section 2)

The paper has the cross-entropy of p and q, which is larger by the entropy of p, a constant with gradient 0. T^2 keeps
the size of the gradient about the same for every T. Probabilities are targets in the form of their logarithms.

Axes: N rows, C classes.
"""

import torch
from torch import Tensor

from nlu.config.keys import takes
from nlu.losses import keys as schemas
from nlu.losses.loss import RowLoss


@takes(schemas.Kl)
class Kl(RowLoss):
    """Divergence in nats, 0 where the predicted distribution equals the target."""

    def __init__(self, keys: schemas.Kl):
        self.temperature = keys.temperature

    def per_row(self, logits_NC: Tensor, targets_NC: Tensor) -> Tensor:
        """Return the loss of each row; (N,). `targets_NC` are logits; minus infinity is a probability of 0."""
        log_p_NC = (targets_NC.float() / self.temperature).log_softmax(1)
        log_q_NC = (logits_NC.float() / self.temperature).log_softmax(1)
        # Finite, because 0 * infinity would be NaN.
        excess_NC = log_p_NC.clamp_min(torch.finfo(torch.float32).min) - log_q_NC
        return self.temperature**2 * (log_p_NC.exp() * excess_NC).sum(1)
