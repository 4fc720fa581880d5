"""ModernBERT's head of classes, tags and numbers: a linear layer, an activation, a norm and a linear layer.

Parameter names are those of transformers' ModernBertForSequenceClassification and ModernBertForTokenClassification.
Axes: N rows, C outputs.
"""

from typing import Any

from torch import Tensor, nn

from nlu.data.collate import Batch
from nlu.models.encoder import Encoded, Encoder
from nlu.models.head import HeadTarget, vectors_of, wanted_by
from nlu.models.heads.linear import fresh_linear
from nlu.models.layers.exact_linear import ACTIVATIONS


class ModernHead(nn.Module):
    """The head that ModernBERT was designed with. head=auto takes it for model=modernbert."""

    last = "classifier"
    """the layer with a row for each output"""

    def __init__(self, width: int, target: HeadTarget, encoder: Encoder):
        super().__init__()
        sizes: Any = encoder.settings()
        self.wants = wanted_by(target)
        self.activation = ACTIVATIONS[sizes["classifier_activation"]]
        norm = nn.LayerNorm(width, sizes["norm_eps"], bias=sizes["norm_bias"])
        self.head = nn.ModuleDict({"dense": fresh_linear(width, width, sizes["classifier_bias"]), "norm": norm})
        self.classifier = fresh_linear(width, target.num_outputs)

    def forward(self, encoded: Encoded, batch: Batch) -> Tensor:
        """Return logits (N, C), float32."""
        inner_ND = self.activation(self.head["dense"](vectors_of(encoded, batch, self.wants)))
        return self.classifier(self.head["norm"](inner_ND)).float()
