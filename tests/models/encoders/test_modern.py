"""ModernBERT, packed, gives the vectors and scores that transformers computes of each text alone."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from nlu.models.encoder import Inside
from nlu.models.encoders.modern import ModernBert
from nlu.models.formats.pretrained import load_into, open_pretrained
from tests.models.parts import VOCAB_SIZE, task_model

transformers = pytest.importorskip("transformers")

LENGTHS = [1, 2, 3, 3, 9, 10, 40, 97, 97, 200]
SIZES: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE, "hidden_size": 24, "num_hidden_layers": 5, "num_attention_heads": 4,
    "intermediate_size": 20, "max_position_embeddings": 256, "local_attention": 16, "pad_token_id": 0,
    **dict.fromkeys(("bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id"), 1),
}  # fmt: skip
CONFIGS: dict[str, dict[str, Any]] = {
    "as published": {},
    "with biases": {"norm_bias": True, "attention_bias": True, "mlp_bias": True, "classifier_bias": True},
    "all global": {"global_attn_every_n_layers": 1, "decoder_bias": False},
    "ending locally": {"global_attn_every_n_layers": 3, "local_attention": 7, "tie_word_embeddings": False},
    "with other angles": {"global_rope_theta": 5e4, "local_rope_theta": 300.0, "hidden_activation": "relu"},
}


def saved(what: str, name: str, folder: Path, spread: Any, **more: Any) -> Any:
    config = transformers.ModernBertConfig(**{**SIZES, **CONFIGS[name], **more})
    model = spread(getattr(transformers, f"ModernBert{what}")(config))
    with torch.no_grad():
        for part, value in model.named_parameters():
            if "norm.weight" in part:
                value.add_(1.0)
    model.tie_weights()
    model.save_pretrained(folder)
    return model.eval()


def loaded(folder: Path, **keys: Any) -> ModernBert:
    source = open_pretrained(str(folder))
    encoder = ModernBert(VOCAB_SIZE, source, pretrained=str(folder), **keys)
    load_into(task_model(encoder, "single", 2), source)
    return encoder.eval()


@torch.inference_mode()
def of_each(model: nn.Module, batch: Any, **more: Any) -> list[Any]:
    return [model(input_ids=tokens[None], **more) for tokens in batch.tokens_T.split(batch.lengths)]


@pytest.mark.parametrize("name", CONFIGS)
def test_every_vector_of_every_layer_is_that_of_transformers(corpus, spread, tmp_path, name, caplog):
    theirs = saved("Model", name, tmp_path / "weights", spread)
    caplog.set_level("INFO", "nlu")
    ours, batch = loaded(tmp_path / "weights"), corpus("single", LENGTHS).batch()
    expected = of_each(theirs, batch, output_hidden_states=True)
    inside = Inside(hidden=True, attention=tuple(range(5)))
    with torch.inference_mode():
        found = ours.encode(ours.embed(batch), batch, tokens=True, inside=inside)
        first_SD = ours.encode(ours.embed(batch), batch, pooled=True).pooled_SD
    assert found.tokens_TD.std() > 0.1 and len(found.hidden) == 6
    for number, layer_TD in enumerate(found.hidden):
        wanted_TD = torch.cat([each.hidden_states[number][0] for each in expected])
        assert (layer_TD - wanted_TD).abs().max() < 1e-5 * wanted_TD.abs().max(), f"layer {number}"
    wanted_SD = torch.stack([each.last_hidden_state[0, 0] for each in expected])
    assert (first_SD - wanted_SD).abs().max() < 1e-5
    assert "missing: backbone" not in caplog.text and "not used" not in caplog.text
    theirs.set_attn_implementation("eager")
    for place, each in enumerate(of_each(theirs, batch, output_attentions=True)):
        for number in range(5):
            assert (found.attention[number][place] - each.attentions[number][0]).abs().max() < 1e-5
