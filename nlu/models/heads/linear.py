"""A linear layer on the vectors of examples or units. Axes: N rows, C outputs."""

from torch import Tensor, nn

from nlu.config.keys import takes
from nlu.data.collate import Batch
from nlu.models import keys as schemas
from nlu.models.encoder import Encoded, Encoder
from nlu.models.head import HeadTarget, vectors_of, wanted_by
from nlu.models.layers.exact_linear import Linear

INITIAL_SPREAD = 0.02
"""standard deviation of initial weights, as in BERT (Devlin et al. 2019)"""


@takes(schemas.LinearHead)
class LinearHead(nn.Module):
    """One output for each class, tag or label, or one number."""

    def __init__(self, width: int, target: HeadTarget, encoder: Encoder | None = None):
        super().__init__()
        self.wants = wanted_by(target)
        self.linear = fresh_linear(width, target.num_outputs)

    def forward(self, encoded: Encoded, batch: Batch) -> Tensor:
        """Return logits (N, C), float32."""
        return self.linear(vectors_of(encoded, batch, self.wants)).float()


def fresh_linear(width: int, outputs: int, bias: bool = True) -> Linear:
    """Return a linear layer with small random weights and, with `bias`, one of 0."""
    linear = Linear(width, outputs, bias)
    nn.init.normal_(linear.weight, std=INITIAL_SPREAD)
    if bias:
        nn.init.zeros_(linear.bias)
    return linear
