"""Which layers of pretrained weights a smaller encoder starts from (`model.keep_layers`).

This module imports nothing heavy: validation uses it before torch is imported.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from nlu.config.errors import UserError
from nlu.config.words import counted

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


def kept_layers_problems(model: Mapping[str, Any], count: int | None) -> Iterator[str]:
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
