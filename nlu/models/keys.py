"""The keys of encoders, heads and adapters, and what rules between groups know of each; see `nlu.config.keys`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from nlu.config.types import PositiveFloat, PositiveInt, Probability

Activation = Literal["tanh", "gelu", "relu"]
"""what the head mlp has between its layers"""


@dataclass(kw_only=True)
class Auto:
    """The head that the task chooses: a linear layer or, for two separately encoded texts, the comparison that the loss
    needs."""


@dataclass(kw_only=True)
class LinearHead:
    """One output for each class, tag or label, or one number."""


@dataclass(kw_only=True)
class MlpHead:
    """A linear layer, an activation and a linear layer."""

    activation: Activation = "tanh"
    """Function between the two layers: tanh (as in BERT and RoBERTa), gelu (the exact one, as in ELECTRA) or relu
    (DistilBERT)."""


@dataclass(kw_only=True)
class SidesHead:
    """Compares the texts of a pair by their vectors u and v."""

    options_by_loss: ClassVar[Mapping[str, Mapping[str, str]]] = {
        "features": {"logits": "concat", "cosine": "cosine", "similarities": "cosine"}
    }
    """the value of a key for each kind of input that a loss reads"""
    features: Literal["concat", "cosine"] = "concat"
    """How two vectors are compared; concat = linear layer on [u; v; |u - v|]; cosine = cos(u, v)."""


@dataclass(kw_only=True)
class CrfHead:
    """Scores of tags and of transitions between tags."""

    replaces_loss: ClassVar[str] = "nlu.losses.cross_entropy.CrossEntropy"
    """the default loss, which may stay in a configuration although the head computes its own"""
    decodes: ClassVar[bool] = True
    """whether it decodes by itself, so that `task.decode` is ignored"""
    transitions_lr: PositiveFloat | None = 0.01
    """Peak learning rate of the scores of transitions, first and last tags. They start at 0 and take effect from about
    1, which a rate for pretrained weights would not reach; null = set by optimizer.lr and top_lr_ratio."""


@dataclass(kw_only=True)
class TransformersHead:
    """The classifier or tagger that transformers has for the architecture of the encoder."""

    rules_of_config: ClassVar[str] = "nlu.models.rules.head_of_transformers_problems"


@dataclass(kw_only=True)
class WordsHead:
    """Scores of all words for masked tokens, by the table of word vectors."""


@dataclass(kw_only=True)
class WordsAndClassHead:
    """Scores of words for masked tokens, and a linear layer for the class of each text."""


@dataclass(kw_only=True)
class NoAdapter:
    """All weights are trained, except those that `optimizer.freeze` names."""


@dataclass(kw_only=True)
class Lora:
    """Low-rank adapters on linear layers of the encoder."""

    rank: PositiveInt = 8
    """Rows of the smaller matrix, r in the paper."""
    alpha: PositiveFloat = 16.0
    """What is added to a layer is multiplied by alpha / rank."""
    dropout: Probability = 0.0
    """Share of the input's elements that the adapter does not see while it trains; 0 = off."""
    targets: list[str] | None = None
    """Shell patterns of the linear layers that are adapted, such as "backbone.*.dense"; null = those that give queries
    and values, in native encoders also keys; where no layer is called so, all of attention or, without attention, of
    the encoder."""
    pretrained: str | None = None
    """Folder of peft (adapter_config.json), local or hf://, whose matrices the adapters begin with; null = random."""
