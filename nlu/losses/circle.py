"""Circle loss: separates the scores of positive and negative rows, with the largest gradient for the worst scores.

With scores s in [0, 1], margin m and scale g, over the positive rows p and the negative rows n of a micro-batch:

    a_p = max(0, 1 + m - s_p), a_n = max(0, s_n + m)
    L_p = logsumexp(-g a_p (s_p - 1 + m)) / g, L_n = logsumexp(g a_n (s_n - m)) / g
    softplus(L_n + L_p); with ce_weight w: (this + w * mean cross-entropy) / (1 + w)

Sun et al. 2020 (https://arxiv.org/abs/2002.10857), section 3, except that the paper does not divide by the
scale. As in the paper, a_p and a_n are constants for the gradient. The L of a class that does not occur is 0.

Axes: N rows.
"""

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from nlu.config.errors import UserError
from nlu.config.keys import takes
from nlu.losses import keys as schemas
from nlu.losses.loss import require_two


@takes(schemas.Circle)
class Circle:
    """Circle loss of two classes, the second of which is positive; the loss of a micro-batch times its rows."""

    by_row = False

    def __init__(self, keys: schemas.Circle):
        self.scale, self.margin, self.ce_weight = keys.scale, keys.margin, keys.ce_weight

    def bind(self, names: Sequence[str], counts: Mapping[str, int] | None = None, examples: int | None = None) -> None:
        require_two("circle", names, "loss=cross_entropy")

    def __call__(self, logits: Tensor, labels_N: Tensor) -> Tensor:
        """Return the loss times the number of rows, float32; of logits (N, 2), or of cosines (N, 1)."""
        is_cosine = logits.shape[1] == 1
        if is_cosine and self.ce_weight:
            raise UserError(
                f"loss.ce_weight is {self.ce_weight}, but a cosine has no cross-entropy; set loss.ce_weight=0, or "
                "head.features=concat"
            )
        rows = len(labels_N)
        if not rows:
            # The sum over no rows is 0, and unlike a constant it has a graph, which `backward` needs.
            return logits.sum()
        # The second logit by itself, so the first one gets a gradient only from `ce_weight`.
        score_N = logits[:, 0] if is_cosine else logits[:, 1].sigmoid()
        positive_N = labels_N == 1
        fixed_N = score_N.detach()
        pull_N = -self.scale * (1 + self.margin - fixed_N).clamp_min(0) * (score_N - 1 + self.margin)
        push_N = self.scale * (fixed_N + self.margin).clamp_min(0) * (score_N - self.margin)
        # One value for a micro-batch, which counts once for each row, since the contract asks for a sum over rows.
        loss = rows * F.softplus(self._log_sum(push_N, ~positive_N) + self._log_sum(pull_N, positive_N))
        if not self.ce_weight:
            return loss
        entropy = F.cross_entropy(logits, labels_N, reduction="sum")
        return (loss + self.ce_weight * entropy) / (1 + self.ce_weight)

    def _log_sum(self, values_N: Tensor, chosen_N: Tensor) -> Tensor:
        """Return logsumexp of the chosen rows divided by the scale, or 0 for no rows.

        Whether a row is chosen stays on the device, which saves a synchronization.
        """
        any_chosen = chosen_N.any()
        # Without one all values are kept: the gradient of logsumexp over minus infinities is NaN, even if discarded.
        kept_N = torch.where(chosen_N | ~any_chosen, values_N, -torch.inf)
        return torch.where(any_chosen, kept_N.logsumexp(0) / self.scale, 0.0)
