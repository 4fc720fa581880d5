"""MiniLMv2: relations of the queries, keys and values of a student's last layer that resemble those of a teacher.

Wang et al. 2021 (https://arxiv.org/abs/2012.15828), equations 4 to 7:

    R = softmax(A A^T / sqrt(E)) for A in queries, keys, values, divided into relation heads of width E
    the sum over A of the mean over relation heads and tokens of KL(R_teacher || R_student)

The relation heads need not be the attention heads, so student and teacher may have other numbers of heads and other
widths. The mean is over the tokens of a sequence, without padding, then over sequences.
"""

from torch import Tensor, nn

from nlu.config.errors import UserError
from nlu.config.keys import takes
from nlu.config.sentences import counted
from nlu.data.collate import Batch
from nlu.distillation import keys as schemas
from nlu.distillation.layers import OfLayers, by_length, number_of, require_all_heads, scaled_products
from nlu.models.encoder import Encoded, Encoder, Inside

TERMS = ("queries", "keys", "values")


@takes(schemas.MiniLm)
class MiniLm(OfLayers):
    """The loss of method=distil, and the divergence of the relations of tokens in one layer."""

    def __init__(self, keys: schemas.MiniLm):
        super().__init__(keys)
        self.relations, self.relation_heads, self.layer = keys.relations, keys.relation_heads, keys.layer
        self._heads = 1

    def prepare_layers(self, own: Encoder, theirs: Encoder) -> nn.Module:
        """Raises UserError for an absent layer, and for widths that the relation heads do not divide."""
        count = number_of(theirs, "num_hidden_layers")
        if not -count <= self.layer < count:
            raise UserError(
                f"method.layer is {self.layer}, but the teacher has {counted(count, 'layer')}; set it to a number from "
                f"{-count} to {count - 1}"
            )
        for encoder, whose in ((own, "model"), (theirs, "the teacher")):
            require_all_heads(encoder, whose, "set method=distil, or method=tinybert method.attention=0")
        self._heads = self.relation_heads or number_of(theirs, "num_attention_heads")
        for whose, width in (
            ("model", number_of(own, "hidden_size")),
            ("the teacher", number_of(theirs, "hidden_size")),
        ):
            if width % self._heads:
                raise UserError(
                    f"method.relation_heads is {self._heads}, which does not divide the width of {whose}, {width}; set "
                    "it to a number that divides both"
                )
        self.layer_weights = dict.fromkeys(TERMS, self.relations)
        self.own, self.theirs = Inside(projections=(-1,)), Inside(projections=(self.layer,))
        return nn.Module()

    def of_layers(self, own: Encoded, theirs: Encoded, batch: Batch) -> dict[str, Tensor]:
        pairs = zip(TERMS, own.projections[-1], theirs.projections[self.layer], strict=True)
        return {name: self._apart(own_TD, theirs_TD, batch) for name, own_TD, theirs_TD in pairs}

    def _apart(self, own_TD: Tensor, theirs_TD: Tensor, batch: Batch) -> Tensor:
        each = []
        for own_BHLE, theirs_BHLE in zip(
            *(by_length(part, batch, self._heads) for part in (own_TD, theirs_TD)), strict=True
        ):
            log_q_BHLL = scaled_products(own_BHLE, own_BHLE).log_softmax(-1)
            log_p_BHLL = scaled_products(theirs_BHLE, theirs_BHLE).log_softmax(-1)
            each.append((log_p_BHLL.exp() * (log_p_BHLL - log_q_BHLL)).sum(-1).mean((1, 2)).sum())
        return sum(each[1:], each[0])
