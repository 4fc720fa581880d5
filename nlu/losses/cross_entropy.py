"""Cross-entropy over classes, tags or words.

    -w[y] log softmax(logits)[y], with label smoothing e against (1 - e) onehot(y) + e / C
    (Szegedy et al. 2016, https://arxiv.org/abs/1512.00567, section 7)

Axes: N rows, C classes.
"""

from collections.abc import Mapping, Sequence

import torch.nn.functional as F
from torch import Tensor

from nlu.config.keys import takes
from nlu.losses import keys as schemas
from nlu.losses.loss import ClassWeights, RowLoss, balanced


@takes(schemas.CrossEntropy)
class CrossEntropy(RowLoss):
    """Cross-entropy in nats."""

    def __init__(self, keys: schemas.CrossEntropy):
        self.label_smoothing = keys.label_smoothing
        self._weights = ClassWeights("class_weights", keys.class_weights)

    def bind(self, names: Sequence[str], counts: Mapping[str, int] | None = None, examples: int | None = None) -> None:
        self._weights.bind(names, counts, balanced)

    def per_row(self, logits_NC: Tensor, labels_N: Tensor) -> Tensor:
        return self._weights.weighted(self._unweighted(logits_NC, labels_N, "none"), labels_N)

    def __call__(self, logits_NC: Tensor, labels_N: Tensor) -> Tensor:
        """Return the sum over rows, float32."""
        # Reduced inside torch's kernel, which does not write a loss for each row first.
        if self._weights.weights_C is None:
            return self._unweighted(logits_NC, labels_N, "sum")
        return self.per_row(logits_NC, labels_N).sum()

    def _unweighted(self, logits_NC: Tensor, labels_N: Tensor, reduction: str) -> Tensor:
        # F.cross_entropy's weights would weight each part of a smoothed target by its class, instead of the whole row.
        return F.cross_entropy(logits_NC, labels_N, reduction=reduction, label_smoothing=self.label_smoothing)
