"""Architectures of transformers with random weights: nlu's vectors are those of AutoModel, or the weights are refused.

`python -m pytest -m "" -s tests/models/encoders/test_architectures.py` prints a line for each.
"""

from pathlib import Path
from typing import Any

import pytest
import torch

from nlu.config.errors import CheckpointError
from nlu.models.encoders.huggingface import HuggingFace
from nlu.models.formats.pretrained import load_into, open_pretrained
from tests.models.parts import VOCAB_SIZE, task_model

transformers = pytest.importorskip("transformers")

SIZES: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "head_dim": 6,
    "intermediate_size": 40, "max_position_embeddings": 64, "embedding_size": 24, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2, "num_key_value_heads": 4, "emb_dim": 24, "n_embd": 24, "n_layer": 2, "n_head": 4, "dim": 24,
    "n_layers": 2, "n_heads": 4, "hidden_dim": 40, "d_model": 24, "d_inner": 40, "d_kv": 6, "d_ff": 40, "num_layers": 2,
    "num_heads": 4, "num_local_experts": 4,
}  # fmt: skip
"""those that a configuration has are set"""
CHANGES: dict[str, dict[str, Any]] = {
    "mobilebert": {"embedding_size": 24, "true_hidden_size": 24, "intra_bottleneck_size": 24},
    "funnel": {"block_sizes": [1, 1], "d_head": 6, "num_hidden_layers": None, "architectures": ["FunnelModel"]},
    "longformer": {"attention_window": [8, 8]},
    "luke": {"entity_vocab_size": 10, "entity_emb_size": 16},
    "squeezebert": {"q_groups": 1, "k_groups": 1, "v_groups": 1},
    "nomic_bert": {"head_dim": None},
}
MORE = {"canine": {"vocab_size": VOCAB_SIZE}}
"""what a configuration only has if a file says so"""
EVERY_TIME = ["albert", "gte", "jina_embeddings_v3", "mixtral", "nomic_bert", "squeezebert", "xlnet"]
RIGHT = [
    "bert", "big_bird", "camembert", "data2vec-text", "deberta", "deberta-v2", "distilbert", "electra", "ernie",
    "eurobert", "flaubert", "gpt2", "longformer", "luke", "megatron-bert", "mobilebert", "modernbert", "mpnet", "mra",
    "qwen3", "rembert", "roberta", "roberta-prelayernorm", "roformer", "splinter", "xlm", "xlm-roberta",
    "xlm-roberta-xl",
]  # fmt: skip
REFUSED = {
    "convbert": "depend on padding", "fnet": "depend on padding", "funnel": "depend on padding",
    "nystromformer": "depend on padding", "yoso": "depend on padding",
    "canine": "has no table of word vectors", "ibert": "returns more than their vectors",
    "esm": "computes more from words", "t5": "encoder with a decoder",
    "clip_text_model": "cannot be given word vectors",
}  # fmt: skip


def config_of(kind: str) -> Any:
    made = transformers.CONFIG_MAPPING[kind]
    known = {**made().to_dict(), **dict.fromkeys(made.attribute_map)}
    sizes = {name: value for name, value in {**SIZES, **CHANGES.get(kind, {})}.items() if name in known}
    return made(**{name: size for name, size in sizes.items() if size is not None}, **MORE.get(kind, {}))


def saved(kind: str, folder: Path) -> Any:
    """Write a model with random weights, far from 0, as transformers does, and return it as transformers reads it."""
    torch.manual_seed(0)
    model = transformers.AutoModel.from_config(config_of(kind))
    for name, parameter in model.named_parameters():
        torch.nn.init.normal_(parameter, 1.0 if parameter.ndim == 1 and name.endswith("weight") else 0.0, 0.2)
    model.save_pretrained(folder)
    return transformers.AutoModel.from_pretrained(folder, dtype=torch.float32).eval()


@pytest.mark.parametrize("kind", [*EVERY_TIME, *(pytest.param(kind, marks=pytest.mark.thorough) for kind in RIGHT)])
def test_vectors_are_those_of_automodel_alone_and_in_a_batch(kind, tmp_path, corpus):
    theirs = saved(kind, tmp_path)
    source = open_pretrained(str(tmp_path))
    ours = HuggingFace(VOCAB_SIZE, source, pretrained=str(tmp_path), pooling="mean")
    load_into(task_model(ours, "single", 2), source)
    ours.eval()
    batch = corpus("single", [3, 7, 12, 30]).batch()
    # RoBERTa gives the padding token the position of padding.
    batch.tokens_T[batch.tokens_T < 5] = 5
    with torch.inference_mode():
        found = ours.encode(ours.embed(batch), batch, tokens=True).tokens_TD.split(batch.lengths)
        ids = batch.tokens_T.split(batch.lengths)
        wanted = [theirs(one[None], attention_mask=torch.ones(1, len(one))).last_hidden_state[0] for one in ids]
    difference = max(float((one - other).abs().max()) for one, other in zip(found, wanted, strict=True))
    largest = max(float(one.abs().max()) for one in wanted)
    print(f"{kind}\t{difference:.1e}\t{largest:.1f}\tequal")
    assert difference <= 1e-5 * largest


@pytest.mark.parametrize("kind", REFUSED)
def test_an_architecture_whose_vectors_would_be_wrong_is_refused_by_name(kind, tmp_path):
    config_of(kind).save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(CheckpointError) as caught:
        HuggingFace(VOCAB_SIZE, open_pretrained(str(tmp_path)), pretrained=str(tmp_path))
    message = str(caught.value)
    print(f"{kind}\t{message}")
    assert f"of model_type {kind}, which model=hf cannot use: " in message and REFUSED[kind] in message
    assert message.endswith("choose weights of another architecture, such as bert, roberta, deberta-v2 or modernbert")
