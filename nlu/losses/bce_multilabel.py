"""Binary cross-entropy of each label, for rows with any number of labels.

    mean over labels of -w y log s(x) - (1 - y) log (1 - s(x)), s the sigmoid

Axes: N rows, C labels.
"""

from collections.abc import Mapping, Sequence

import torch.nn.functional as F
from torch import Tensor

from nlu.config.keys import takes
from nlu.losses import keys as schemas
from nlu.losses.loss import ClassWeights, RowLoss


@takes(schemas.BceMultilabel)
class BceMultilabel(RowLoss):
    """Binary cross-entropy in nats."""

    def __init__(self, keys: schemas.BceMultilabel):
        self._weights = ClassWeights("positive_weights", keys.positive_weights)

    def bind(self, names: Sequence[str], counts: Mapping[str, int] | None = None, examples: int | None = None) -> None:
        """Take the labels. Raises UserError for the weight of an unknown label.

        Without `examples`, one label for each example is assumed.
        """
        total = examples if examples is not None else sum((counts or {}).values())
        # `with_it` is at least 1 for each label, see `ClassWeights.bind`; a label that every row has gets the weight 0.
        self._weights.bind(names, counts, lambda with_it: [max(0, total - count) / count for count in with_it])

    def per_row(self, logits_NC: Tensor, labels_NC: Tensor) -> Tensor:
        """Return the loss of each row, (N,); `labels_NC` is 0 or 1."""
        return F.binary_cross_entropy_with_logits(
            logits_NC, labels_NC.to(logits_NC.dtype), reduction="none", pos_weight=self._weights.on(logits_NC.device)
        ).mean(1)
