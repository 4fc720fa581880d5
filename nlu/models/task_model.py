"""An encoder with the one linear layer that a task puts on it.

Axes: N rows to be labelled (examples or units), C labels.
"""

from torch import Tensor, nn

from nlu.data.collate import Batch
from nlu.models.dropout import Dropout
from nlu.models.linear import Linear


class TaskModel(nn.Module):
    """`backbone` (any encoder with `pooled` and `at`), dropout, `classifier`."""

    def __init__(self, backbone: nn.Module, layout: str, num_labels: int):
        super().__init__()
        self.backbone = backbone
        self.layout = layout
        # An encoder that reads pairs otherwise than single texts cannot tell them apart by every batch.
        backbone.layout = layout  # type: ignore[assignment]
        self.dropout = Dropout(backbone.head_dropout)  # type: ignore[arg-type]
        self.classifier = Linear(backbone.width_of(layout), num_labels)  # type: ignore[operator]
        nn.init.normal_(self.classifier.weight, std=0.02)
        nn.init.zeros_(self.classifier.bias)

    def forward(self, batch: Batch) -> Tensor:
        """Return logits (N, C), float32: a row for each example, or for each unit of a tagging batch."""
        if self.layout == "units":
            features = self.backbone.at(batch, batch.units_U)  # type: ignore[operator]
        else:
            features = self.backbone.pooled(batch)  # type: ignore[operator]
        return self.classifier(self.dropout(features)).float()
