"""A linear layer, an activation and a linear layer on the vectors of examples or units, as in fine-tuned models of
others. Axes: N rows, C outputs, D width.
"""

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nlu.config.keys import takes
from nlu.data.collate import Batch
from nlu.models import keys as schemas
from nlu.models.encoder import Encoded, Encoder
from nlu.models.head import HeadTarget, vectors_of, wanted_by
from nlu.models.heads.linear import fresh_linear

FUNCTIONS: Mapping[str, Callable[[Tensor], Tensor]] = {"tanh": torch.tanh, "gelu": F.gelu, "relu": F.relu}


@takes(schemas.MlpHead)
class MlpHead(nn.Module):
    """out(activation(dense(vector))): the classifier of RoBERTa and, with BERT's pooler as `dense`, of BERT (tanh), of
    ELECTRA (gelu) and of DistilBERT (relu).

    Unlike some of these, it omits dropout between its layers: the vectors have dropout already.
    """

    def __init__(self, width: int, target: HeadTarget, encoder: Encoder | None, keys: schemas.MlpHead):
        super().__init__()
        self.wants = wanted_by(target)
        self.activation = keys.activation
        self.dense = fresh_linear(width, width)
        self.linear = fresh_linear(width, target.num_outputs)

    def forward(self, encoded: Encoded, batch: Batch) -> Tensor:
        """Return logits (N, C), float32."""
        inner_ND = FUNCTIONS[self.activation](self.dense(vectors_of(encoded, batch, self.wants)))
        return self.linear(inner_ND).float()
