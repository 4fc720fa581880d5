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
from nlu.config.keys import takes
from nlu.config.nearest import by_class
from nlu.losses import keys as schemas
from nlu.losses.loss import RowLoss, bernoulli_divergence, each_probability


@takes(schemas.Bce)
class Bce(RowLoss):
    """Binary cross-entropy of all classes except the first, in nats; the first logit is not used."""

    def __init__(self, keys: schemas.Bce):
        self.threshold = keys.threshold
        self._at_least_K: torch.Tensor | None = None

    def bind(self, names: Sequence[str], counts: Mapping[str, int] | None = None, examples: int | None = None) -> None:
        if len(names) < 2:
            raise UserError(
                f"loss=bce rejects rows to the first class, but the only class is {', '.join(names)}; "
                "set loss=cross_entropy"
            )

    def take_names(self, names: Sequence[str]) -> None:
        """Take the names of the classes. Raises UserError for a threshold of an unknown one, or of the first."""
        if isinstance(self.threshold, Mapping) and names and names[0] in map(str, self.threshold):
            raise UserError(
                f"loss.threshold.{names[0]} is set, but {names[0]} is the first class, which is predicted where no "
                "other class reaches its threshold; leave it out"
            )
        self._at_least_K = torch.tensor(by_class("loss.threshold", self.threshold, names[1:], 0.5))

    def per_row(self, logits_NC: Tensor, labels_N: Tensor) -> Tensor:
        # The outputs are those of all classes but the first; a row of the first class is negative for each of them.
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
        """The logit of the threshold. With it as the first logit, the argmax of all logits equals `decide`.

        Raises UserError for thresholds by class, which a comparison of logits cannot express.
        """
        if isinstance(self.threshold, Mapping):
            raise UserError(
                "loss.threshold differs by class, which an export, decided by the largest output, cannot contain; use "
                "nlu.predict or nlu.serve, or train with one number as loss.threshold"
            )
        # The limits at which float32, in which probabilities are compared, differs from 0 and 1.
        within = min(max(self.threshold, 1e-45), 1 - 2**-25)
        return math.log(within / (1 - within))

    def decide(self, logits_NC: Tensor) -> Tensor:
        """Return the most probable of the classes that reach their threshold, else the first class; (N,), int64."""
        assert self._at_least_K is not None, "the task names the classes"
        at_least = self._at_least_K.to(logits_NC.device)
        reaches_NK = each_probability(logits_NC[:, 1:]) >= at_least
        # By logits, because all logits above 17 have the probability 1.
        class_N = logits_NC[:, 1:].masked_fill(~reaches_NK, -torch.inf).argmax(1)
        return torch.where(reaches_NK.any(1), class_N + 1, 0)
