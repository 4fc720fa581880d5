"""The weights of a smaller encoder: those of some layers only, and those of layers that lack some attention heads.

Layers: Sanh et al. 2019 (DistilBERT, https://arxiv.org/abs/1910.01108), section 3, "Student initialization". The
vectors of words, positions and segments, and all that is above the layers, are kept.

Heads: a layer without some of its heads has smaller matrices: rows of queries, keys and values, and columns of the
projection after attention (Michel et al. 2019, https://arxiv.org/abs/1905.10650). Heads keep the numbers that they had
before; `pruned_heads` in config.json, {layer: [head, ...]}, names those that are gone, as transformers up to version 4
does. Zeros can stand in the place of missing heads.

Axes: D width of the encoder, E width of a head.
"""

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from nlu.config.errors import CheckpointError
from nlu.config.types import ConfigLike
from nlu.models.formats.pretrained import Pretrained
from nlu.models.formats.weights_config import bert_config
from nlu.models.model_rules import KEY, layers_kept

log = logging.getLogger(__name__)

PRUNED_HEADS = "pruned_heads"
Heads = dict[int, list[int]]
"""heads by layer; layers without an entry lack none"""

LAYER = re.compile(r"(?:^|(?<=\.))layer\.(\d+)(?=\.)")
"""the number of a layer in the names of BERT and its family, of DistilBERT, and of runs with a native encoder"""


def pruned_heads_of(config: ConfigLike) -> Heads:
    """Return the heads that are gone by the configuration of weights, ascending in each layer."""
    found = {int(layer): sorted(map(int, heads)) for layer, heads in (config.get(PRUNED_HEADS) or {}).items()}
    return {layer: heads for layer, heads in sorted(found.items()) if heads}


def as_written(pruned: Mapping[int, Sequence[int]]) -> dict[str, list[int]]:
    """Return `pruned_heads` for a config.json, whose keys are texts."""
    return {str(layer): list(heads) for layer, heads in sorted(pruned.items())}


def kept_heads(pruned: Mapping[int, Sequence[int]], layer: int, heads: int) -> list[int]:
    """Return the numbers of the heads that a layer has, of originally `heads`."""
    gone = set(pruned.get(layer, ()))
    return [head for head in range(heads) if head not in gone]


def wrong_heads(pruned: Mapping[int, Sequence[int]], layers: int, heads: int) -> Iterator[str]:
    """Yield why an encoder of this size cannot lack these heads."""
    for layer, gone in pruned.items():
        if not 0 <= layer < layers or not all(0 <= head < heads for head in gone):
            yield (
                f"{PRUNED_HEADS} names the heads {list(gone)} of layer {layer}, but there are {layers} layers of "
                f"{heads} heads"
            )
        elif len(set(gone)) >= heads:
            yield f"{PRUNED_HEADS} names all heads of layer {layer}, which keeps at least one"


def without_heads(
    tensors: Mapping[str, Tensor],
    layers: int,
    heads: int,
    before: Mapping[int, Sequence[int]],
    after: Mapping[int, Sequence[int]],
) -> dict[str, Tensor]:
    """Return the weights of a model that lacks the heads `before`, for one that also lacks the heads `after`."""
    found = dict(tensors)
    for layer in range(layers):
        there, stay = (kept_heads(pruned, layer, heads) for pruned in (before, after))
        if there == stay:
            continue
        place = f"encoder.layer.{layer}.attention."
        places = [there.index(head) for head in stay]
        for name, value in tensors.items():
            _, is_of_layer, rest = f".{name}".rpartition(f".{place}")
            if is_of_layer and rest.startswith("self.qkv."):
                parts = [of_heads(part, places, len(there)) for part in value.chunk(3)]
                found[name] = torch.cat(parts)
            elif is_of_layer and rest == "output.dense.weight":
                found[name] = of_heads(value.t(), places, len(there)).t().contiguous()
    return found


def with_zeros(rows: Tensor, kept: Sequence[int], heads: int) -> Tensor:
    """Return rows of kept heads (features first) with rows of zeros for the other ones of `heads`.

    With zeros for queries, keys, values and the columns of the projection, a head adds nothing.
    """
    parts = rows.unflatten(0, (len(kept), -1))
    whole = parts.new_zeros(heads, *parts.shape[1:])
    whole[list(kept)] = parts
    return whole.flatten(0, 1)


def of_heads(rows: Tensor, places: Sequence[int], heads: int) -> Tensor:
    """Return the rows of the heads at these places, of the rows (heads * E, ...) of all heads."""
    return rows.unflatten(0, (heads, -1))[list(places)].flatten(0, 1)


@dataclass(frozen=True)
class SomeLayers(Pretrained):
    """Weights with a part of their layers; `config` has their number."""

    layers: tuple[int, ...] = ()

    def tensors(self) -> dict[str, Tensor]:
        return renumbered(super().tensors(), self.layers)


def with_layers(source: Pretrained, asked: Sequence[int] | int) -> SomeLayers:
    """Return the weights with only the layers that `asked` names, as in `layers_kept`, numbered from 0.

    Raises UserError for layers that do not exist, and CheckpointError for weights whose layers are shared or unknown.
    """
    config = bert_config(source.config)
    count = config.get("num_hidden_layers")
    what = f"{KEY} is {asked}, but the weights {source.reference!r}"
    if not isinstance(count, int):
        raise CheckpointError(
            f"{what} lack a configuration with num_hidden_layers; put their config.json or bert_config.json beside "
            f"them, or set {KEY}=null"
        )
    groups = config.get("num_hidden_groups")
    if source.config.get("model_type") == "albert" or groups not in (None, count):
        raise CheckpointError(
            f"{what} share {'one layer' if groups in (None, 1) else f'{groups} layers'} among {count}, so none can be "
            f"left out; set {KEY}=null"
        )
    kept = layers_kept(asked, count)
    log.info("pretrained %s: layers %s of %d are kept", source.reference, ", ".join(map(str, kept)), count)
    # DistilBERT has its own name for the number.
    sizes: dict[str, object] = {name: len(kept) for name in ("num_hidden_layers", "n_layers") if name in source.config}
    if groups is not None:
        sizes["num_hidden_groups"] = len(kept)
    pruned = pruned_heads_of(config)
    if pruned:
        of_kept = {place: pruned[number] for place, number in enumerate(kept) if number in pruned}
        sizes = {**sizes, PRUNED_HEADS: as_written(of_kept)}
    return SomeLayers(
        source.reference, source.weights, {**source.config, **sizes}, source.key, source.description, layers=tuple(kept)
    )


def renumbered(tensors: Mapping[str, Tensor], kept: Sequence[int]) -> dict[str, Tensor]:
    """Return the tensors without those of other layers; the n-th kept layer has the number n, from 0."""
    new = {str(number): str(place) for place, number in enumerate(kept)}
    found = {}
    for name, value in tensors.items():
        if (match := LAYER.search(name)) is None:
            found[name] = value
        elif match[1] in new:
            found[LAYER.sub(f"layer.{new[match[1]]}", name)] = value
    return found
