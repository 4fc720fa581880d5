"""The configuration beside pretrained weights, read without their tensors and without importing torch."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from nlu.config.errors import CheckpointError
from nlu.config.types import ConfigLike

CONFIGS = ("config.json", "bert_config.json", "electra_config.json")
MODULES = "modules.json"
"""the list of the modules of sentence-transformers"""
LIKE_ROBERTA = ("roberta", "xlm-roberta", "camembert")
SIZES_OF_DISTILBERT = {
    "dim": "hidden_size",
    "n_layers": "num_hidden_layers",
    "n_heads": "num_attention_heads",
    "hidden_dim": "intermediate_size",
    "activation": "hidden_act",
    "dropout": "hidden_dropout_prob",
    "attention_dropout": "attention_probs_dropout_prob",
}


def read_config(folder: Path, *names: str) -> Any:
    """Return the configuration in a folder of weights, or that of the first of `names` that is there, {} if there is
    none. Raises CheckpointError for damaged JSON."""
    for name in names or CONFIGS:
        if (folder / name).is_file():
            try:
                config = json.loads((folder / name).read_text(encoding="utf-8"))
            except json.JSONDecodeError as error:
                raise CheckpointError(f"{folder / name}:{error.lineno}: not JSON ({error.msg}); fix the file") from None
            return config if names else config | _of_sentence_transformers(folder)
    return {}


def _of_sentence_transformers(folder: Path) -> dict[str, Any]:
    """Return the function of a cross-encoder's score, which newer folders have in a file of its own."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        says = json.loads((folder / "config_sentence_transformers.json").read_text(encoding="utf-8"))
        return {"sentence_transformers": {"activation_fn": says["activation_fn"]}}
    return {}


def bert_config(config: ConfigLike) -> dict[str, Any]:
    """Return the configuration of a checkpoint of `bert_family.FAMILY` with BERT's keys, and ALBERT's groups.

    The sizes are those of the tensors that `bert_tensors` returns.
    """
    found = dict(config)
    kind = config.get("model_type", "bert")
    if kind in LIKE_ROBERTA and "max_position_embeddings" in config:
        found["max_position_embeddings"] -= first_position(config)
    elif kind == "distilbert":
        found |= {theirs: config[name] for name, theirs in SIZES_OF_DISTILBERT.items() if name in config}
        found["type_vocab_size"] = 1
    return found


def first_position(config: ConfigLike) -> int:
    """Return the row of the first token's position in an encoder like RoBERTa."""
    padding = config.get("pad_token_id")
    return (1 if padding is None else int(padding)) + 1
