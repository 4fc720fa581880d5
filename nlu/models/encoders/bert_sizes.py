"""The sizes of a BERT encoder: from the keys of a run, the configuration of pretrained weights, or BERT-base."""

from typing import Any

from nlu.config.errors import UserError
from nlu.models import keys as schemas
from nlu.models.pruned_heads import pruned_heads_of, wrong_heads

CONFIG_KEYS = {
    "hidden_size": "hidden_size", "layers": "num_hidden_layers", "layer_groups": "num_hidden_groups",
    "heads": "num_attention_heads",
    "intermediate_size": "intermediate_size", "embedding_size": "embedding_size",
    "max_positions": "max_position_embeddings", "segment_types": "type_vocab_size", "activation": "hidden_act",
    "dropout": "hidden_dropout_prob", "attention_dropout": "attention_probs_dropout_prob",
    "layer_norm_eps": "layer_norm_eps", "initializer_range": "initializer_range",
}  # fmt: skip


Sizes = dict[str, Any]
"""the keys of CONFIG_KEYS, and `pruned_heads`: the heads that layers lack, by layer; layer_groups: None = all layers
differ; embedding_size: None = hidden_size"""
BERT_BASE: Sizes = {
    "hidden_size": 768, "layers": 12, "layer_groups": None, "heads": 12, "intermediate_size": 3072,
    "embedding_size": None, "max_positions": 512, "segment_types": 2, "activation": "gelu", "dropout": 0.1,
    "attention_dropout": 0.1, "layer_norm_eps": 1e-12, "initializer_range": 0.02,
}  # fmt: skip
TUNABLE = ("dropout", "attention_dropout", "layer_norm_eps", "initializer_range")
MUST_BE_KNOWN = ("hidden_size", "layers", "heads", "intermediate_size", "activation")
"""sizes that cannot be inferred from pretrained weights; a wrong default would not be noticed"""


def resolve_sizes(given: dict[str, Any], config: dict[str, Any] | None) -> Sizes:
    """Return each size from the user's keys, else from the checkpoint's configuration, else from BERT-base.

    `config` is None without pretrained weights. Raises UserError if a key contradicts the checkpoint, a size of
    MUST_BE_KNOWN is unknown, or heads do not divide the width or groups the layers.
    """
    sizes: Sizes = {}
    problems = []
    for ours, theirs in CONFIG_KEYS.items():
        written, stored = given[ours], (config or {}).get(theirs)
        if written is not None and stored is not None and written != stored and ours not in TUNABLE:
            problems.append(
                f"model.{ours} is {written}, but the pretrained weights have {stored}; "
                f"set model.{ours}=null, or model.pretrained=null for random initialization"
            )
        if config is not None and written is None and stored is None and ours in MUST_BE_KNOWN:
            problems.append(
                f"model.{ours} is null, but no configuration beside the pretrained weights gives {theirs}; "
                f"set model.{ours}, or put the config.json or bert_config.json there"
            )
        sizes[ours] = written if written is not None else stored if stored is not None else BERT_BASE[ours]
    for ours, whole in schemas.Bert.divisors.items():
        if sizes[whole] % (sizes[ours] or 1):
            problems.append(
                f"model.{ours} is {sizes[ours]}, which does not divide model.{whole} {sizes[whole]}; set one of the two"
            )
    pruned = pruned_heads_of(config or {})
    problems += [
        f"{problem}; give undamaged weights" for problem in wrong_heads(pruned, sizes["layers"], sizes["heads"])
    ]
    if problems:
        raise UserError(*problems)
    return {**sizes, "pruned_heads": pruned}
