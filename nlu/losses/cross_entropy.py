"""Cross-entropy over classes or tags. Axes: N rows, C labels."""

import torch.nn.functional as F
from torch import Tensor

from nlu.config.types import Probability


class CrossEntropy:
    """Cross-entropy in nats."""

    def __init__(self, *, label_smoothing: Probability = 0.0):
        """`label_smoothing` gives this share of the target to all classes alike; 0 = off."""
        self.label_smoothing = label_smoothing

    def __call__(self, logits_NC: Tensor, labels_N: Tensor) -> tuple[Tensor, int]:
        """Return the sum over rows, float32, and the number of rows."""
        total = F.cross_entropy(logits_NC, labels_N, reduction="sum", label_smoothing=self.label_smoothing)
        return total, labels_N.shape[0]
