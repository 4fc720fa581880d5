"""A run with `model=hf` as a model that transformers loads with its head.

For most architectures, the tagger is a linear layer on the tokens. Classifiers differ: BERT is written as ELECTRA, as
for native encoders, and the head of DistilBERT has a relu between its layers, where relu(z) - relu(-z) = z.

Axes: C outputs, D width.
"""

from typing import Any

import torch
from torch import nn

from nlu.config.errors import UserError
from nlu.inference.exports.padded import load_exactly
from nlu.models.encoders.huggingface import HuggingFace

AS_ELECTRA = ("bert", "electra")
NOT_SHARED = ("model_type", "architectures", "id2label", "label2id", "problem_type", "torch_dtype", "dtype")
OTHERWISE = "export it as onnx, torch_export or torchscript"


def classifier_of(backbone: HuggingFace, linear: nn.Linear, wanted: str, labels: dict[str, Any]) -> Any:
    """Return the model for texts. Raises UserError if no model of transformers computes the same."""
    inner: Any = backbone.inner
    kind, outputs, width = inner.config.model_type, linear.out_features, linear.in_features
    if backbone.pooling != "first":
        raise UserError(
            f"format is {wanted}, but this run reads a text by a mean over tokens, for which transformers has no "
            f"classifier; {OTHERWISE}"
        )
    if kind not in (*AS_ELECTRA, "distilbert"):
        raise UserError(
            f"format is {wanted}, but the classifier of transformers for {kind} is not linear, unlike the head of this "
            f"run; {OTHERWISE}"
        )
    if 2 * outputs > width:
        raise UserError(
            f"format is {wanted}, but the classifier of transformers supports at most width / 2 = {width // 2} outputs "
            f"in this form, and the run has {outputs}; {OTHERWISE}"
        )
    from transformers import DistilBertForSequenceClassification, ElectraConfig, ElectraForSequenceClassification

    known = {key: value for key, value in inner.config.to_dict().items() if key not in NOT_SHARED}
    first, second = both_signs(linear)
    if kind == "distilbert":
        model: Any = DistilBertForSequenceClassification(type(inner.config)(**known, **labels))
        head = {"pre_classifier": first, "classifier": second}
    else:
        embedding = known.pop("embedding_size", known["hidden_size"])
        model = ElectraForSequenceClassification(ElectraConfig(**known, embedding_size=embedding, **labels))
        head = {"classifier.dense": first, "classifier.out_proj": second}
    _load(model, backbone, head)
    return model.eval()


def tagger_of(backbone: HuggingFace, linear: nn.Linear, wanted: str, labels: dict[str, Any]) -> Any:
    """Return the model for tokens. Raises UserError unless the tagger of the architecture is a linear layer."""
    from transformers import AutoModelForTokenClassification

    inner: Any = backbone.inner
    config = type(inner.config).from_dict({**inner.config.to_dict(), **labels})
    try:
        model: Any = AutoModelForTokenClassification.from_config(config, dtype=torch.float32)
    except ValueError:
        model = None
    if model is None or not _is_one_layer_more(model):
        raise UserError(
            f"format is {wanted}, but transformers has no tagger with one linear layer for {config.model_type}; "
            f"{OTHERWISE}"
        )
    _load(model, backbone, {"classifier": linear})
    return model.eval()


def _is_one_layer_more(model: Any) -> bool:
    """Whether a tagger is an encoder with one linear layer; that of ModernBERT has a head between the two."""
    own = {name for name, _ in model.named_parameters() if not name.startswith(f"{model.base_model_prefix}.")}
    return isinstance(getattr(model, "classifier", None), nn.Linear) and own == {"classifier.weight", "classifier.bias"}


def both_signs(linear: nn.Linear) -> tuple[nn.Linear, nn.Linear]:
    """Return two layers that compute the same as one, with a function f between them for which f(z) - f(-z) = z."""
    outputs, width = linear.out_features, linear.in_features
    inner, out = nn.Linear(width, width), nn.Linear(width, outputs)
    with torch.no_grad():
        for layer in (inner, out):
            layer.weight.zero_()
            layer.bias.zero_()
        inner.weight[:outputs], inner.weight[outputs : 2 * outputs] = linear.weight, -linear.weight
        inner.bias[:outputs], inner.bias[outputs : 2 * outputs] = linear.bias, -linear.bias
        out.weight[:, :outputs], out.weight[:, outputs : 2 * outputs] = torch.eye(outputs), -torch.eye(outputs)
    return inner, out


def named(layers: dict[str, nn.Linear]) -> dict[str, torch.Tensor]:
    """Return the tensors of layers, by the layer's name and theirs."""
    return {
        f"{layer}.{name}": value.detach()
        for layer, module in layers.items()
        for name, value in module.named_parameters()
    }


def _load(model: Any, backbone: HuggingFace, head: dict[str, nn.Linear]) -> None:
    prefix = model.base_model_prefix
    encoder = {f"{prefix}.{name}": value.detach().float().cpu() for name, value in backbone.inner.named_parameters()}
    load_exactly(model, {**encoder, **named(head)})
