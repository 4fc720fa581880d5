"""Pretrained weights of which only some layers are read, so that a smaller encoder starts from them.

Sanh et al. 2019 (DistilBERT, https://arxiv.org/abs/1910.01108), section 3, "Student initialization". The vectors of
words, positions and segments, and all that is above the layers, are kept.
"""

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from nlu.config.errors import CheckpointError
from nlu.models.formats.pretrained import Pretrained
from nlu.models.formats.weights_config import bert_config
from nlu.models.kept_layers import KEY, layers_kept
from nlu.models.pruned_heads import PRUNED_HEADS, as_written, pruned_heads_of

log = logging.getLogger(__name__)

LAYER = re.compile(r"(?:^|(?<=\.))layer\.(\d+)(?=\.)")
"""the number of a layer in the names of BERT and its family, of DistilBERT, and of runs with a native encoder"""


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
