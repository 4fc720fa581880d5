"""The rules of encoders, which validation calls with the whole configuration before anything heavy is imported."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from nlu.config.checks.rules import number_of_weights
from nlu.config.targets import TARGET
from nlu.config.words import counted
from nlu.models.kept_layers import kept_layers_problems, number_kept


def encoder_problems(config: Mapping[str, Any], task: Mapping[str, Any]) -> Iterator[str]:
    """Yield each broken rule of `model` as key, value, rule and remedy. A derived class may lack any of the keys."""
    model = config["model"]
    if model.get("trim_vocab"):
        yield from trim_problems(model, config["tokenizer"])
    count = number_of_weights(model.get("pretrained"), "num_hidden_layers")
    if (kept := model.get("keep_layers")) is not None:
        yield from kept_layers_problems(model, count)
        count = number_kept(kept)
    if "pooled_layers" in model:
        count = model.get("layers") or count
        yield from pooled_layers_problems(model.get("pooling") or "null", model["pooled_layers"], count)


def pair_problems(config: Mapping[str, Any], task: Mapping[str, Any]) -> Iterator[str]:
    """Yield why the task does not fit an encoder of pairs, if its class shows that it reads none."""
    layouts = task.get("layouts")
    if layouts is not None and "pair" not in layouts:
        name = config["task"][TARGET].rpartition(".")[2].lower()
        yield (
            f"task={name} reads no pairs in one sequence, but model=re2 compares the two texts of a pair; set "
            "task=match, or another model, such as model=textcnn"
        )


def head_of_transformers_problems(config: Mapping[str, Any], task: Mapping[str, Any]) -> Iterator[str]:
    """Yield why an encoder of ours has no head of transformers."""
    if config["model"][TARGET].startswith("nlu.") and "random_weights" not in config["model"]:
        yield (
            "head is transformers, but only model=hf has the heads of transformers; set head=auto, or model=hf with "
            "model.pretrained"
        )


def trim_problems(model: Mapping[str, Any], tokenizer: Mapping[str, Any]) -> Iterator[str]:
    """Yield why the vocabulary of `model.pretrained` cannot be trimmed."""
    if model.get("pretrained") is None:
        yield (
            "model.trim_vocab is true, but model.pretrained is null, so the vocabulary is built from the training "
            "rows; set model.trim_vocab=false"
        )
    elif tokenizer.get("vocab") is not None:
        yield (
            f"model.trim_vocab is true, but tokenizer.vocab is {tokenizer['vocab']}; set tokenizer.vocab=null, so that "
            "the tokenizer is that of the weights, or model.trim_vocab=false"
        )


def pooled_layers_problems(pooling: str, pooled: Sequence[int] | None, layers: int | None) -> Iterator[str]:
    """Yield why `model.pooled_layers` does not fit `model.pooling`, or an encoder with so many layers, if known."""
    if pooling != "layers":
        if pooled is not None:
            yield (
                f"model.pooled_layers is {list(pooled)}, but model.pooling is {pooling}; set model.pooling=layers, or "
                "model.pooled_layers=null"
            )
        return
    if not pooled:
        last = [-number for number in range(1, 1 + min(4, layers or 4))]
        yield (
            f"model.pooling is layers, but model.pooled_layers is {pooled if pooled is None else []}; name layers from "
            f"the last one, -1, or from the first one, 0: 'model.pooled_layers={last}'".replace("None", "null")
        )
        return
    if layers is None:
        if len(set(pooled)) < len(pooled):
            yield f"model.pooled_layers is {list(pooled)}, which names a layer twice; name each once"
        return
    if outside := [number for number in pooled if not -layers <= number < layers]:
        yield (
            f"model.pooled_layers has {outside[0]}, but the encoder has {counted(layers, 'layer')}; "
            f"name layers from {-layers} to {layers - 1}"
        )
    elif len({number % layers for number in pooled}) < len(pooled):
        yield f"model.pooled_layers is {list(pooled)}, which names one of the {layers} layers twice; name each once"
