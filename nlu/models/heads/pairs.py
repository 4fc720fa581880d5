"""Two texts that are encoded separately (a siamese encoder) and compared by their vectors.

Reimers & Gurevych 2019 (https://arxiv.org/abs/1908.10084), section 3. A text is encoded independently of the other one,
so vectors can be stored and searched.

Axes: N examples, S sequences, D width, C classes.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nlu.config.errors import UserError
from nlu.config.keys import takes
from nlu.data.collate import Batch
from nlu.models import keys as schemas
from nlu.models.encoder import Encoded, Encoder
from nlu.models.head import HeadTarget
from nlu.models.heads.linear import fresh_linear


@takes(schemas.SidesHead)
class SidesHead(nn.Module):
    """Compares the texts of a pair by their vectors u and v."""

    def __init__(self, width: int, target: HeadTarget, encoder: Encoder | None, keys: schemas.SidesHead):
        """Raises UserError for a target with a tag for each unit."""
        super().__init__()
        if target.kind == "tags":
            raise UserError("head=sides compares two texts, but this task has a tag for each unit; set head=linear")
        self.wants = "pooled"
        self.features = keys.features
        self.linear = fresh_linear(3 * width, target.num_outputs) if keys.features == "concat" else None

    def forward(self, encoded: Encoded, batch: Batch) -> Tensor:
        """Return logits (N, C), or cosines (N, 1), float32."""
        if self.linear is None:
            first_ND, second_ND = unit_vectors(encoded, batch)
            return (first_ND * second_ND).sum(1, keepdim=True)
        first_ND, second_ND = sides_of(encoded, batch)
        return self.linear(torch.cat([first_ND, second_ND, (first_ND - second_ND).abs()], dim=1)).float()


def sides_of(encoded: Encoded, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return the vectors of the first and of the second text of each example; (N, D) each."""
    assert encoded.pooled_SD is not None and len(batch.sequences_KB) == 2
    first_N, second_N = batch.sequences_KB
    return encoded.pooled_SD.index_select(0, first_N), encoded.pooled_SD.index_select(0, second_N)


def unit_vectors(encoded: Encoded, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return the vectors of `sides_of` in fp32 with norm 1; a vector of zeros is not changed."""
    first_ND, second_ND = sides_of(encoded, batch)
    return F.normalize(first_ND.float(), dim=1), F.normalize(second_ND.float(), dim=1)
