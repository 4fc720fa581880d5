"""The head of a model that others fine-tuned, fitted to a head of ours: transformers' classifiers and taggers, those of
`nlu.export`, cross-encoders of one output, and TF1's run_classifier.

A head fits if it computes the same function of the same vector, has the same shapes, and its classes have the names of
the data's. Their order may differ: rows of the last layer are moved. One output is the logit of the second of the
classes 0 and 1, or a number, which is scaled as the numbers of the run.

Axes: C outputs, D width.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from nlu.config.types import ConfigLike
from nlu.models.heads.linear import LinearHead
from nlu.models.heads.mlp import MlpHead
from nlu.models.heads.modern import ModernHead
from nlu.models.heads.transformers import POOLINGS, TransformersHead, config_of, ends_in_sigmoid
from nlu.models.keys import Activation
from nlu.models.task_model import LAYOUT, TaskModel

FIRST_LAYERS: Mapping[str, tuple[str, Activation]] = {
    "bert": ("pooler.dense", "tanh"),
    "ernie": ("pooler.dense", "tanh"),
    "albert": ("pooler", "tanh"),
    "electra": ("classifier.dense", "gelu"),
    "roberta": ("classifier.dense", "tanh"),
    "xlm-roberta": ("classifier.dense", "tanh"),
    "camembert": ("classifier.dense", "tanh"),
    "distilbert": ("pre_classifier", "relu"),
}
"""by model_type of a native encoder, the layer before the last one of transformers' classifier of texts, and the
function between"""
LAST_LAYERS = (("classifier.out_proj.weight", "classifier.out_proj.bias"), ("classifier.weight", "classifier.bias"))
OF_EXPORT = "nlu_pooling"
"""the key of bert_config.json in which `nlu.export format=tf_checkpoint` keeps `model.pooling`, whose vector its one
linear layer reads"""
TENSORFLOW_LAYER = ("output_weights", "output_bias")
"""the last layer of TF1's run_classifier.py; its weight is also (C, D)"""
NAMELESS = re.compile(r"LABEL_\d+")
"""the names that transformers gives to classes without names"""
Weights = dict[str, Tensor]
Scale = tuple[float, float]
"""the mean and the standard deviation with which a run standardizes numbers"""


class UnfitHeadError(Exception):
    """A head that cannot be taken, with the reason and what to do."""

    def __init__(self, reason: str):
        super().__init__(reason)
        self.others: Weights = {}
        """its layers below the last one, which can"""


@dataclass(frozen=True)
class Layer:
    """A linear layer in fp32: weight (outputs, inputs) and bias (outputs,)."""

    weight: Tensor
    bias: Tensor

    @classmethod
    def of(cls, weight: Tensor, bias: Tensor | None) -> "Layer":
        """Return the layer with these tensors of any type."""
        return cls(weight.float(), weight.new_zeros(len(weight)).float() if bias is None else bias.float())

    def rows(self, numbers: Sequence[int]) -> "Layer":
        """Return the layer with these of its outputs, in this order."""
        return Layer(self.weight[list(numbers)], self.bias[list(numbers)])

    def scaled(self, factor: float, offset: float) -> "Layer":
        """Return the layer with its outputs times `factor` plus `offset`."""
        return Layer(self.weight * factor, self.bias * factor + offset)

    def named(self, name: str) -> Weights:
        """Return the tensors of a layer of this name."""
        return {f"{name}.weight": self.weight, f"{name}.bias": self.bias}


def fitted_head(
    model: TaskModel, tensors: Weights, config: ConfigLike, labels: Sequence[str], scale: Scale | None
) -> Weights:
    """Return the tensors of a foreign head under the names of `model`; empty for weights without a head.

    `tensors` and `config` are those of the checkpoint, `labels` the data's classes in order, `scale` that of numbers.
    Raises UnfitHeadError if the head cannot be taken as it was trained.
    """
    if isinstance(model.head, TransformersHead):
        return _for_transformers(model, tensors, config, labels, scale)
    last = _last_layer(tensors)
    if model.layout == LAYOUT:
        unfit = UnfitHeadError("a run with several heads trains each of them")
        for name, head in model.get_submodule("head").named_children():
            if isinstance(head, TransformersHead):
                found = head.tensors_of(tensors).items()
                unfit.others |= {
                    f"head.{name}.{place}": value for place, value in found if not place.startswith(head.last)
                }
        if last is None:
            return unfit.others
        raise unfit
    if last is None:
        return {}
    whole, last = last, _fitted(last, config, labels, scale)
    if isinstance(model.head, ModernHead):
        return _for_modern(model, model.head, tensors, config, labels) | last.named("head.classifier")
    if (pooling := config.get(OF_EXPORT)) is not None:
        if not isinstance(model.head, LinearHead) or getattr(model.backbone, "pooling", pooling) != pooling:
            raise UnfitHeadError(f"it is one linear layer; set head=linear model.pooling={pooling} to use it")
        return last.named("head.linear")
    if model.layout == "units":
        if any(name.startswith("head.") for name in tensors):
            other = "auto" if config_of(model.backbone) is None else "transformers"
            raise UnfitHeadError(f"it has layers below the last one; set head={other} to use it")
        if not isinstance(model.head, LinearHead):
            raise UnfitHeadError("it is one linear layer for each token; set head=linear to use it")
        return last.named("head.linear")
    kind = str(config.get("model_type", "bert"))
    if kind not in FIRST_LAYERS and config_of(model.backbone) is not None:
        raise UnfitHeadError("it is that of its architecture; set head=transformers model.pooling=first to use it")
    if kind not in FIRST_LAYERS:
        raise UnfitHeadError(
            f"the classifier of model_type {kind} is none of {', '.join(FIRST_LAYERS)}; train the head"
        )
    name, activation = FIRST_LAYERS[kind]
    first = _layer(tensors, name)
    if first is None:
        raise UnfitHeadError(f"the weights have a classifier, but not its layer {name}; train the head")
    pooling = getattr(model.backbone, "pooling", None)
    if ends_in_sigmoid(config) and not labels:
        raise UnfitHeadError("its score is a sigmoid; set model=hf head=transformers model.pooling=first to use it")
    if (linear := _as_one_layer(first, whole, activation)) is not None:
        if not isinstance(model.head, LinearHead) or pooling != "first":
            raise UnfitHeadError(
                "it is one linear layer over the first token; set head=linear model.pooling=first to use it"
            )
        return _fitted(linear, config, labels, scale).named("head.linear")
    if isinstance(model.head, MlpHead) and model.head.activation == activation and pooling == "first":
        return {**first.named("head.dense"), **last.named("head.linear")}
    if isinstance(model.head, LinearHead) and pooling == "pooler" and kind in ("bert", "ernie", "albert"):
        # The pooler is a tensor of the encoder, which is loaded with it.
        return last.named("head.linear")
    remedy = f"head=mlp head.activation={activation}" if config_of(model.backbone) is None else "head=transformers"
    raise UnfitHeadError(
        f"it has two layers with {activation} between them, over the first token; set {remedy} model.pooling=first to "
        "use it"
    )


def in_order(model: TaskModel, tensors: Weights, theirs: Sequence[str], ours: Sequence[str]) -> Weights:
    """Return the tensors of a former run with the rows of its head, for the labels `theirs`, in the order of `ours`."""
    rows, found = [theirs.index(label) for label in ours], dict(tensors)
    for name in (f"{last_of(model)}.weight", f"{last_of(model)}.bias", "head.start_C", "head.end_C"):
        if name in found:
            found[name] = found[name][rows]
    if (of_crf := "head.transitions_CC") in found:
        found[of_crf] = found[of_crf][rows][:, rows]
    return found


def rescaled(model: TaskModel, tensors: Weights, theirs: Scale, ours: Scale) -> Weights:
    """Return the tensors of a former run that predicts numbers, for another scale of numbers."""
    name = last_of(model)
    if f"{name}.weight" not in tensors or getattr(model.head, "scale", None) is not None:
        return tensors
    last = Layer.of(tensors[f"{name}.weight"], tensors[f"{name}.bias"])
    return {**tensors, **last.scaled(theirs[1] / ours[1], (theirs[0] - ours[0]) / ours[1]).named(name)}


def last_of(model: TaskModel) -> str:
    """Return the name of the layer of a head that has a row for each output."""
    return f"head.{getattr(model.head, 'last', 'linear')}"


def _for_transformers(
    model: TaskModel, tensors: Weights, config: ConfigLike, labels: Sequence[str], scale: Scale | None
) -> Weights:
    head = model.head
    assert isinstance(head, TransformersHead)
    found, name = {f"head.{place}": value for place, value in head.tensors_of(tensors).items()}, last_of(model)
    weight, bias = found.pop(f"{name}.weight", None), found.pop(f"{name}.bias", None)
    if weight is None:
        return found
    pooling = getattr(head.theirs.config, "classifier_pooling", None)
    try:
        if (wanted := config.get("classifier_pooling", pooling)) != pooling:
            known = next((ours for ours, theirs in POOLINGS.items() if theirs == wanted), wanted)
            raise UnfitHeadError(f"it reads a text otherwise; set model.pooling={known} to use it")
        if not labels and ends_in_sigmoid(config) and not head.is_sigmoid:
            raise UnfitHeadError("it gives numbers from 0 to 1, but those of the data are others; scale them to 0 to 1")
        last = _fitted(Layer.of(weight, bias), config, labels, scale if head.scale is None else (0.0, 1.0))
        return found | {
            place: value for place, value in last.named(name).items() if bias is not None or "bias" not in place
        }
    except UnfitHeadError as unfit:
        unfit.others = found
        raise


def _for_modern(
    model: TaskModel, head: ModernHead, tensors: Weights, config: ConfigLike, labels: Sequence[str]
) -> Weights:
    """Return the layers of ModernBERT's head below the last one."""
    reads = config.get("classifier_pooling", "cls")
    if "head.dense.weight" not in tensors:
        raise UnfitHeadError("the weights have a classifier, but not its layer head.dense; train the head")
    if model.layout != "units" and reads != POOLINGS.get(getattr(model.backbone, "pooling", "")):
        known = next((ours for ours, theirs in POOLINGS.items() if theirs == reads), reads)
        raise UnfitHeadError(f"it reads a text otherwise; set model.pooling={known} to use it")
    if ends_in_sigmoid(config) and not labels:
        raise UnfitHeadError("its score is a sigmoid; set model=hf head=transformers model.pooling=first to use it")
    return {f"head.{name}": tensors[name] for name in head.state_dict() if name in tensors and "head." in name}


def _fitted(last: Layer, config: ConfigLike, labels: Sequence[str], scale: Scale | None) -> Layer:
    """Return the last layer with the outputs of the run. Raises UnfitHeadError if it has others."""
    outputs = len(last.weight)
    if not labels:
        if outputs != 1 or scale is None:
            raise UnfitHeadError(f"it has {outputs} classes, but the task predicts a number; train the head")
        return last.scaled(1 / scale[1], -scale[0] / scale[1])
    if outputs == 1 and len(labels) == 2:
        if sorted(labels) != ["0", "1"]:
            raise UnfitHeadError(
                f"it gives one score, but the data has the labels {_some(labels)}; write them as 0 and 1, or set "
                "task=regress for numbers"
            )
        # softmax([0, z]) is sigmoid(z).
        both = Layer(F.pad(last.weight, (0, 0, 1, 0)), F.pad(last.bias, (1, 0)))
        return both.rows([int(label) for label in labels])
    return last.rows(_rows(config, outputs, labels))


def _last_layer(tensors: Weights) -> Layer | None:
    for weight, bias in (*LAST_LAYERS, TENSORFLOW_LAYER):
        if weight in tensors and bias in tensors and tensors[weight].ndim == 2:
            return Layer.of(tensors[weight], tensors[bias])
    return None


def _layer(tensors: Weights, name: str) -> Layer | None:
    """Return a layer by its name, with or without the prefix of the encoder, such as bert."""
    for found in tensors:
        if found == f"{name}.weight" or re.fullmatch(rf"\w+\.{re.escape(name)}\.weight", found):
            bias = tensors.get(f"{found.removesuffix('weight')}bias")
            return None if bias is None else Layer.of(tensors[found], bias)
    return None


def _as_one_layer(first: Layer, last: Layer, activation: Activation) -> Layer | None:
    """Return the linear layer that `nlu.export` wrote as two, since f(z) - f(-z) = z for gelu and relu; else None.

    The first layer then has the rows z and -z of each output.
    """
    outputs, width = last.weight.shape
    if activation == "tanh" or 2 * outputs > width or last.bias.any():
        return None
    plus_C, minus_C = last.weight.argmax(1), last.weight.argmin(1)
    wanted_CD = torch.zeros_like(last.weight)
    wanted_CD[torch.arange(outputs), plus_C], wanted_CD[torch.arange(outputs), minus_C] = 1.0, -1.0
    is_ours = (
        torch.equal(last.weight, wanted_CD)
        and torch.equal(first.weight[plus_C], -first.weight[minus_C])
        and torch.equal(first.bias[plus_C], -first.bias[minus_C])
    )
    return first.rows(plus_C.tolist()) if is_ours else None


def _rows(config: ConfigLike, outputs: int, labels: Sequence[str]) -> list[int]:
    """Return the row of their last layer for each of the data's classes."""
    if outputs != len(labels):
        raise UnfitHeadError(f"it has {outputs} classes, but the data has {len(labels)}; train the head")
    named = config.get("id2label")
    known = named if isinstance(named, dict) else {}
    names = [str(known.get(str(row), f"LABEL_{row}")) for row in range(outputs)]
    numbers = [str(row) for row in range(outputs)]
    # id2label maps numbers to names. Data with the labels 0, 1, ... mean these numbers, unless the names are the same
    # numbers: an export has the names of its run, whose order may be another one.
    are_numbered = sorted(numbers) == sorted(labels) or all(NAMELESS.fullmatch(name) for name in names)
    if sorted(names) != sorted(labels) and are_numbered:
        names = numbers
    if sorted(names) != sorted(labels):
        raise UnfitHeadError(
            f"its classes are {_some(names)}, but those of the data are {_some(labels)}; write the data's names into "
            "id2label of the weights' config.json, in their order, or train the head"
        )
    return [names.index(label) for label in labels]


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:4]) + (", ..." if len(names) > 4 else "")
