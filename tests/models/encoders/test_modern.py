"""ModernBERT, packed, gives the vectors and scores that transformers computes of each text alone."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from nlu.config.errors import CheckpointError, UserError
from nlu.models.encoder import Inside
from nlu.models.encoders.bert import Bert
from nlu.models.encoders.modern import ModernBert
from nlu.models.formats.pretrained import load_into, open_pretrained
from nlu.models.heads.modern import ModernHead
from nlu.models.heads.words import WordsHead
from nlu.models.layers.attention import AttentionByLength, AttentionInOneKernel
from nlu.models.task_model import TaskModel
from tests.models.parts import VOCAB_SIZE, Target, bert, modern, task_model

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


HEADS = {"SequenceClassification": ("single", "classes"), "TokenClassification": ("units", "tags"),
         "MaskedLM": ("units", "words")}  # fmt: skip


@pytest.mark.parametrize("pooling", ["cls", "mean"])
@pytest.mark.parametrize("what", HEADS)
@pytest.mark.parametrize("name", CONFIGS)
@torch.inference_mode()
def test_scores_of_a_loaded_head_are_those_of_transformers(corpus, spread, tmp_path, messages, name, what, pooling):
    layout, kind = HEADS[what]
    classes = ["c", "a", "b"] if kind != "words" else []
    named = {"id2label": {0: "a", 1: "b", 2: "c"}} if classes else {}
    theirs = saved(f"For{what}", name, tmp_path, spread, classifier_pooling=pooling, **named)
    source, target = open_pretrained(str(tmp_path)), Target(classes, kind)
    encoder = ModernBert(VOCAB_SIZE, source, pretrained=str(tmp_path))
    head: Any = (ModernHead if classes else WordsHead)(24, target, encoder)
    model = TaskModel(encoder, head, layout)
    load_into(model, source, classes)
    batch = corpus(layout, LENGTHS).batch()
    rows = [each.logits[0] for each in of_each(theirs, batch)]
    expected = torch.stack(rows) if layout == "single" else torch.cat(rows)[batch.units_U]
    found = model.eval()(batch)
    expected = expected[:, [2, 0, 1]] if classes else expected
    assert (found - expected).abs().max() <= 1e-5 * max(1.0, float(expected.abs().max()))
    assert not any("missing" in each or "not used" in each or "WARNING" in each for each in messages())


def test_configurations_of_both_versions_of_transformers_are_read(spread, tmp_path):
    saved("Model", "with other angles", tmp_path, spread)
    assert open_pretrained(str(tmp_path)).config["rope_parameters"]["sliding_attention"]["rope_theta"] == 300.0
    new = loaded(tmp_path)
    old = {
        **{key: value for key, value in SIZES.items() if key != "vocab_size"}, "model_type": "modernbert",
        "global_attn_every_n_layers": 3, "global_rope_theta": 5e4, "hidden_activation": "relu",
    }  # fmt: skip
    for theta, expected in ((300.0, 300.0), (None, 5e4)):
        (tmp_path / "config.json").write_text(json.dumps({**old, "local_rope_theta": theta}))
        sizes = loaded(tmp_path).sizes
        assert sizes == {**new.sizes, "local_rope_theta": expected}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"rope_parameters": {"full_attention": {"rope_type": "yarn", "rope_theta": 1e4}}}, "rope_type yarn"),
        ({"layer_types": ["full_attention", "sliding_attention", "sliding_attention", "full_attention",
                          "full_attention"]}, "layer_types without a period"),
        ({"hidden_activation": "silu"}, "hidden_activation silu"),
    ],
)  # fmt: skip
def test_what_the_encoder_cannot_compute_is_refused(spread, tmp_path, changes, reason):
    saved("Model", "as published", tmp_path, spread)
    config = open_pretrained(str(tmp_path)).config | changes
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=f"{reason}, which this encoder .* set model=hf"):
        loaded(tmp_path)


def test_weights_of_another_family_name_the_model_that_loads_them(spread, tmp_path):
    saved("Model", "as published", tmp_path, spread)
    with pytest.raises(CheckpointError, match="set model=modernbert"):
        Bert(VOCAB_SIZE, open_pretrained(str(tmp_path)), pretrained=str(tmp_path))
    (tmp_path / "config.json").write_text(json.dumps({**bert().settings(), "model_type": "roberta"}))
    with pytest.raises(CheckpointError, match="model_type roberta.* set model=bert"):
        loaded(tmp_path)
    with pytest.raises(UserError, match="a head has 3 numbers"):
        modern(hidden_size=12, heads=4)


@pytest.mark.parametrize("reach", [1, 4, 40])
@pytest.mark.parametrize("kind", [AttentionByLength, AttentionInOneKernel])
def test_a_window_of_attention_is_that_of_a_mask_over_all_tokens(kind, reach):
    lengths, qkv_TC = [1, 2, 5, 96, 97, 130, 130], torch.randn(461, 3 * 12, generator=torch.Generator().manual_seed(0))
    given = (reach,) if kind is AttentionByLength else (torch.device("cpu"),)
    qkv_TC.requires_grad_()
    mixed_TD = kind(lengths, 3, *given, **({} if kind is AttentionByLength else {"reach": reach})).self_attention(
        qkv_TC, 0.0
    )
    expected = []
    for own_LC in qkv_TC.split(lengths):
        query_HLE, key_HLE, value_HLE = own_LC.view(len(own_LC), 3, 3, 4).permute(1, 2, 0, 3)
        place_L = torch.arange(len(own_LC))
        far_LL = (place_L - place_L[:, None]).abs() > reach
        weights_HLL = (query_HLE @ key_HLE.mT / 2).masked_fill(far_LL, -torch.inf).softmax(-1)
        expected.append((weights_HLL @ value_HLE).transpose(0, 1).flatten(1))
    torch.testing.assert_close(mixed_TD, torch.cat(expected), atol=1e-5, rtol=1e-5)
    other_TD = torch.randn(mixed_TD.shape, generator=torch.Generator().manual_seed(1))
    gradients = [torch.autograd.grad((each * other_TD).sum(), qkv_TC)[0] for each in (mixed_TD, torch.cat(expected))]
    torch.testing.assert_close(*gradients, atol=1e-5, rtol=1e-5)
