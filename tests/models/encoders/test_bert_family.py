"""Weights of encoders with BERT's arithmetic give the vectors that transformers computes with them."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from nlu.config.errors import CheckpointError
from nlu.models.encoder import Inside
from nlu.models.encoders.bert import Bert
from nlu.models.formats.bert_family import LIKE_ROBERTA
from nlu.models.formats.pretrained import load_into, open_pretrained
from tests.models.parts import task_model

VOCAB_SIZE = 50
LENGTHS = [1, 2, 3, 3, 7, 12, 12, 30, 31]
SIZES = {"hidden_size": 24, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 40}
NARROW = {"embedding_size": 16, "classifier_dropout_prob": 0.0}
FAMILY: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("Bert", {}),
    "electra": ("Electra", {"embedding_size": 16}),
    "roberta": ("Roberta", {"type_vocab_size": 1, "pad_token_id": 1, "max_position_embeddings": 66}),
    "roberta with another padding": ("Roberta", {"type_vocab_size": 2, "pad_token_id": 0}),
    "xlm-roberta": ("XLMRoberta", {"type_vocab_size": 1, "pad_token_id": 1}),
    "camembert": ("Camembert", {"type_vocab_size": 1, "pad_token_id": 1}),
    "ernie": ("Ernie", {"use_task_id": True, "task_type_vocab_size": 3, "type_vocab_size": 4}),
    "ernie without tasks": ("Ernie", {"use_task_id": False}),
    "albert": ("Albert", NARROW),
    "albert with two groups": ("Albert", {**NARROW, "num_hidden_groups": 2}),
    "distilbert": ("DistilBert", {"dim": 24, "n_layers": 4, "n_heads": 4, "hidden_dim": 40}),
}


def foreign(name: str, spread: Any, **changes: Any) -> nn.Module:
    transformers = pytest.importorskip("transformers")
    kind, more = FAMILY[name]
    sizes = {"max_position_embeddings": 64, **({} if kind == "DistilBert" else SIZES), **more, **changes}
    config = getattr(transformers, f"{kind}Config")(vocab_size=VOCAB_SIZE, **sizes)
    return spread(getattr(transformers, f"{kind}Model")(config)).eval()


def loaded(model: nn.Module, folder: Path, **keywords: Any) -> Bert:
    model.save_pretrained(folder)
    source = open_pretrained(str(folder))
    bert = Bert(VOCAB_SIZE, source, pretrained=str(folder), **keywords)
    load_into(task_model(bert, "pair", 2), source)
    return bert.eval()


@torch.inference_mode()
def hidden_of(model: nn.Module, batch: Any) -> list[list[torch.Tensor]]:
    """What transformers computes for each sequence on its own: the vectors before and after each layer."""
    has_segments = getattr(model.config, "type_vocab_size", 1) > 1
    found = []
    for tokens, segments in zip(
        batch.tokens_T.split(batch.lengths), batch.segments_T.split(batch.lengths), strict=True
    ):
        more = {"token_type_ids": segments[None]} if has_segments else {}
        if model.config.model_type in LIKE_ROBERTA:
            # transformers counts them itself, but takes a random token with the number of the padding for padding.
            more["position_ids"] = torch.arange(len(tokens))[None] + model.config.pad_token_id + 1
        output = model(input_ids=tokens[None], output_hidden_states=True, **more)
        found.append([layer[0] for layer in output.hidden_states])
    return found


@pytest.mark.parametrize("name", FAMILY)
def test_every_vector_of_every_layer_is_that_of_transformers(corpus, spread, tmp_path, name, caplog):
    theirs = foreign(name, spread)
    caplog.set_level("INFO", "nlu")
    ours, batch = loaded(theirs, tmp_path / "weights"), corpus("pair", LENGTHS).batch()
    expected = hidden_of(theirs, batch)
    with torch.inference_mode():
        found = ours.encode(ours.embed(batch), batch, tokens=True, inside=Inside(hidden=True))
        first = ours.encode(ours.embed(batch), batch, pooled=True).pooled_SD
    assert found.tokens_TD.std() > 0.1 and len(found.hidden) == 5
    for number, (layer, row) in enumerate(zip(found.hidden, zip(*expected, strict=True), strict=True)):
        assert (layer - torch.cat(row)).abs().max() < 1e-5, f"layer {number}"
    assert (first - torch.stack([layers[-1][0] for layers in expected])).abs().max() < 1e-5
    # Only the head is missing: nothing of the encoder starts at random or is left over.
    assert "missing: backbone" not in caplog.text and "missing: encoder" not in caplog.text


def test_the_pooler_of_albert_is_that_of_transformers(corpus, spread, tmp_path):
    theirs, batch = foreign("albert", spread), corpus("pair", LENGTHS).batch()
    ours = loaded(theirs, tmp_path / "weights", pooling="pooler")
    rows = zip(batch.tokens_T.split(batch.lengths), batch.segments_T.split(batch.lengths), strict=True)
    with torch.inference_mode():
        expected = [theirs(input_ids=one[None], token_type_ids=other[None]).pooler_output[0] for one, other in rows]
        found = ours.encode(ours.embed(batch), batch, pooled=True).pooled_SD
    assert (found - torch.stack(expected)).abs().max() < 1e-5


@pytest.mark.parametrize("name", ["albert", "albert with two groups"])
def test_a_repeated_layer_gets_the_gradient_of_all_its_uses(corpus, spread, tmp_path, name):
    theirs = foreign(name, spread, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    ours, batch = loaded(theirs, tmp_path / "weights"), corpus("single", [5, 9]).batch()
    ours.encode(ours.embed(batch), batch, tokens=True).tokens_TD.square().sum().backward()
    for tokens in batch.tokens_T.split(batch.lengths):
        theirs(input_ids=tokens[None]).last_hidden_state.square().sum().backward()
    groups = theirs.encoder.albert_layer_groups
    assert len(ours.encoder["layer"]) == len(groups)
    for layer, group in zip(ours.encoder["layer"], groups, strict=True):
        expected = group.albert_layers[0].ffn.weight.grad
        torch.testing.assert_close(layer.intermediate["dense"].weight.grad, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"inner_group_num": 2}, "inner_group_num 2"),
        ({"embedding_size": 24}, "embedding_size 24, which is also hidden_size"),
    ],
)
def test_an_albert_that_computes_something_else_is_refused(spread, tmp_path, changes, reason):
    theirs = foreign("albert", spread, **changes)
    with pytest.raises(CheckpointError) as caught:
        loaded(theirs, tmp_path / "weights")
    assert reason in str(caught.value) and str(caught.value).endswith("set model=hf")
