"""One against the rest with a class of rejection: what no other class claims belongs to the first one.

    mean over classes c = 1 .. C-1 of -[y = c] log s(x_c) - [y != c] log (1 - s(x_c)), s the sigmoid
    (Shu et al. 2017, https://arxiv.org/abs/1709.08716, section 2, where the classes are known intents)

Axes: N rows, C classes, K = C - 1 classes that are not the first.
"""

import math
from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from nlu.config.errors import UserError
from nlu.config.types import Probability
from nlu.losses.loss import RowLoss, bernoulli_divergence, each_probability


class Bce(RowLoss):
    """Binary cross-entropy of every class but the first, in nats; the logit of the first is not read."""

    kinds = ("classes",)

    def __init__(self, *, threshold: Probability = 0.5):
        """`threshold`: a row of which no class reaches this probability belongs to the first class."""
        self.threshold = threshold

    def bind(self, names: Sequence[str], counts: Mapping[str, int] | None = None, examples: int | None = None) -> None:
        """Take the classes. Raises UserError where there is none but the one of rejection."""
        if len(names) < 2:
            raise UserError(
                f"loss=bce rejects rows to the first class, but there are no others than {', '.join(names)}; "
                "set loss=cross_entropy"
            )

    def per_row(self, logits_NC: Tensor, labels_N: Tensor) -> Tensor:
        """Return the value of each row; (N,)."""
        targets_NK = F.one_hot(labels_N, logits_NC.shape[1])[:, 1:].to(logits_NC.dtype)
        return F.binary_cross_entropy_with_logits(logits_NC[:, 1:], targets_NK, reduction="none").mean(1)

    def probabilities(self, logits_NC: Tensor) -> Tensor:
        """Return the probability of each class by itself, (N, C); of the first, that the likeliest other is not it."""
        others_NK = each_probability(logits_NC[:, 1:])
        return torch.cat([1 - others_NK.amax(1, keepdim=True), others_NK], dim=1)

    def divergence(self, first_NC: Tensor, second_NC: Tensor) -> Tensor:
        """Return how much two predictions differ, of all classes but the first; summed over rows."""
        return bernoulli_divergence(first_NC[:, 1:], second_NC[:, 1:])

    @property
    def logit_of_first(self) -> float:
        """The logit of the first class with which the largest logit is what `decide` returns: that of the threshold."""
        # The least and the largest that float32, in which probabilities are compared, tells from 0 and 1.
        within = min(max(self.threshold, 1e-45), 1 - 2**-25)
        return math.log(within / (1 - within))

    def decide(self, logits_NC: Tensor) -> Tensor:
        """Return the most probable class that reaches the threshold, else the first; (N,)."""
        # By logits, since the probabilities of those above 17 are all 1.
        best_N, class_N = logits_NC[:, 1:].max(1)
        return torch.where(each_probability(best_N) >= self.threshold, class_N + 1, 0)
