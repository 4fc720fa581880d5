"""Scores of all words of the vocabulary for masked tokens: BERT's masked language model.

Devlin et al. 2019 (https://arxiv.org/abs/1810.04805), section 3.1: a linear layer with the activation of the encoder,
a norm, and a product with the table of word vectors plus a bias. The layer has the width of word vectors, as in
ELECTRA's generator. Names of parameters are those of BERT's checkpoints behind `cls.`. An encoder of transformers has
the head of its own architecture instead.

Axes: U masked tokens, V words of the vocabulary, B examples, C classes of examples.
"""

import logging
import re
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from nlu.config.keys import takes
from nlu.data.collate import Batch
from nlu.models import keys as schemas
from nlu.models.encoder import Encoded, Encoder
from nlu.models.head import HeadTarget, Wanted, vectors_of
from nlu.models.heads.linear import fresh_linear
from nlu.models.heads.transformers import module_of, scores_of, tensors_for
from nlu.models.layers.exact_linear import ACTIVATIONS, Linear, Tied

log = logging.getLogger(__name__)

_BEFORE = r"(?:cls\.predictions\.transform|generator_predictions|predictions)"
PLACES = (
    (rf"{_BEFORE}\.dense|lm_head\.dense|vocab_transform|head\.dense", "transform.dense"),
    (rf"{_BEFORE}\.LayerNorm|lm_head\.layer_norm|vocab_layer_norm|head\.norm", "transform.LayerNorm"),
    (
        r"cls\.predictions(?:\.decoder)?|generator_(?:predictions|lm_head)|predictions|lm_head|vocab_projector|decoder",
        "decoder",
    ),
)
"""the parts of this head in checkpoints of BERT, ELECTRA's generator, ALBERT, RoBERTa, DistilBERT and ModernBERT"""
FOREIGN = [(re.compile(rf"(?:{part})\.(\w+)"), place) for part, place in PLACES]
TABLE = "tok_embeddings.weight"
LEAVES = {"weight": "weight", "gamma": "weight", "bias": "bias", "beta": "bias", "output_bias": "bias"}
"""names of parameters; also those of TensorFlow"""


class Transform(nn.Module):
    """A linear layer, an activation and a norm."""

    def __init__(self, width: int, outputs: int, eps: float, bias: bool = True, norm_bias: bool = True):
        super().__init__()
        self.dense = fresh_linear(width, outputs, bias)
        self.LayerNorm = nn.LayerNorm(outputs, eps, bias=norm_bias)

    def forward(self, vectors_UD: Tensor, activation: Callable[[Tensor], Tensor]) -> Tensor:
        return self.LayerNorm(activation(self.dense(vectors_UD)))


@takes(schemas.WordsHead)
class WordsHead(nn.Module):
    """A score for each word of the vocabulary; only masked tokens are computed."""

    def __init__(self, width: int, target: HeadTarget, encoder: Encoder):
        """For an encoder of transformers this is its head, where it has one. Else the activation and the constant of
        the norm are the encoder's, or gelu and 1e-12. ModernBERT's configuration says which biases there are, and
        whether the decoder has a table of its own."""
        super().__init__()
        self.wants: Wanted | tuple[Wanted, ...] = "units"
        self.theirs = module_of("MaskedLM", encoder)
        if self.theirs is not None:
            return
        words, known = encoder.words, encoder.settings()
        sizes: Any = known.get("inner", known)
        if "classifier_activation" not in known:
            self.activation = ACTIVATIONS.get(str(sizes.get("hidden_act")), ACTIVATIONS["gelu"])
            transform = Transform(width, words.embedding_dim, sizes.get("layer_norm_eps", 1e-12))
            decoder: Linear = Tied(words)
        else:
            self.activation = ACTIVATIONS[sizes["classifier_activation"]]
            transform = Transform(width, width, sizes["norm_eps"], sizes["classifier_bias"], sizes["norm_bias"])
            has_bias = sizes["decoder_bias"]
            own = None if sizes["tie_word_embeddings"] else fresh_linear(width, words.num_embeddings, has_bias)
            decoder = own or Tied(words, has_bias)
        self.predictions = nn.ModuleDict({"transform": transform, "decoder": decoder})

    def forward(self, encoded: Encoded, batch: Batch) -> Tensor:
        """Return the score of each word for each masked token, (U, V), float32."""
        vectors_UD = vectors_of(encoded, batch, "units")
        if self.theirs is not None:
            return scores_of(self.theirs, vectors_UD)
        inner_UE = self.predictions["transform"](vectors_UD, self.activation)
        return self.predictions["decoder"](inner_UE).float()

    def checkpoint_names(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the tensors of this head in another library's checkpoint, by the names of this module's parameters."""
        if self.theirs is not None:
            return {f"theirs.{name}": value for name, value in tensors_for(self.theirs, tensors).items()}
        found: dict[str, Tensor] = {}
        for name, value in tensors.items():
            for pattern, place in FOREIGN:
                if (match := pattern.fullmatch(name)) and match[1] in LEAVES:
                    found[f"predictions.{place}.{LEAVES[match[1]]}"] = value
        if not isinstance(self.predictions["decoder"], Tied):
            return found
        # The table of words is the encoder's.
        decoder_VE = found.pop("predictions.decoder.weight", None)
        tables = [value for name, value in tensors.items() if name.endswith(("word_embeddings.weight", TABLE))]
        if decoder_VE is not None and not any(torch.equal(decoder_VE, table_VE) for table_VE in tables):
            log.warning(
                "the head of the weights has a decoder of its own, which this head lacks; set model=hf to use it"
            )
            return {}
        return found


class HasClasses(HeadTarget, Protocol):
    """A target of masked words that also has a class for each example."""

    @property
    def class_names(self) -> Sequence[str]:
        """The classes in their order."""


@takes(schemas.WordsAndClassHead)
class WordsAndClassHead(WordsHead):
    """The scores of words for masked tokens, and a linear layer on the pooled vector for the class of each example."""

    def __init__(self, width: int, target: HasClasses, encoder: Encoder):
        """The layer reads what `model.pooling` gives: by default the first token."""
        super().__init__(width, target, encoder)
        self.wants = ("pooled", "units")
        self.class_names = list(target.class_names)
        self.classes = fresh_linear(encoder.width_of(encoder.layout), len(self.class_names))

    def of_classes(self, encoded: Encoded, batch: Batch) -> Tensor:
        """Return the logits of the classes for each example, (B, C), float32."""
        return self.classes(vectors_of(encoded, batch, "pooled")).float()
