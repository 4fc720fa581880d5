"""LoRA in folders of peft (https://github.com/huggingface/peft): the names of layers, and matrices to begin with.

Axes: I input features, O output features, R the rank.
"""

import json
import logging
import re
from collections.abc import Mapping
from typing import Any

import torch

from nlu.config.errors import UserError
from nlu.storage.resources import fetch
from nlu.storage.tensors import load_tensors

log = logging.getLogger(__name__)

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
PREFIX = "base_model.model."
OF_LORA = re.compile(rf"{re.escape(PREFIX)}(.+)\.lora_([AB])(?:\.default)?\.weight")
UNKNOWN = ("use_dora", "alpha_pattern", "lora_bias", "fan_in_fan_out")
"""settings with which the matrices mean something else than alpha / r B A"""


def names_in_peft(name: str) -> list[str]:
    """Return the names of a layer of the encoder in transformers; three for one of queries, keys and values."""
    name = name.removeprefix("backbone.").removeprefix("inner.")
    before, is_joined, _ = name.rpartition("qkv")
    return [f"{before}{part}" for part in ("query", "key", "value")] if is_joined else [name]


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
