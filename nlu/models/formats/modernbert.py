"""Checkpoints of ModernBERT (Warner et al. 2024, https://arxiv.org/abs/2412.13663), Ettin and mmBERT in transformers'
layout, of version 4 and of version 5.

Version 5 writes `rope_parameters` and `layer_types`, version 4 the values that these come from.
"""

from typing import Any

from torch import Tensor

from nlu.config.types import ConfigLike

KIND = "modernbert"
"""model_type of transformers"""
EVERY = "global_attn_every_n_layers"
THETAS = {"full_attention": "global_rope_theta", "sliding_attention": "local_rope_theta"}
"""the base of the angles of positions, by the attention of a layer"""
DEFAULT_THETAS = {"global_rope_theta": 160_000.0, "local_rope_theta": 10_000.0}
LOCAL, GLOBAL = "sliding_attention", "full_attention"


def modern_config(config: ConfigLike) -> dict[str, Any]:
    """Return a configuration with the keys of version 4; and with its defaults for angles."""
    found = dict(config)
    for kind, theta in THETAS.items():
        of_kind = (config.get("rope_parameters") or {}).get(kind) or {}
        found[theta] = of_kind.get("rope_theta", config.get(theta, DEFAULT_THETAS[theta]))
    if found["local_rope_theta"] is None:
        found["local_rope_theta"] = found["global_rope_theta"]
    if types := config.get("layer_types"):
        found[EVERY] = next((n for n in range(1, len(types) + 1) if types == layer_types(len(types), n)), None)
    return found


def layer_types(layers: int, every: int) -> list[str]:
    """Return the attention of each layer, of which the first and each `every`-th after it are global."""
    return [LOCAL if number % every else GLOBAL for number in range(layers)]


def strange_parts(config: ConfigLike) -> list[str]:
    """Return what a configuration says that this package does not compute, as `key value`."""
    found = []
    rope = config.get("rope_parameters") or {}
    kinds = {one.get("rope_type", "default") for one in rope.values() if isinstance(one, dict)}
    if (scaling := config.get("rope_scaling")) is not None:
        kinds.add(scaling.get("rope_type", scaling.get("type")))
    found += [f"rope_type {kind}" for kind in sorted(kinds - {"default"})]
    if config.get("layer_types") and modern_config(config)[EVERY] is None:
        found.append("layer_types without a period")
    return found


def modern_tensors(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of a checkpoint under the names of the encoder."""
    return {name.removeprefix("model."): value for name, value in tensors.items()}
