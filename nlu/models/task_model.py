"""An encoder with the one linear layer that a task puts on it.

Axes: N rows to be labelled (examples or units), C labels.
"""

from torch import Tensor, nn

from nlu.data.collate import Batch
from nlu.models.dropout import Dropout
from nlu.models.encoder import Encoder
from nlu.models.linear import Linear


class TaskModel(nn.Module):
    """An encoder (`backbone`), dropout, `classifier`."""

    backbone: Encoder

    def __init__(self, backbone: Encoder, layout: str, num_labels: int):
        super().__init__()
        self.backbone = backbone
        self.layout = layout
        # A batch does not show whether it holds pairs, so the layout is set once.
        backbone.layout = layout
        self.dropout = Dropout(backbone.head_dropout)
        self.classifier = Linear(backbone.width_of(layout), num_labels)
        nn.init.normal_(self.classifier.weight, std=0.02)
        nn.init.zeros_(self.classifier.bias)

    def forward(self, batch: Batch) -> Tensor:
        """Return logits (N, C), float32: a row for each example, or for each unit of a tagging batch."""
        units = self.layout == "units"
        encoded = self.backbone.encode(self.backbone.embed(batch), batch, tokens=units, pooled=not units)
        if units:
            assert encoded.tokens_TD is not None and batch.units_U is not None
            features_ND = encoded.tokens_TD.index_select(0, batch.units_U)
        else:
            assert encoded.pooled_SD is not None
            features_ND = encoded.pooled_SD
        return self.classifier(self.dropout(features_ND)).float()
