"""LoRA: adds a product of two small matrices to linear layers of a frozen encoder.

Hu et al. 2021 (https://arxiv.org/abs/2106.09685), section 4.1: W x + (alpha / r) B A x, where A has r rows and B starts
at 0. Only A, B, the head and what model.pooling trains are trained. Matrices may begin as those of a folder of peft
(https://github.com/huggingface/peft).

Axes: I input features, O output features, R the rank.
"""

import fnmatch
import json
import logging
import math
import re
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nlu.config.errors import UserError
from nlu.config.keys import takes
from nlu.models import keys as schemas
from nlu.models.layers.dropout import Dropout
from nlu.models.layers.exact_linear import Linear
from nlu.models.task_model import TaskModel
from nlu.storage.resources import fetch
from nlu.storage.tensors import load_tensors

log = logging.getLogger(__name__)

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
PREFIX = "base_model.model."
OF_LORA = re.compile(rf"{re.escape(PREFIX)}(.+)\.lora_([AB])(?:\.default)?\.weight")
UNKNOWN = ("use_dora", "alpha_pattern", "lora_bias", "fan_in_fan_out")
"""settings with which the matrices mean something else than alpha / r B A"""

QUERIES_AND_VALUES = re.compile(r"(w?qkv|query|value|[qv])(_|$)", re.IGNORECASE)
"""the names of the layers that the paper adapts, in nlu and in transformers; some layers also compute keys"""
OWN_MATRICES = (".down.weight", ".up.weight")
"""how the names of the matrices of an adapted layer end"""
OWN_PARTS = ("pooling_module", "dense")
"""what an encoder has above its layers (`model.pooling`)"""


@takes(schemas.Lora)
class Lora:
    """Low-rank adapters on linear layers of the encoder."""

    def __init__(self, keys: schemas.Lora):
        self.rank, self.scale, self.dropout = keys.rank, keys.alpha / keys.rank, keys.dropout
        self.targets, self.pretrained = keys.targets, keys.pretrained

    def apply(self, model: TaskModel) -> None:
        """Freeze the encoder and wrap layers in adapters. Raises UserError for a pattern that matches no layer."""
        linears = {
            name: module
            for name, module in model.named_modules()
            if name.startswith("backbone.") and isinstance(module, nn.Linear) and name.split(".")[1] not in OWN_PARTS
        }
        # Before layers are wrapped, so that the adapters' own weights are trained.
        model.get_submodule("backbone").requires_grad_(False)
        for name, module in model.named_modules():
            if name == "backbone.pooling_module":
                # Its weights are random, like those of a head.
                module.requires_grad_(True)
        chosen = self._chosen(list(linears), model)
        adapted = {name: LoraLinear(linears[name], self.rank, self.scale, self.dropout) for name in chosen}
        for name, layer in adapted.items():
            parent, _, last = name.rpartition(".")
            # Not setattr: the parent may be a ModuleDict.
            model.get_submodule(parent)._modules[last] = layer
        if self.pretrained is not None:
            fill(adapted, self.pretrained)
        log.info("adapter: %d of %d linear layers of the encoder, e.g. %s", len(chosen), len(linears), chosen[0])

    def merged(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        found = {}
        for name, value in tensors.items():
            layer, is_base, last = name.rpartition(".base.")
            if is_base and f"{layer}.down.weight" in tensors:
                # The adapter adds nothing to a bias.
                if last == "weight":
                    value = value + self.scale * tensors[f"{layer}.up.weight"] @ tensors[f"{layer}.down.weight"]
                found[f"{layer}.{last}"] = value
            elif not _is_own(name, tensors):
                found[name] = value
        return found

    def _chosen(self, names: list[str], model: TaskModel) -> list[str]:
        """Return the names of the adapted layers, in order."""
        if self.targets is None:
            attending = [name for name, module in model.named_modules() if "attention" in type(module).__name__.lower()]
            chosen = (
                {name for name in names if QUERIES_AND_VALUES.match(name.rpartition(".")[2])}
                or {name for name in names if name.startswith(tuple(f"{each}." for each in attending))}
                or set(names)
            )
        else:
            chosen = set()
            for pattern in self.targets:
                if not (matching := fnmatch.filter(names, pattern)):
                    raise UserError(
                        f"adapter.targets has the pattern {pattern!r}, which matches no linear layer of the encoder; "
                        f"names look like {', '.join(names[:2])}"
                    )
                chosen.update(matching)
        if not names:
            raise UserError(
                "adapter is lora, but the encoder lacks linear layers; leave out adapter=, or choose another model"
            )
        if not chosen:
            raise UserError(
                f"adapter.targets is {self.targets}, which chooses no linear layer of this encoder; set it to patterns "
                f"of names such as {', '.join(names[:2])}"
            )
        return [name for name in names if name in chosen]


def _is_own(name: str, tensors: dict[str, Tensor]) -> bool:
    """Return whether a tensor is one of an adapter's two matrices."""
    layer = name.removesuffix(".down.weight").removesuffix(".up.weight")
    return layer != name and f"{layer}.base.weight" in tensors


class LoraLinear(nn.Module):
    """A frozen linear layer plus a trained product of two matrices."""

    def __init__(self, base: nn.Linear, rank: int, scale: float, dropout: float):
        super().__init__()
        self.base = base
        self.down = WithoutBias(base.in_features, rank)
        self.up = WithoutBias(rank, base.out_features)
        self.dropout, self.scale = Dropout(dropout), scale
        nn.init.kaiming_uniform_(self.down.weight, a=math.sqrt(5))
        # The product is 0 at first, so training starts from the pretrained model.
        nn.init.zeros_(self.up.weight)

    def forward(self, input: Tensor, outputs: slice | None = None) -> Tensor:
        """Return (..., O), or, for a layer of nlu, only the output features `outputs`."""
        found = self.base(input) if outputs is None else self.base(input, outputs)
        return found + self.update(input, outputs).view(found.shape)

    def update(self, input: Tensor, outputs: slice | None = None) -> Tensor:
        """Return what the matrices add for each row, (R, O), or only to the output features `outputs`."""
        kept = self.dropout(input) if input.dim() == 2 else F.dropout(input, self.dropout.probability, self.training)
        # `Linear` takes (rows, features); transformers' layers have padded sequences.
        rows = self.down(kept.reshape(-1, input.shape[-1]))
        return self.scale * (self.up(rows) if outputs is None else self.up(rows, outputs))


class WithoutBias(Linear):
    """`Linear` with a bias that stays 0."""

    def __init__(self, in_features: int, out_features: int):
        super().__init__(in_features, out_features)
        del self.bias
        # `Linear` reads a bias. It is a buffer so that it is neither trained nor saved.
        self.register_buffer("bias", torch.zeros(out_features), persistent=False)


def names_in_peft(name: str) -> list[str]:
    """Return the names of a layer of the encoder in transformers; three for one of queries, keys and values."""
    name = name.removeprefix("backbone.").removeprefix("inner.")
    before, is_joined, _ = name.rpartition(".qkv")
    return [f"{before}.{part}" for part in ("query", "key", "value")] if is_joined else [name]


def fill(layers: Mapping[str, Any], reference: str) -> None:
    """Set the matrices of `LoraLinear` layers, by name, to those of a folder of peft; other layers stay as they are.

    Raises UserError for another kind of adapter, and if its layers or ranks do not fit.
    """
    folder = fetch(reference, what="adapter.pretrained")
    if not (folder / WEIGHTS).is_file():
        raise UserError(f"adapter.pretrained is {reference}, which lacks {WEIGHTS}; give a folder that peft saved")
    config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    if config.get("peft_type") != "LORA" or (given := [key for key in UNKNOWN if config.get(key)]):
        what = " and ".join(given) if config.get("peft_type") == "LORA" else f"peft_type {config.get('peft_type')}"
        raise UserError(
            f"adapter.pretrained is {reference}, which has {what}; give a folder of plain LoRA, or merge it"
        )
    tensors = load_tensors(folder / WEIGHTS)
    matched = {key: match for key in tensors if (match := OF_LORA.fullmatch(key))}
    theirs = {match[1] + match[2]: tensors[key].float() for key, match in matched.items()}
    for name, layer in layers.items():
        used, down_RI, up_OR = 0, layer.down.weight.data, layer.up.weight.data
        for number, part in enumerate(parts := names_in_peft(name)):
            # A model for a task has the name of its encoder before that of the layer.
            key = next((key for key in theirs if key[:-1] == part or key[:-1].endswith(f".{part}")), None)
            if key is None:
                continue
            a_RI, b_OR = theirs.pop(f"{key[:-1]}A"), theirs.pop(f"{key[:-1]}B")
            rank = len(a_RI)
            # Our own exports repeat the matrix of queries for keys and values.
            if used < rank or not torch.equal(down_RI[used - rank : used], a_RI):
                used += rank
            if used > len(down_RI) or a_RI.shape[1] != down_RI.shape[1]:
                raise UserError(
                    f"adapter.rank is {len(down_RI)}, but {name} needs {len(parts)} x {rank} for the matrices of "
                    f"{reference}, for {a_RI.shape[1]} inputs of {down_RI.shape[1]}; set adapter.rank="
                    f"{len(parts) * rank}, or model.pretrained to the weights that it was trained with"
                )
            scale = config["lora_alpha"] / (rank**0.5 if config.get("use_rslora") else rank)
            outputs = len(up_OR) // len(parts)
            down_RI[used - rank : used] = a_RI
            up_OR[number * outputs : (number + 1) * outputs, used - rank : used] = b_OR * scale / layer.scale
    if theirs:
        left = sorted({f"*.{key[:-1].rpartition('.')[2]}" for key in theirs})
        raise UserError(
            f"adapter.pretrained is {reference}, which also adapts layers that adapter.targets does not choose; add "
            f"{', '.join(left)} to adapter.targets"
        )
    if rest := sorted(set(tensors) - set(matched)):
        log.warning("adapter.pretrained: not used: %s", ", ".join(key.removeprefix(PREFIX) for key in rest[:4]))
