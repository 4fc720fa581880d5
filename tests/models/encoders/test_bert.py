"""The packed encoder computes what transformers computes, and takes its sizes from where they are known."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from nlu.config.errors import CheckpointError, UserError
from nlu.models.encoder import Inside
from nlu.models.encoders.bert import Bert
from nlu.models.formats.pretrained import Pretrained, load_into, open_pretrained
from tests.models.parts import task_model

VOCAB_SIZE = 50
LENGTHS = [1, 2, 3, 3, 7, 12, 12, 30, 31]
SIZES = {"hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 40}
OURS: dict[str, Any] = {"hidden_size": 24, "layers": 3, "heads": 4, "intermediate_size": 40, "max_positions": 64}


def foreign(kind: str, spread: Any, **changes: Any) -> nn.Module:
    """A random BertModel or ElectraModel of transformers."""
    transformers = pytest.importorskip("transformers")
    narrow = {"embedding_size": 16} if kind == "Electra" else {}
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=VOCAB_SIZE, max_position_embeddings=64, **{**SIZES, **narrow, **changes}
    )
    return spread(getattr(transformers, f"{kind}Model")(config))


def load(model: nn.Module, folder: Path, **keywords: Any) -> Bert:
    model.save_pretrained(folder)  # type: ignore[operator]
    source = open_pretrained(str(folder))
    bert = Bert(VOCAB_SIZE, source, pretrained=str(folder), **keywords)
    load_into(task_model(bert, "single", 2), source)
    return bert.eval()


def tokens_of(encoder: Any, batch: Any) -> torch.Tensor:
    return encoder.encode(encoder.embed(batch), batch, tokens=True).tokens_TD


def pooled_of(encoder: Any, batch: Any) -> torch.Tensor:
    return encoder.encode(encoder.embed(batch), batch, pooled=True).pooled_SD


@torch.inference_mode()
def hidden_of(model: nn.Module, batch: Any) -> list[torch.Tensor]:
    """What transformers computes for each example, all of them padded to the longest."""
    padded = torch.nn.utils.rnn.pad_sequence
    tokens, segments = (
        padded(part.split(batch.lengths), batch_first=True) for part in (batch.tokens_T, batch.segments_T)
    )
    mask = padded([torch.ones(length) for length in batch.lengths], batch_first=True)
    hidden = model(input_ids=tokens, token_type_ids=segments, attention_mask=mask).last_hidden_state
    return [row[:length] for row, length in zip(hidden, batch.lengths, strict=True)]


@pytest.mark.parametrize("in_training", [False, True])
@pytest.mark.parametrize("kind", ["Bert", "Electra"])
def test_hidden_states_projections_and_attention_are_those_of_transformers(corpus, spread, tmp_path, kind, in_training):
    theirs = foreign(kind, spread, attention_probs_dropout_prob=0.0, hidden_dropout_prob=0.0)
    theirs.set_attn_implementation("eager")
    ours = load(theirs, tmp_path / "weights").train(in_training)
    batch = corpus("pair", LENGTHS).batch()
    inside = Inside(hidden=True, projections=(0, -1), attention=(1, -1))
    with torch.inference_mode():
        found = ours.encode(ours.embed(batch), batch, pooled=True, inside=inside)
        pooled = pooled_of(ours, batch)
    # What else is asked for changes no result.
    assert (found.pooled_SD - pooled).abs().max() < 2e-6 and found.tokens_TD is None
    assert len(found.hidden) == 4 and set(found.projections) == {0, -1} and set(found.attention) == {1, -1}
    rows = zip(batch.tokens_T.split(batch.lengths), batch.segments_T.split(batch.lengths), strict=True)
    hidden = [layer.split(batch.lengths) for layer in found.hidden]
    for number, (tokens, segments) in enumerate(rows):
        with torch.inference_mode():
            expected = theirs(
                input_ids=tokens[None], token_type_ids=segments[None], output_hidden_states=True,
                output_attentions=True,
            )  # fmt: skip
        for layer, wanted in zip(hidden, expected.hidden_states, strict=True):
            assert (layer[number] - wanted[0]).abs().max() < 1e-5
        for asked, weights in found.attention.items():
            assert (weights[number] - expected.attentions[asked][0]).abs().max() < 1e-5
            torch.testing.assert_close(weights[number].sum(-1), torch.ones(weights[number].shape[:2]))
        for asked, parts in found.projections.items():
            block = theirs.encoder.layer[asked].attention.self
            before = expected.hidden_states[asked if asked >= 0 else asked - 1][0]
            for name, part in zip(("query", "key", "value"), parts, strict=True):
                with torch.inference_mode():
                    wanted = getattr(block, name)(before)
                assert (part.split(batch.lengths)[number] - wanted).abs().max() < 2e-5


@pytest.mark.parametrize("activation", ["gelu_new", "gelu_pytorch_tanh", "relu"])
def test_the_activation_of_the_weights_is_followed(corpus, spread, tmp_path, activation):
    theirs = foreign("Bert", spread, hidden_act=activation)
    ours = load(theirs, tmp_path / "weights")
    batch = corpus("single", LENGTHS).batch()
    with torch.inference_mode():
        found = tokens_of(ours, batch)
    assert (found - torch.cat(hidden_of(theirs, batch))).abs().max() < 1e-5


def test_the_pooler_and_the_mean_are_those_of_transformers(corpus, spread, tmp_path):
    theirs = foreign("Bert", spread)
    batch = corpus("pair", LENGTHS).batch()
    expected = hidden_of(theirs, batch)
    with torch.inference_mode():
        pooler = theirs.pooler(torch.stack([row[:1] for row in expected]))
        assert (pooled_of(load(theirs, tmp_path, pooling="pooler"), batch) - pooler).abs().max() < 1e-5
        mean = torch.stack([row.mean(0) for row in expected])
        assert (pooled_of(load(theirs, tmp_path, pooling="mean"), batch) - mean).abs().max() < 1e-5


@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("layout", ["single", "pair"])
def test_computing_only_first_tokens_in_the_last_layer_is_exact(corpus, spread, layout, layers):
    bert = spread(Bert(VOCAB_SIZE, None, pretrained=None, **{**OURS, "layers": layers}))
    batch = corpus(layout, LENGTHS).batch()
    whole, first = tokens_of(bert, batch)[batch.starts_S], pooled_of(bert, batch)
    assert (first - whole).abs().max() < 2e-6
    parameters = list(bert.parameters())
    weights = torch.randn(first.shape, generator=torch.Generator().manual_seed(1))
    for found, expected in zip(
        torch.autograd.grad((first * weights).sum(), parameters),
        torch.autograd.grad((whole * weights).sum(), parameters),
        strict=True,
    ):
        torch.testing.assert_close(found, expected, atol=3e-5, rtol=1e-4)


def test_the_residual_sums_and_the_mean_stay_fp32_under_autocast(corpus, spread):
    batch = corpus("single", [3, 60]).batch()
    for embedding_size in (None, 16):
        bert = spread(Bert(VOCAB_SIZE, None, pretrained=None, embedding_size=embedding_size, pooling="mean", **OURS))
        exact = pooled_of(bert, batch)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert tokens_of(bert, batch)[batch.starts_S].dtype == torch.float32
            rounded = pooled_of(bert, batch)
        assert rounded.dtype == torch.float32
        assert 0 < (rounded - exact).abs().max() < 0.2


def test_a_checkpoint_that_lacks_a_key_matrix_is_called_damaged(spread, tmp_path):
    theirs = foreign("Bert", spread)
    tensors = {name: value for name, value in theirs.state_dict().items() if "0.attention.self.key.weight" not in name}
    with pytest.raises(CheckpointError, match="query.weight but not its key and value; it is damaged"):
        Bert(VOCAB_SIZE, None, pretrained=None, **OURS).checkpoint_names(tensors)


def source(config: dict[str, Any]) -> Pretrained:
    return Pretrained("weights", Path("weights/model.safetensors"), config)


CONFIG: dict[str, Any] = {**SIZES, "max_position_embeddings": 64, "type_vocab_size": 2, "hidden_act": "relu"}


def test_sizes_left_open_are_those_of_the_weights_and_else_of_bert_base():
    bert = Bert(VOCAB_SIZE, source({**CONFIG, "hidden_dropout_prob": 0.3}), pretrained="weights", attention_dropout=0.2)
    assert bert.sizes == {
        "hidden_size": 24, "layers": 3, "layer_groups": None, "heads": 4, "intermediate_size": 40,
        "embedding_size": None, "max_positions": 64, "segment_types": 2, "activation": "relu", "dropout": 0.3,
        "attention_dropout": 0.2, "layer_norm_eps": 1e-12, "initializer_range": 0.02, "pruned_heads": {},
    }  # fmt: skip
    again = Bert(VOCAB_SIZE, source(bert.settings()), pretrained="weights")
    assert again.sizes == bert.sizes
    assert Bert(VOCAB_SIZE, None, pretrained=None, layers=1).sizes["hidden_size"] == 768


def test_all_written_sizes_that_contradict_the_weights_are_listed():
    with pytest.raises(UserError) as caught:
        Bert(VOCAB_SIZE, source(CONFIG), pretrained="weights", layers=12, heads=3, activation="gelu", dropout=0.5)
    assert [problem.partition(";")[0] for problem in caught.value.problems] == [
        "model.layers is 12, but the pretrained weights have 3",
        "model.heads is 3, but the pretrained weights have 4",
        "model.activation is gelu, but the pretrained weights have relu",
    ]


@pytest.mark.parametrize(
    ("changes", "reason", "remedy"),
    [
        ({"model_type": "mpnet"}, "model_type mpnet", "set model=hf"),
        ({"model_type": "textcnn"}, "model_type textcnn", "set model=textcnn"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type relative_key", "give other weights"),
        ({"hidden_act": "silu"}, "hidden_act silu", "set model=hf"),
    ],
)
def test_weights_of_an_encoder_that_computes_something_else_are_refused(changes, reason, remedy):
    with pytest.raises(CheckpointError) as caught:
        Bert(VOCAB_SIZE, source({**CONFIG, **changes}), pretrained="weights")
    assert reason in str(caught.value) and str(caught.value).endswith(remedy)


@pytest.mark.parametrize("sd", [None, 0.05])
def test_every_matrix_begins_with_the_deviation_asked_for_biases_at_0_and_norms_at_1(sd):
    torch.manual_seed(0)
    sizes = {"hidden_size": 48, "layers": 2, "heads": 4, "intermediate_size": 96, "max_positions": 64}
    bert = Bert(
        500, None, pretrained=None, initializer_range=sd, segment_types=40, embedding_size=32, pooling="pooler", **sizes
    )
    found = dict(bert.named_parameters())
    matrices = [name for name, value in found.items() if value.ndim == 2]
    for kind in ("word", "position", "token_type"):
        assert f"embeddings.{kind}_embeddings.weight" in matrices
    for name, value in found.items():
        if name in matrices:
            # BERT's own is 0.02; of the 1,280 numbers of the smallest matrix the deviation is known to 2 %.
            assert value.std().item() == pytest.approx(sd or 0.02, rel=0.1), name
            assert abs(value.mean().item()) < 0.1 * (sd or 0.02), name
        else:
            assert (value == (1.0 if name.endswith("LayerNorm.weight") else 0.0)).all(), name
