"""What sentence-transformers computes after its encoder, from modules.json in a folder of weights; versions 1 to 6.

Axes: S sequences, D width.
"""

import logging
import re
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from nlu.config.errors import UserError
from nlu.models.formats.pretrained import Pretrained, open_pretrained
from nlu.models.formats.weights_config import MODULES, read_config

log = logging.getLogger(__name__)

KEY = "after_encoder"
"""the name in config.json of a run, whose folder has no modules.json"""
POOLINGS = {"cls": "first", "mean": "mean", "max": "max", "lasttoken": "last"}
"""model.pooling by the name that sentence-transformers has for it"""
VECTOR = "sentence_embedding"
"""the name of the vector of a text between modules"""
DENSE = {"in_features": None, "out_features": None, "bias": True, "activation_function": "Tanh"}
"""the settings of a linear layer over vectors of texts, and their defaults"""
ACTIVATIONS = ("Identity", "Tanh", "GELU", "ReLU", "SiLU", "Sigmoid")


@dataclass(frozen=True)
class AfterEncoder:
    """How the vectors of tokens become that of a text."""

    pooling: str
    pooled_layers: list[int] | None = None
    dense: list[dict[str, Any]] = field(default_factory=list)
    """the settings of each linear layer, by the names of DENSE, and its `folder`"""
    normalizes: bool = False
    strange: str | None = None
    """a part that is not computed here; None = all is"""

    def __str__(self) -> str:
        dense = [
            f"Dense {one['in_features']} to {one['out_features']} ({one['activation_function']})" for one in self.dense
        ]
        return ", ".join([f"model.pooling={self.pooling}", *dense, *["Normalize"] * self.normalizes])


def after_encoder(source: Pretrained | None, pooling: str | None, pooled_layers: list[int] | None) -> AfterEncoder:
    """Return what follows the encoder: by the key `model.pooling` or, if it is null, by the weights.

    Weights of a run have what it had, those of sentence-transformers their modules, others the first token, or the mean
    where their configuration says so of classifiers, as ModernBERT's does. Raises CheckpointError for modules that are
    damaged.
    """
    if pooling is not None or source is None:
        return AfterEncoder(pooling or "first", pooled_layers)
    if written := source.config.get(KEY):
        return AfterEncoder(**{**written, "pooled_layers": pooled_layers or written["pooled_layers"]})
    of_classifier = "mean" if source.config.get("classifier_pooling") == "mean" else "first"
    if not is_sentence_folder(source):
        return AfterEncoder(of_classifier, pooled_layers)
    return _of_folder(_root(source), of_classifier)


def first_module(source: Pretrained) -> str | None:
    """Return the class of the first module of a folder of sentence-transformers; None for another folder."""
    return next((one["type"].rpartition(".")[2] for one in read_config(_root(source), MODULES)), None)


def require_computed(after: AfterEncoder, *, by: str = "hf") -> None:
    """Raise UserError if the vector of a text has a part that its encoder does not compute.

    `by`: the choice of the encoder, of which native ones compute less than model=hf.
    """
    strange, remedy = after.strange, "set"
    if strange is None and by != "hf" and after.dense:
        strange = after.dense[0]["folder"]
        remedy = "set model=hf, which does, or"
    if strange is not None:
        raise UserError(
            f"model.pretrained is a folder of sentence-transformers, whose {MODULES} has {strange}, which "
            f"model={by} does not compute; {remedy} model.pooling=mean, or another one, which "
            "leaves out what follows the encoder"
        )


def finished(vectors_SD: Tensor, after: AfterEncoder, layout: str) -> Tensor:
    """Return vectors of texts with length 1 where texts are compared and the weights say so; (S, D)."""
    # Other heads would learn slowly from such short vectors.
    return F.normalize(vectors_SD.float(), dim=1) if after.normalizes and layout == "sides" else vectors_SD


def dense_layers(after: AfterEncoder) -> nn.Sequential | None:
    """Return the linear layers with random weights; None if there are none."""
    made = [
        nn.Sequential(
            nn.Linear(one["in_features"], one["out_features"], one["bias"]), getattr(nn, one["activation_function"])()
        )
        for one in after.dense
    ]
    return nn.Sequential(*made) if made else None


def dense_tensors(source: Pretrained, after: AfterEncoder) -> dict[str, Tensor]:
    """Return the weights of `dense_layers` from the folder."""
    found: dict[str, Tensor] = {}
    for number, one in enumerate(after.dense):
        layer = open_pretrained(str(_root(source) / one["folder"]), source.key)
        found |= {f"{number}.0.{name.removeprefix('linear.')}": value for name, value in layer.tensors().items()}
    return found


def say_what_is_used(source: Pretrained, after: AfterEncoder, pooling: str | None, max_len: int) -> None:
    """Log what is taken from a folder of sentence-transformers, and what is not with the key that settles it.

    `pooling` is the key, `max_len` that of the run.
    """
    if not is_sentence_folder(source):
        return
    if pooling is None:
        _say(logging.INFO, f"sentence-transformers folder {source.reference}: vectors of texts by {after}")
        if after.normalizes:
            _say(logging.INFO, "  Normalize is computed where two texts are encoded apart, as by task=siamese")
    elif (theirs := after_encoder(source, None, None)).dense or theirs.strange or theirs.pooling != pooling:
        _say(
            logging.INFO,
            f"sentence-transformers folder {source.reference}: model.pooling is {pooling}, so its modules "
            f"({theirs.strange or theirs}) are not used; model.pooling=null takes them",
        )
    if (limit := longest_of(source)) is not None and limit != max_len:
        level = logging.WARNING if limit < max_len else logging.INFO
        _say(level, f"  texts are cut to data.max_len={max_len}, there to {limit} tokens; set data.max_len={limit}")
    prompts, default = prompts_of(source)
    if prompts:
        level = logging.WARNING if default in prompts else logging.INFO
        shown = ", ".join(f"{name} {text!r}" for name, text in prompts.items())
        _say(level, f"  its prompts are put before texts only where data.prompts has them ({shown})")


def is_sentence_folder(source: Pretrained) -> bool:
    """Return whether weights have the modules of sentence-transformers beside them."""
    return not source.is_run and (_root(source) / MODULES).is_file()


def longest_of(source: Pretrained) -> int | None:
    """Return the most tokens of a text that a folder of weights names, None if it names none."""
    limit = read_config(source.folder, "sentence_bert_config.json").get("max_seq_length")
    limit = limit or read_config(source.folder, "tokenizer_config.json").get("model_max_length")
    return limit if isinstance(limit, int) and limit < 10**6 else None


def prompts_of(source: Pretrained) -> tuple[dict[str, str], str | None]:
    """Return the prompts of a folder of sentence-transformers by name, and the name of that of every text, if any."""
    config = read_config(_root(source), "config_sentence_transformers.json")
    prompts = {name: text for name, text in (config.get("prompts") or {}).items() if text}
    return prompts, config.get("default_prompt_name")


@cache
def _say(level: int, message: str) -> None:
    """Log a message once, and not for every fold of a run."""
    log.log(level, "%s", message)


def _root(source: Pretrained) -> Path:
    """Return the folder that may have modules; the encoder may be in a folder of its own in it."""
    return source.folder.parent if source.folder.name.startswith("0_") else source.folder


def _of_folder(root: Path, pooling: str) -> AfterEncoder:
    """Return what the modules of a folder compute; `pooling` is that of a folder without a module for it."""
    dense, normalizes = [], False
    for place, module in enumerate(read_config(root, MODULES)):
        kind, folder = module["type"].rpartition(".")[2], module["path"]
        config = read_config(root / folder, "config.json")
        strange = f"{folder or kind} ({kind})"
        if kind in ("Pooling", "Dense") and not config:
            return AfterEncoder(pooling, strange=f"{strange}, of which the folder lacks config.json")
        if kind == "Pooling":
            # Older versions have a key for each pooling.
            old = [key for key, value in config.items() if value is True and key.startswith("pooling_mode_")]
            names = config.get("pooling_mode") or [re.sub("pooling_mode_|_tokens?$", "", key) for key in old] or "mean"
            names = [names] if isinstance(names, str) else names
            if len(names) > 1 or names[0] not in POOLINGS:
                return AfterEncoder("first", strange=f"{folder} (pooling by {' and '.join(names)})")
            pooling = POOLINGS[names[0]]
        elif kind == "Dense" and not normalizes:
            layer = {**DENSE, **{name: value for name, value in config.items() if name in DENSE}, "folder": folder}
            layer["activation_function"] = activation = layer["activation_function"].rpartition(".")[2]
            if config.get("module_input_name", VECTOR) != VECTOR or config.get("use_residual"):
                return AfterEncoder(pooling, strange=strange)
            if activation not in ACTIVATIONS:
                return AfterEncoder(pooling, strange=f"{strange} with {activation}")
            dense.append(layer)
        elif kind == "Normalize":
            normalizes = True
        elif not (kind == "Transformer" and place == 0 or kind == "Dropout"):
            return AfterEncoder(pooling, strange=strange)
    return AfterEncoder(pooling, None, dense, normalizes)
