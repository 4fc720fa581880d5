"""The rules of encoders, which validation calls with the whole configuration before anything heavy is imported.

They include which layers of pretrained weights a smaller encoder starts from (`model.keep_layers`).
"""

from collections.abc import Iterator, Sequence

from nlu.config.checks.between_groups import number_of_weights
from nlu.config.errors import UserError
from nlu.config.sentences import counted
from nlu.config.targets import TARGET
from nlu.config.types import ConfigLike

KEY = "model.keep_layers"


def layers_kept(asked: Sequence[int] | int, count: int) -> list[int]:
    """Return the numbers, from 0, of the layers that are kept of `count` layers, in ascending order.

    A number of layers is spread evenly from the first layer to the last one, rounded to the nearest layer: 6 of 12 are
    0, 2, 4, 7, 9 and 11, the layers that DistilBERT (Sanh et al. 2019, https://arxiv.org/abs/1910.01108) was
    initialized with. A list names layers, -1 for the last one. Raises UserError for layers that do not exist.
    """
    if isinstance(asked, int):
        if asked > count:
            raise UserError(f"{KEY} is {asked}, but the weights have {counted(count, 'layer')}; keep at most {count}")
        # Integers, since a rounded float would depend on how the platform rounds a half.
        gaps = max(1, asked - 1)
        return [(2 * number * (count - 1) + gaps) // (2 * gaps) for number in range(asked)]
    if outside := [number for number in asked if not -count <= number < count]:
        raise UserError(
            f"{KEY} has {outside[0]}, but the weights have {counted(count, 'layer')}; name layers from "
            f"{-count} to {count - 1}"
        )
    found = [number % count for number in asked]
    if found != sorted(set(found)):
        ascending = ",".join(map(str, sorted(set(found))))
        raise UserError(
            f"{KEY} is {list(asked)}, whose layers are not in ascending order, each once; write {KEY}=[{ascending}]"
        )
    return found


def number_kept(asked: Sequence[int] | int) -> int:
    """Return how many layers are kept."""
    return asked if isinstance(asked, int) else len(asked)


def kept_layers_problems(model: ConfigLike, count: int | None) -> Iterator[str]:
    """Yield why `keep_layers` does not fit other keys of `model`, or weights with `count` layers (None: unknown)."""
    asked = model["keep_layers"]
    if model.get("pretrained") is None:
        yield (
            f"{KEY} is {asked}, but model.pretrained is null, so there are none to keep; name weights with "
            f"model.pretrained, or set model.layers and {KEY}=null"
        )
        return
    if not asked:
        yield f"{KEY} is [], but must keep at least one layer; name some, or set {KEY}=null for all"
        return
    if (layers := model.get("layers")) is not None and layers != number_kept(asked):
        yield f"model.layers is {layers}, but {KEY} keeps {number_kept(asked)}; set model.layers=null"
    if model.get("layer_groups") is not None:
        yield f"model.layer_groups is {model['layer_groups']}, but {KEY} keeps single layers; set one of them to null"
    if count is not None:
        try:
            layers_kept(asked, count)
        except UserError as error:
            yield from error.problems


def encoder_problems(config: ConfigLike, task: ConfigLike) -> Iterator[str]:
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


def head_of_transformers_problems(config: ConfigLike, task: ConfigLike) -> Iterator[str]:
    """Yield why an encoder of ours has no head of transformers."""
    if config["model"][TARGET].startswith("nlu.") and "random_weights" not in config["model"]:
        yield (
            "head is transformers, but only model=hf has the heads of transformers; set head=auto, or model=hf with "
            "model.pretrained"
        )


def trim_problems(model: ConfigLike, tokenizer: ConfigLike) -> Iterator[str]:
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
