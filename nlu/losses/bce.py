"""One-vs-rest with a reject class: a row that no other class accepts belongs to the first class.

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
    """Binary cross-entropy of all classes except the first, in nats; the first logit is not used."""

    kinds = ("classes",)

    def __init__(self, *, threshold: Probability = 0.5):
        """`threshold`: a row in which no class has this probability belongs to the first class."""
        self.threshold = threshold

    def bind(self, names: Sequence[str], counts: Mapping[str, int] | None = None, examples: int | None = None) -> None:
        """Take the classes. Raises UserError for a single class."""
        if len(names) < 2:
            raise UserError(
                f"loss=bce rejects rows to the first class, but the only class is {', '.join(names)}; "
                "set loss=cross_entropy"
            )

    def per_row(self, logits_NC: Tensor, labels_N: Tensor) -> Tensor:
        """Return the loss of each row; (N,)."""
        # The first class has no output of its own: such a row is negative for every other class.
        targets_NK = F.one_hot(labels_N, logits_NC.shape[1])[:, 1:].to(logits_NC.dtype)
        return F.binary_cross_entropy_with_logits(logits_NC[:, 1:], targets_NK, reduction="none").mean(1)

    def probabilities(self, logits_NC: Tensor) -> Tensor:
        """Return the probability of each class, (N, C); that of the first class is 1 minus the largest other one."""
        others_NK = each_probability(logits_NC[:, 1:])
        return torch.cat([1 - others_NK.amax(1, keepdim=True), others_NK], dim=1)

    def divergence(self, first_NC: Tensor, second_NC: Tensor) -> Tensor:
        """Return the divergence of two predictions over all classes except the first, summed over rows; nats."""
        return bernoulli_divergence(first_NC[:, 1:], second_NC[:, 1:])

    @property
    def logit_of_first(self) -> float:
        """The logit of the threshold. With it as the first logit, the argmax of all logits equals `decide`."""
        # The limits at which float32, in which probabilities are compared, differs from 0 and 1.
        within = min(max(self.threshold, 1e-45), 1 - 2**-25)
        return math.log(within / (1 - within))

    def decide(self, logits_NC: Tensor) -> Tensor:
        """Return the most probable class if it reaches the threshold, else the first class; (N,), int64."""
        # By logits, because all logits above 17 have the probability 1.
        best_N, class_N = logits_NC[:, 1:].max(1)
        return torch.where(each_probability(best_N) >= self.threshold, class_N + 1, 0)
