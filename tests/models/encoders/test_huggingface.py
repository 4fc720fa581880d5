"""Encoders of the transformers library: what they compute padded is what stands in the packed batch."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from nlu.config.errors import CheckpointError, UserError
from nlu.data.tokenizing import wordpiece
from nlu.models.encoder import Inside
from nlu.models.encoders.huggingface import HuggingFace
from nlu.models.formats.pretrained import load_into, open_pretrained
from nlu.models.task_model import TaskModel
from nlu.runs.checkpoint import Checkpoints
from nlu.runs.state import Best
from tests.models.parts import Watch, task_model

transformers = pytest.importorskip("transformers")

VOCAB_SIZE = 50
SIZES = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40}
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{number}" for number in range(VOCAB_SIZE - 5))]


@pytest.fixture
def saved(tmp_path: Path, spread: Any) -> Callable[..., tuple[nn.Module, str]]:
    """Return a function that saves a random model of transformers and gives it with its folder."""

    def save(kind: str = "Bert", head: str = "Model", **changes: Any) -> tuple[nn.Module, str]:
        sizes = {**SIZES, **({"d_head": 6} if kind == "XLNet" else {"max_position_embeddings": 64})}
        padding = {"pad_token_id": 0} if kind == "ModernBert" else {}
        config = getattr(transformers, f"{kind}Config")(**{"vocab_size": VOCAB_SIZE, **sizes, **padding, **changes})
        model = spread(getattr(transformers, f"{kind}{head}")(config))
        model.save_pretrained(tmp_path / kind)
        return model, str(tmp_path / kind)

    return save


def load(reference: str, vocab_size: int = VOCAB_SIZE, **keywords: Any) -> HuggingFace:
    source = open_pretrained(reference)
    backbone = HuggingFace(vocab_size, source, pretrained=reference, **keywords)
    if not backbone.random_weights:
        load_into(task_model(backbone, "single", 2), source)
    return backbone.eval()


def tokens_of(encoder: Any, batch: Any) -> torch.Tensor:
    return encoder.encode(encoder.embed(batch), batch, tokens=True).tokens_TD


def pooled_of(encoder: Any, batch: Any) -> torch.Tensor:
    return encoder.encode(encoder.embed(batch), batch, pooled=True).pooled_SD


def run_of(backbone: HuggingFace, folder: Path, labels: int = 2) -> TaskModel:
    """Write a run's best and last checkpoint with this encoder, as training does."""
    model = task_model(backbone, "single", labels)
    names = {"layout": "single", "labels": [f"l{number}" for number in range(labels)]}
    tokenizer = wordpiece(WORDS, True, "the test")
    checkpoints = Checkpoints(folder, config=backbone.settings(), labels=names, tokenizer=tokenizer)
    checkpoints.save_best(model.state_dict(), [Best(1, 1, 1.0, 0.5, {})])
    checkpoints.arrange([Best(1, 1, 1.0, 0.5, {})])
    return model


@pytest.mark.parametrize("kind", ["Bert", "Roberta", "DebertaV2", "DistilBert", "Electra", "XLNet", "ModernBert"])
def test_every_vector_is_that_of_the_model_itself(corpus, saved, kind):
    inner, folder = saved(kind)
    backbone = load(folder)
    batch = corpus("pair", [1, 2, 7, 7, 30]).batch()
    # No text contains the padding token, which RoBERTa would give the position of padding.
    batch.tokens_T[batch.tokens_T == (inner.config.pad_token_id or 0)] = 2
    with torch.inference_mode():
        found = tokens_of(backbone, batch).split(batch.lengths)
        first = pooled_of(backbone, batch)
        rows = zip(batch.tokens_T.split(batch.lengths), batch.segments_T.split(batch.lengths), strict=True)
        for number, (tokens, segments) in enumerate(rows):
            types = {"token_type_ids": segments[None]} if kind in ("Bert", "Electra", "Roberta") else {}
            expected = inner(input_ids=tokens[None], **types).last_hidden_state[0]
            assert (found[number] - expected).abs().max() < 3e-5
            # XLNet is trained with the token that stands for a text at its end.
            assert (first[number] - expected[-1 if kind == "XLNet" else 0]).abs().max() < 3e-5


@pytest.mark.parametrize("kind", ["Bert", "Roberta", "DebertaV2", "DistilBert", "Electra", "XLNet", "ModernBert"])
def test_hidden_states_and_attention_are_those_of_the_model_itself(corpus, saved, kind):
    inner, folder = saved(kind)
    backbone = load(folder)
    before = backbone.inner.config._attn_implementation
    batch = corpus("single", [1, 2, 7, 7, 30]).batch()
    batch.tokens_T[batch.tokens_T == (inner.config.pad_token_id or 0)] = 2
    inner.set_attn_implementation("eager")
    with torch.inference_mode():
        asked = Inside(hidden=True, attention=(0, -1))
        found = backbone.encode(backbone.embed(batch), batch, tokens=True, inside=asked)
        assert backbone.inner.config._attn_implementation == before
        assert len(found.hidden) == 3 and torch.equal(found.hidden[-1], found.tokens_TD)
        hidden = [layer.split(batch.lengths) for layer in found.hidden]
        for number, tokens in enumerate(batch.tokens_T.split(batch.lengths)):
            expected = inner(input_ids=tokens[None], output_hidden_states=True, output_attentions=True)
            for layer, wanted in zip(hidden, expected.hidden_states, strict=True):
                assert (layer[number] - wanted[0]).abs().max() < 3e-5
            for layer in (0, -1):
                assert (found.attention[layer][number] - expected.attentions[layer][0]).abs().max() < 3e-5


@pytest.mark.parametrize("kind", ["Bert", "DistilBert", "Albert", "ModernBert"])
def test_queries_and_keys_explain_the_attention_of_architectures_that_show_them(corpus, saved, kind):
    backbone = load(saved(kind, **{"Albert": {"embedding_size": 16}}.get(kind, {}))[1])
    batch = corpus("single", [2, 7, 7, 11]).batch()
    batch.tokens_T[batch.tokens_T == 0] = 2
    with torch.inference_mode():
        asked = Inside(projections=(0, 1), attention=(0, 1))
        found = backbone.encode(backbone.embed(batch), batch, inside=asked)
    for layer in (0, 1):
        query, key, value = (part.split(batch.lengths) for part in found.projections[layer])
        assert value[3].shape == (11, 24)
        if kind == "ModernBert":
            # It turns queries and keys by their places before it multiplies them.
            continue
        for number, length in enumerate(batch.lengths):
            q, k = (part[number].view(length, 4, 6).transpose(0, 1) for part in (query, key))
            expected = (q @ k.mT / 6**0.5).softmax(-1)
            assert (found.attention[layer][number] - expected).abs().max() < 1e-5


@pytest.mark.parametrize("kind", ["Bert", "ModernBert"])
def test_in_the_deterministic_mode_its_attention_is_strict_with_the_same_gradient(corpus, saved, kind):
    encoder, batch = load(saved(kind)[1]), corpus("single", [4, 9, 9]).batch()

    def gradients():
        encoder.zero_grad()
        tokens_of(encoder, batch).square().sum().backward()
        return [None if one.grad is None else one.grad.clone() for one in encoder.parameters()]

    plain = gradients()
    torch.set_deterministic_debug_mode("warn")
    try:
        with Watch() as watch:
            strict = gradients()
    finally:
        torch.set_deterministic_debug_mode("default")
    torch.testing.assert_close(strict, plain)
    operators = {name for name, _ in watch.seen if "attention" in name or "softmax" in name}
    assert any("backward" in name for name in operators), operators
    assert watch.modes_of("attention") | watch.modes_of("softmax") == {2} and watch.modes_of("layer_norm") == {1}


@pytest.mark.parametrize("kind", ["Bert", "Roberta", "DebertaV2"])
def test_a_former_run_gives_its_architecture_and_weights(saved, tmp_path, kind):
    former = run_of(load(saved(kind)[1]), tmp_path / "run")
    reference = f"{tmp_path / 'run'}/best"
    source = open_pretrained(reference)
    again = task_model(HuggingFace(VOCAB_SIZE, source, pretrained=reference), "single", 2)
    load_into(again, source)
    state = again.state_dict()
    assert all(torch.equal(state[name], value) for name, value in former.state_dict().items())


def test_positions_below_the_paddings_row_do_not_count(saved, corpus):
    backbone = load(saved("Roberta")[1])
    assert backbone.max_positions == 62
    batch = corpus("single", [62]).batch()
    assert pooled_of(backbone, batch).isfinite().all()
    assert load(saved("Bert")[1]).max_positions == 64


def test_a_tokenizer_that_is_not_that_of_the_weights_is_refused(saved):
    folder = saved()[1]
    for vocab_size in (VOCAB_SIZE + 1, VOCAB_SIZE - 1):
        with pytest.raises(
            CheckpointError, match=f"the tokenizer has {vocab_size} tokens, but .* have {VOCAB_SIZE} rows"
        ):
            load(folder, vocab_size=vocab_size)


def test_an_architecture_that_transformers_cannot_build_is_refused_with_the_reason(saved):
    folder = Path(saved()[1])
    for content in ('{"model_type": "textcnn"}', "{}", '{"model_type": "bert", "auto_map": {"AutoConfig": "a.B"}}x'):
        (folder / "config.json").write_text(content)
        with pytest.raises(CheckpointError):
            load(str(folder))


@pytest.mark.parametrize(
    ("kind", "reason"), [("CLIPText", "cannot be given word vectors"), ("ViT", "has no vocabulary")]
)
def test_an_architecture_that_does_not_read_words_or_their_vectors_is_refused(tmp_path, kind, reason):
    sizes = {"hidden_size": 24, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 40}
    getattr(transformers, f"{kind}Config")(**sizes).save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(CheckpointError, match=reason):
        HuggingFace(VOCAB_SIZE, open_pretrained(str(tmp_path)), pretrained=str(tmp_path), random_weights=True)


@pytest.mark.parametrize(
    ("kind", "depths"),
    [
        ("ModernBert", {"final_norm.weight": 2, "embeddings.norm.weight": 0, "layers.0.mlp.Wo.weight": 1}),
        ("DebertaV2", {"encoder.rel_embeddings.weight": 0, "encoder.LayerNorm.weight": 0}),
        ("Esm", {"encoder.emb_layer_norm_after.weight": 2, "embeddings.word_embeddings.weight": 0}),
        ("Electra", {"embeddings_project.weight": 0, "encoder.layer.1.output.dense.weight": 2}),
    ],
)
def test_parameters_above_the_layers_have_the_depth_of_the_last_one(saved, kind, depths):
    changes = {"Esm": {"position_embedding_type": "rotary", "mask_token_id": 4, "pad_token_id": 0},
               "DebertaV2": {"relative_attention": True, "norm_rel_ebd": "layer_norm"},
               "Electra": {"embedding_size": 16}}  # fmt: skip
    backbone = load(saved(kind, **changes.get(kind, {}))[1])
    assert {name: backbone.depth_of(f"inner.{name}") for name in depths} == depths
    assert set(depths) <= backbone.inner.state_dict().keys() and backbone.depth == 3


def test_a_model_whose_first_token_sees_nothing_of_the_text_is_refused_as_its_vector(corpus, saved):
    inner, folder = saved("GPT2", n_embd=24, n_layer=2, n_head=4, n_positions=64)
    with pytest.raises(UserError, match=r"model\.pooling is first, but in gpt2 .* set model\.pooling=mean"):
        load(folder)
    backbone = load(folder, pooling="mean")
    batch = corpus("single", [2, 3, 9]).batch()
    with torch.inference_mode():
        separate = [inner(tokens[None]).last_hidden_state[0].mean(0) for tokens in batch.tokens_T.split(batch.lengths)]
        torch.testing.assert_close(pooled_of(backbone, batch), torch.stack(separate))
    tagger = task_model(HuggingFace(VOCAB_SIZE, open_pretrained(folder), pretrained=folder), "units", 2)
    assert tagger.backbone.is_causal


def test_positions_that_transformers_ignores_and_quantized_weights_are_refused(saved):
    for changes, reason in [
        ({"position_embedding_type": "relative_key"}, "position_embedding_type is relative_key, which transformers"),
        (
            {"quantization_config": {"quant_method": "bitsandbytes"}},
            "its weights are quantized",
        ),
    ]:
        folder = Path(saved()[1])
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, **changes}))
        with pytest.raises(CheckpointError, match=f"of model_type bert, which model=hf cannot use: .*{reason}"):
            load(str(folder))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_weights_of_lower_precision_are_read_as_fp32(saved, tmp_path, dtype):
    inner, folder = saved("ModernBert")
    inner.to(dtype).save_pretrained(folder)
    found = load(folder).inner.state_dict()
    wanted = inner.float().state_dict()
    assert all(torch.equal(value, wanted[name]) and value.dtype == torch.float32 for name, value in found.items())
