"""A folder that AutoModelFor... of transformers loads, with tokenizer and labels, without code of this package.

Each run of a native encoder is written as a model that transformers has:

- tags: ElectraForTokenClassification;
- a text by its first token: ElectraForSequenceClassification. Its head computes gelu(W h + b) before the last layer.
  Since gelu(z) - gelu(-z) = z, rows z and -z in W give the linear layer of the run, up to rounding;
- a text by the pooler of BERT, or by a head of two layers with tanh: BertForSequenceClassification; with gelu: ELECTRA;
- masked words (task=mlm): BertForMaskedLM, with the head under `cls.predictions`, or ElectraForMaskedLM where word
  vectors are narrower than the layers. The scores of words are compared before it is published.

A run with `model=hf` keeps its architecture, with the head of transformers that it was trained with.

Axes: N texts, T tokens of the longest, V words, C outputs, D width.
"""

import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict

import numpy as np
import torch
from torch import Tensor, nn

from nlu.config.errors import UserError
from nlu.data.collate import Batch, collate
from nlu.data.examples import in_memory
from nlu.data.layouts import Layout
from nlu.data.tokenizing import ROLES
from nlu.inference.exports.export_decisions import Row
from nlu.inference.exports.modern import in_transformers
from nlu.inference.exports.padded import (
    copied_linear,
    copied_pooler,
    load_exactly,
    own_linear,
    own_output,
    padded_inputs,
    require_native,
    transformers_config,
    transformers_weights,
)
from nlu.inference.trained import Trained
from nlu.losses.bce import Bce
from nlu.models.encoder import Encoded
from nlu.models.encoders.bert import Bert
from nlu.models.encoders.huggingface import HuggingFace
from nlu.models.heads.mlp import MlpHead
from nlu.models.heads.transformers import TransformersHead, What, aliases, last_layer, model_class, module_of
from nlu.models.heads.words import WordsHead

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast


FORMAT = "huggingface"
SIZES = (
    "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "hidden_act",
    "hidden_dropout_prob", "attention_probs_dropout_prob", "max_position_embeddings", "type_vocab_size",
    "layer_norm_eps", "initializer_range", "pad_token_id",
)  # fmt: skip
Problem = Literal["single_label_classification", "multi_label_classification", "regression"]
PROBLEMS: dict[str, Problem] = {
    "classes": "single_label_classification",
    "soft_classes": "single_label_classification",
    "label_set": "multi_label_classification",
    "number": "regression",
    "grade": "regression",
}
READ_BY = {
    "first": "the first token",
    "last": "its last token",
    "mean": "a mean over tokens",
    "max": "a maximum over tokens",
    "attention": "attention over tokens",
    "layers": "several layers",
    "pooler": "a pooler over projected embeddings",
}
"""what a classifier reads, by `model.pooling`"""
OTHERWISE = "export it as onnx or torchscript"
RAW = {"activation_fn": "torch.nn.modules.linear.Identity"}
"""the entry of a configuration for sentence-transformers, which else computes a sigmoid of a single output"""

CHECKED_TEXTS = 32


class Labels(TypedDict, total=False):
    """The entries of a configuration of transformers that describe labels."""

    id2label: dict[int, str]
    label2id: dict[str, int]
    problem_type: Problem
    sentence_transformers: dict[str, str]


def of_architecture(
    backbone: HuggingFace, head: Any, what: What, last: nn.Linear | None = None, labels: Labels | None = None
) -> "PreTrainedModel":
    """Return the model of transformers for an encoder and its head, a `module_of`. `last` replaces the last layer."""
    config = type(backbone.inner.config).from_dict({**head.config.to_dict(), **(labels or {})})
    model: PreTrainedModel = model_class(what).from_config(config, dtype=torch.float32)
    weights = {f"{model.base_model_prefix}.{name}": value for name, value in backbone.inner.named_parameters()}
    weights |= head.state_dict()
    if last is not None:
        weights |= _named({last_layer(head, last.out_features): last})
    weights |= {source: weights[name] for name, source in aliases(head).items()}
    for name, value in model.named_parameters():
        if name.startswith(f"{model.base_model_prefix}.pooler."):
            # Of some architectures the model has a pooler that its head does not read.
            weights.setdefault(name, torch.zeros_like(value))
    load_exactly(model, {name: value.detach().float().cpu() for name, value in weights.items()})
    return model.eval()


def _both_signs(linear: nn.Linear) -> tuple[nn.Linear, nn.Linear]:
    """Return two layers that compute the same as one, with a function f between them for which f(z) - f(-z) = z.

    Raises UserError if the layer is too narrow for that.
    """
    outputs, width = linear.out_features, linear.in_features
    # Each output needs two of the `width` rows of the inner layer, z and -z.
    if 2 * outputs > width:
        raise UserError(
            f"format is {FORMAT}, but the classifier of transformers supports at most width / 2 = {width // 2} outputs "
            f"in this form, and the run has {outputs}; {OTHERWISE}"
        )
    inner, out = nn.Linear(width, width), nn.Linear(width, outputs)
    with torch.no_grad():
        for layer in (inner, out):
            layer.weight.zero_()
            layer.bias.zero_()
        inner.weight[:outputs], inner.weight[outputs : 2 * outputs] = linear.weight, -linear.weight
        inner.bias[:outputs], inner.bias[outputs : 2 * outputs] = linear.bias, -linear.bias
        out.weight[:, :outputs], out.weight[:, outputs : 2 * outputs] = torch.eye(outputs), -torch.eye(outputs)
    return inner, out


def _named(layers: dict[str, nn.Linear]) -> dict[str, Tensor]:
    """Return the tensors of layers, by the layer's name and theirs."""
    return {
        f"{layer}.{name}": value.detach()
        for layer, module in layers.items()
        for name, value in module.named_parameters()
    }


def write(trained: Trained, folder: Path) -> None:
    """Write model, tokenizer and labels. Raises UserError if transformers lacks such a model."""
    model_of(trained).save_pretrained(folder)
    tokenizer_of(trained).save_pretrained(folder)


def model_of(trained: Trained) -> "PreTrainedModel":
    """Return the run as a model of transformers."""
    trained = in_transformers(trained)
    names = trained.labels or ["LABEL_0"]
    labels: Labels = {"id2label": dict(enumerate(names)), "label2id": {n: i for i, n in enumerate(names)}}
    is_tagging, theirs, head = trained.target.kind == "tags", trained.model.backbone, trained.model.head
    if not is_tagging:
        # With loss=bce each class has its own probability, as with several labels.
        is_by_class = isinstance(getattr(trained.task, "loss", None), Bce)
        labels["problem_type"] = PROBLEMS["label_set" if is_by_class else trained.target.kind]
    if getattr(head, "is_sigmoid", False):
        # The pipeline of transformers then computes the sigmoid, as the run does.
        labels["problem_type"] = PROBLEMS["label_set"]
    elif trained.target.kind in ("number", "grade"):
        labels["sentence_transformers"] = RAW
    if isinstance(head, TransformersHead):
        assert isinstance(theirs, HuggingFace)
        what: What = "TokenClassification" if is_tagging else "SequenceClassification"
        return of_architecture(theirs, head.theirs, what, own_output(trained, head.get_submodule(head.last)), labels)
    if isinstance(head, MlpHead) and isinstance(theirs, Bert) and theirs.pooling == "first" and not is_tagging:
        dense, out = copied_linear(head.dense), own_output(trained, head.linear)
        if head.activation == "gelu":
            return _as_electra(trained, theirs, (dense, out), labels)
        if head.activation == "tanh" and theirs.embeddings_project is None:
            return _as_bert(trained, theirs, dense, out, labels)
    linear = own_linear(trained, FORMAT)
    if isinstance(theirs, HuggingFace):
        tagger = module_of("TokenClassification", theirs, names) if is_tagging else None
        if tagger is not None and len(tagger.state_dict()) == 2:
            return of_architecture(theirs, tagger, "TokenClassification", linear, labels)
        raise UserError(
            f"format is {FORMAT}, but transformers has no such model of {theirs.inner.config.model_type} that reads "
            f"{'each token' if is_tagging else READ_BY[theirs.pooling]} by one linear layer; train with head=auto"
            f"{'' if is_tagging else ' model.pooling=first'}, or {OTHERWISE}"
        )
    backbone = require_native(trained, FORMAT)
    if is_tagging:
        return _tagger(trained, backbone, linear, labels)
    if backbone.pooling == "first":
        return _as_electra(trained, backbone, _both_signs(linear), labels)
    if backbone.pooling == "pooler" and backbone.embeddings_project is None:
        pooler = copied_pooler(backbone)
        assert pooler is not None, "it reads a text by its pooler"
        return _as_bert(trained, backbone, pooler, linear, labels)
    raise UserError(
        f"format is {FORMAT}, but this run reads a text by {READ_BY[backbone.pooling]}, for which transformers has no "
        f"classifier; train it with model.pooling=first, or {OTHERWISE}"
    )


def _tagger(trained: Trained, backbone: Bert, linear: nn.Linear, labels: Labels) -> "PreTrainedModel":
    from transformers import ElectraForTokenClassification

    model = ElectraForTokenClassification(transformers_config(trained, **labels))
    load_exactly(model, {**_electra(backbone), **_named({"classifier": linear})})
    return model.eval()


def _as_electra(
    trained: Trained, backbone: Bert, head: tuple[nn.Linear, nn.Linear], labels: Labels
) -> "PreTrainedModel":
    """Return out(gelu(dense(first token))) for the layers (dense, out) of a head."""
    from transformers import ElectraForSequenceClassification

    model = ElectraForSequenceClassification(transformers_config(trained, **labels))
    dense, out = head
    load_exactly(model, {**_electra(backbone), **_named({"classifier.dense": dense, "classifier.out_proj": out})})
    return model.eval()


def _as_bert(trained: Trained, backbone: Bert, pooler: nn.Linear, out: nn.Linear, labels: Labels) -> "PreTrainedModel":
    """Return out(tanh(pooler(first token)))."""
    from transformers import BertConfig, BertForSequenceClassification

    known = transformers_config(trained)
    # The sizes of ELECTRA have the same names, except for the separate width of embeddings.
    shared: dict[str, Any] = {**labels, **{key: getattr(known, key) for key in SIZES}}
    model = BertForSequenceClassification(BertConfig(**shared))
    encoder = {f"bert.{name}": value for name, value in transformers_weights(backbone).items()}
    load_exactly(model, {**encoder, **_named({"bert.pooler.dense": pooler, "classifier": out})})
    return model.eval()


def _electra(backbone: Bert) -> dict[str, Tensor]:
    return {f"electra.{name}": value for name, value in transformers_weights(backbone).items()}


def tokenizer_of(trained: Trained) -> "PreTrainedTokenizerFast":
    """Return the tokenizer as one of transformers, which adds special tokens and segment numbers."""
    from tokenizers import Tokenizer as Backend
    from tokenizers.processors import TemplateProcessing
    from transformers import PreTrainedTokenizerFast

    own = trained.tokenizer
    # A copy: adding a post-processor to the tokenizer of the run would add special tokens twice to its rows.
    backend = Backend.from_str(own.backend.to_str())
    if backend.post_processor is None:
        begin, end = backend.id_to_token(own.single.before[0]), backend.id_to_token(own.single.after[0])
        backend.post_processor = TemplateProcessing(
            single=f"{begin}:0 $A:0 {end}:0",
            pair=f"{begin}:0 $A:0 {end}:0 $B:1 {end}:1",
            special_tokens=[(begin, own.single.before[0]), (end, own.single.after[0])],
        )
    known = {f"{role}_token": token for role in ROLES if (token := own.special(role)) is not None}
    # Padding needs some token; attention does not see it.
    known.setdefault("pad_token", str(backend.id_to_token(own.unknown_id)))
    reads_specials = any(token.special for token in own.backend.get_added_tokens_decoder().values())
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        model_max_length=trained.config.data["max_len"],
        # transformers would interpret [MASK] in a user's text as that token; the run reads brackets and letters.
        split_special_tokens=not reads_specials,
        # Without segment numbers, the second text of a pair would count as part of the first.
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
        **known,
    )


def write_masked(trained: Trained, folder: Path, rows: Sequence[Row]) -> float:
    """Write model and tokenizer; returns the largest difference of a score of a word in some of the rows.

    Raises UserError for an encoder that transformers cannot compute.
    """
    model = masked_model_of(trained)
    model.save_pretrained(folder)
    tokenizer_of(trained).save_pretrained(folder)
    read = type(model).from_pretrained(folder).eval()
    return _difference_of_words(trained, read, rows[:CHECKED_TEXTS])


def masked_model_of(trained: Trained) -> "PreTrainedModel":
    """Return the run as a model of transformers. Raises UserError for an encoder that it cannot compute."""
    from transformers import BertConfig, BertForMaskedLM, ElectraForMaskedLM

    trained = in_transformers(trained)
    head, theirs = trained.model.head, trained.model.backbone
    assert isinstance(head, WordsHead), "a run of task=mlm"
    if isinstance(theirs, HuggingFace):
        if head.theirs is None:
            raise UserError(
                f"format is {FORMAT}, but transformers has no model of {theirs.inner.config.model_type} that predicts "
                "masked words; fine-tune the run here, by model.pretrained=RUN"
            )
        return of_architecture(theirs, head.theirs, "MaskedLM")
    backbone = require_native(trained, FORMAT)
    config = transformers_config(trained)
    encoder = transformers_weights(backbone)
    own = {name: value.detach().float().cpu() for name, value in head.predictions.named_parameters()}
    bias_V = own.pop("decoder.bias")[: config.vocab_size]
    table_VD = encoder["embeddings.word_embeddings.weight"]
    if backbone.embeddings_project is None:
        # The sizes of ELECTRA have the same names, except for the separate width of embeddings.
        model: PreTrainedModel = BertForMaskedLM(BertConfig(**{key: getattr(config, key) for key in SIZES}))
        weights = {f"bert.{name}": value for name, value in encoder.items()}
        weights |= {f"cls.predictions.{name}": value for name, value in own.items()}
        weights |= {"cls.predictions.bias": bias_V, "cls.predictions.decoder.bias": bias_V}
        weights["cls.predictions.decoder.weight"] = table_VD
    else:
        if backbone.sizes["activation"] != "gelu":
            raise UserError(
                f"format is {FORMAT}, but the head of ELECTRA computes gelu, and that of this run "
                f"{backbone.sizes['activation']}; fine-tune the run here, by model.pretrained=RUN"
            )
        model = ElectraForMaskedLM(config)
        weights = {f"electra.{name}": value for name, value in encoder.items()}
        weights |= {f"generator_predictions.{name.removeprefix('transform.')}": value for name, value in own.items()}
        weights |= {"generator_lm_head.weight": table_VD, "generator_lm_head.bias": bias_V}
    load_exactly(model, weights)
    return model.eval()


def _difference_of_words(trained: Trained, read: "PreTrainedModel", rows: Sequence[Row]) -> float:
    """Return the largest difference of the scores that the run and the export give to words, for every token."""

    def scores(hidden_TD: Tensor, batch: Batch) -> Tensor:
        return trained.model.head(Encoded(units_UD=hidden_TD.float()), batch)

    return difference_of_tokens(trained, trained.layout, rows, read.forward, "logits", scores)


@torch.inference_mode()
def difference_of_tokens(
    trained: Trained,
    layout: Layout,
    rows: Sequence[Row],
    forward: Callable[..., Any],
    name: str,
    of_run: Callable[[Tensor, Batch], Tensor],
) -> float:
    """Return the largest difference of a result of the run for tokens and the one of this name in what `forward` of
    transformers returns.

    `of_run` makes the result of the vectors of all tokens; columns that only the run has are left out.
    """
    encoded = layout.encode(trained.tokenizer, rows, trained.config.data["max_len"])
    inputs = padded_inputs(encoded, trained.tokenizer)
    taken = inspect.signature(forward).parameters
    theirs = forward(**{name: torch.from_numpy(values) for name, values in inputs.items() if name in taken})[name]
    batch = collate(in_memory(encoded, layout), np.arange(len(rows)))
    backbone, largest = trained.model.backbone, 0.0
    hidden_TD = backbone.encode(backbone.embed(batch), batch, tokens=True).tokens_TD
    assert hidden_TD is not None
    own = of_run(hidden_TD, batch)
    for sequence, example in enumerate(batch.examples_B.tolist()):
        start, length = int(batch.starts_S[sequence]), batch.lengths[sequence]
        difference = own[start : start + length, : theirs.shape[2]] - theirs[example, :length]
        largest = max(largest, float(difference.abs().max()))
    return largest
