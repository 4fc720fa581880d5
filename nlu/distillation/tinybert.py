"""TinyBERT: embeddings, hidden states and attention scores of a student that resemble those of a teacher's layers.

Jiao et al. 2020 (https://arxiv.org/abs/1909.10351), equations 7 to 11:

    embeddings    MSE(E_student W_e, E_teacher)
    hidden        sum over the student's layers m of MSE(H_m W_h, H_g(m) of the teacher)
    attention     sum over m of the mean over heads of MSE(A_m, A_g(m)), A = Q K^T / sqrt(width of a head), no softmax

E are the vectors before the first layer, g is the layer map. Each MSE is a mean over the tokens of a sequence, without
padding, then over sequences. Equation 10, the prediction layer, is that of `nlu.distillation.distil`, in the same run
or, with `prediction=0` here, in a second one.
"""

from torch import Tensor, nn

from nlu.config.errors import UserError
from nlu.config.keys import takes
from nlu.config.sentences import counted
from nlu.data.collate import Batch
from nlu.distillation import keys as schemas
from nlu.distillation.layers import OfLayers, by_length, number_of, of_sequences, require_all_heads, scaled_products
from nlu.models.encoder import Encoded, Encoder, Inside

TERMS = ("embeddings", "hidden", "attention")


@takes(schemas.TinyBert)
class TinyBert(OfLayers):
    """The loss of method=distil, and three terms that compare the layers of student and teacher."""

    def __init__(self, keys: schemas.TinyBert):
        """The projections of embeddings and of hidden states are learned, one matrix each, also of equal widths."""
        super().__init__(keys)
        self._asked = {name: getattr(keys, name) for name in TERMS}
        self.layers = keys.layers
        self._parts = nn.ModuleDict()
        self._pairs: list[tuple[int, int]] = []
        self._heads = 1

    def prepare_layers(self, own: Encoder, theirs: Encoder) -> nn.Module:
        """Raises UserError for a layer map that does not fit, and for attention with other numbers of heads."""
        self.layer_weights = {name: weight for name, weight in self._asked.items() if weight}
        self._pairs = list(enumerate(self._map(*(number_of(one, "num_hidden_layers") for one in (own, theirs)))))
        with_hidden = "hidden" in self.layer_weights or "embeddings" in self.layer_weights
        if "attention" in self.layer_weights:
            for encoder, whose in ((own, "model"), (theirs, "the teacher")):
                require_all_heads(encoder, whose, "set method.attention=0")
            self._heads, heads = (number_of(one, "num_attention_heads") for one in (own, theirs))
            if self._heads != heads:
                raise UserError(
                    f"model has {self._heads} attention heads and the teacher {heads}, but method.attention compares "
                    f"head with head; set model.heads={heads}, or method.attention=0"
                )
        projected = [pair if "attention" in self.layer_weights else () for pair in zip(*self._pairs, strict=True)]
        self.own, self.theirs = (Inside(hidden=with_hidden, projections=layers) for layers in projected)
        width, wanted = (number_of(one, "hidden_size") for one in (own, theirs))
        for name in TERMS[:2]:
            if name in self.layer_weights:
                self._parts[name] = nn.Linear(width, wanted, bias=False)
        return self._parts

    def _map(self, own: int, theirs: int) -> list[int]:
        if self.layers is None:
            if own > theirs:
                raise UserError(
                    f"model has {counted(own, 'layer')} and the teacher {theirs}; name the teacher's layer for each of "
                    "them with method.layers"
                )
            return [(number + 1) * theirs // own - 1 for number in range(own)]
        if len(self.layers) != own or max(self.layers) >= theirs:
            raise UserError(
                f"method.layers is {self.layers}, but model has {counted(own, 'layer')} and the teacher {theirs}; "
                f"name one of the teacher's layers, from 0 to {theirs - 1}, for each layer of the model"
            )
        return self.layers

    def of_layers(self, own: Encoded, theirs: Encoded, batch: Batch) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {}
        if "embeddings" in self.layer_weights:
            found["embeddings"] = self._apart("embeddings", own.hidden[0], theirs.hidden[0], batch)
        if "hidden" in self.layer_weights:
            each = [self._apart("hidden", own.hidden[m + 1], theirs.hidden[g + 1], batch) for m, g in self._pairs]
            found["hidden"] = sum(each[1:], each[0])
        if "attention" in self.layer_weights:
            each = [self._attention(own.projections[m], theirs.projections[g], batch) for m, g in self._pairs]
            found["attention"] = sum(each[1:], each[0])
        return found

    def _apart(self, name: str, own_TD: Tensor, theirs_TD: Tensor, batch: Batch) -> Tensor:
        projected_TD = self._parts[name](own_TD.float())
        return of_sequences((projected_TD - theirs_TD.float()).square().mean(1), batch)

    def _attention(self, own: tuple[Tensor, ...], theirs: tuple[Tensor, ...], batch: Batch) -> Tensor:
        query_key = (by_length(part, batch, self._heads) for part in (*own[:2], *theirs[:2]))
        each = [
            (scaled_products(query, key) - scaled_products(other_query, other_key)).square().mean((1, 2, 3)).sum()
            for query, key, other_query, other_key in zip(*query_key, strict=True)
        ]
        return sum(each[1:], each[0])
