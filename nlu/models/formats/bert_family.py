"""Checkpoints of encoders whose arithmetic is BERT's, read as checkpoints of BERT.

    electra     BERT, with narrow word vectors in some sizes
    roberta     positions count from after the padding's index; also xlm-roberta and camembert
    ernie       a vector of the task type is added to every token (Baidu's ERNIE 2 and 3)
    albert      one layer is applied many times; narrow word vectors (Lan et al. 2020, https://arxiv.org/abs/1909.11942)
    distilbert  without segments; other names (Sanh et al. 2019, https://arxiv.org/abs/1910.01108)

MacBERT, BERT-wwm and MiniLM are of the type bert. Names are those of transformers' checkpoints.
"""

import re
from collections.abc import Mapping

import torch
from torch import Tensor

from nlu.config.errors import CheckpointError
from nlu.config.types import ConfigLike
from nlu.models.formats.weights_config import LIKE_ROBERTA, first_position

FAMILY = ("bert", "electra", "roberta", "xlm-roberta", "camembert", "ernie", "albert", "distilbert")
"""the model_types that these functions read"""
PREFIX = re.compile(r"^(bert|electra|roberta|ernie|albert|distilbert)\.")
POSITIONS = "embeddings.position_embeddings.weight"
SEGMENTS = "embeddings.token_type_embeddings.weight"
TASK_TYPES = "embeddings.task_type_embeddings.weight"
OF_ALBERT = (
    # Of a layer first, because `ffn` and `attention.dense` are parts of other names.
    (re.compile(r"^encoder\.albert_layer_groups\.(\d+)\.albert_layers\.0\."), r"encoder.layer.\1."),
    (re.compile(r"\.full_layer_layer_norm\."), ".output.LayerNorm."),
    (re.compile(r"\.ffn\."), ".intermediate.dense."),
    (re.compile(r"\.ffn_output\."), ".output.dense."),
    (re.compile(r"\.attention\.(query|key|value)\."), r".attention.self.\1."),
    (re.compile(r"\.attention\.(dense|LayerNorm)\."), r".attention.output.\1."),
    (re.compile(r"^encoder\.embedding_hidden_mapping_in\."), "embeddings_project."),
    (re.compile(r"^pooler\.(weight|bias)$"), r"pooler.dense.\1"),
)
OF_DISTILBERT = (
    (re.compile(r"^transformer\.layer\."), "encoder.layer."),
    (re.compile(r"\.sa_layer_norm\."), ".attention.output.LayerNorm."),
    (re.compile(r"\.output_layer_norm\."), ".output.LayerNorm."),
    (re.compile(r"\.attention\.q_lin\."), ".attention.self.query."),
    (re.compile(r"\.attention\.k_lin\."), ".attention.self.key."),
    (re.compile(r"\.attention\.v_lin\."), ".attention.self.value."),
    (re.compile(r"\.attention\.out_lin\."), ".attention.output.dense."),
    (re.compile(r"\.ffn\.lin1\."), ".intermediate.dense."),
    (re.compile(r"\.ffn\.lin2\."), ".output.dense."),
)


def strange_parts(config: Mapping[str, object]) -> list[str]:
    """Return what a configuration of FAMILY says that this package does not compute, as `key value`."""
    found = []
    # Layers that share their weights would have to lack the same heads.
    groups = config.get("num_hidden_groups")
    if config.get("pruned_heads") and groups not in (None, config.get("num_hidden_layers")):
        found.append(f"pruned_heads of {groups} layers that are repeated")
    if config.get("model_type") != "albert":
        return found
    if (count := config.get("inner_group_num", 1)) != 1:
        found.append(f"inner_group_num {count}")
    # ALBERT multiplies such vectors by a square matrix, for which the encoder has no place.
    if (width := config.get("embedding_size", 128)) == config.get("hidden_size"):
        found.append(f"embedding_size {width}, which is also hidden_size")
    return found


def bert_tensors(tensors: Mapping[str, Tensor], config: ConfigLike) -> dict[str, Tensor]:
    """Return the tensors of a checkpoint of FAMILY under BERT's names, so that BERT computes the same with them.

    Query, key and value become one matrix, `attention.self.qkv`. Raises CheckpointError if one of the three is missing.
    """
    kind = config.get("model_type", "bert")
    found = {_named(name, kind): value for name, value in tensors.items()}
    if kind in LIKE_ROBERTA and POSITIONS in found:
        # The rows up to the padding's index belong to no position.
        found[POSITIONS] = found[POSITIONS][first_position(config) :]
    if kind == "distilbert" and POSITIONS in found:
        found[SEGMENTS] = found[POSITIONS].new_zeros(1, found[POSITIONS].shape[1])
    if config.get("use_task_id") and TASK_TYPES in found and SEGMENTS in found:
        # Every token is of the first type unless a caller says otherwise, so each segment's vector can include it.
        found[SEGMENTS] = found[SEGMENTS] + found.pop(TASK_TYPES)[0]
    return _with_joined_projections(found)


def _named(name: str, kind: str) -> str:
    name = PREFIX.sub("", name)
    # Old checkpoints, converted from TensorFlow, have its names of a norm's parameters.
    name = name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")
    for pattern, ours in {"albert": OF_ALBERT, "distilbert": OF_DISTILBERT}.get(kind, ()):
        name = pattern.sub(ours, name)
    return name


def _with_joined_projections(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    for name in [name for name in tensors if ".attention.self.query." in name]:
        parts = [name.replace("query", part) for part in ("query", "key", "value")]
        if any(part not in tensors for part in parts):
            raise CheckpointError(f"the checkpoint has {name} but not its key and value; it is damaged")
        # One product instead of three. Rows are output features, so parts follow one another in the first axis.
        tensors[name.replace("query", "qkv")] = torch.cat([tensors.pop(part) for part in parts])
    return tensors
