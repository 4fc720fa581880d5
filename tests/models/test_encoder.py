"""What every encoder promises: it looks words up, and computes from them what is asked for and nothing else."""

from pathlib import Path
from typing import Any

import pytest
import torch

from nlu.models.encoder import Encoded, Encoder
from nlu.models.encoders.bert import Bert
from nlu.models.encoders.huggingface import HuggingFace
from nlu.models.encoders.lstm import Lstm
from nlu.models.encoders.static import Static
from nlu.models.encoders.textcnn import TextCnn
from nlu.models.formats.pretrained import open_pretrained

VOCAB_SIZE = 50
LENGTHS = [2, 3, 7, 7, 30]


def bert(**changes: Any) -> Bert:
    sizes = {"hidden_size": 24, "layers": 2, "heads": 4, "intermediate_size": 40, "max_positions": 64}
    return Bert(VOCAB_SIZE, None, pretrained=None, **{**sizes, **changes})


def hugging_face(folder: Path) -> HuggingFace:
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40}
    transformers.BertModel(transformers.BertConfig(vocab_size=VOCAB_SIZE, **sizes)).save_pretrained(folder)
    return HuggingFace(VOCAB_SIZE, open_pretrained(str(folder)), pretrained=str(folder))


ENCODERS = {
    "bert": lambda folder: bert(),
    "bert with narrow embeddings": lambda folder: bert(embedding_size=16, pooling="mean"),
    "bert with repeated layers": lambda folder: bert(layer_groups=1, segment_types=1),
    "bert with a pooler": lambda folder: bert(pooling="pooler"),
    "bert with a maximum": lambda folder: bert(pooling="max"),
    "bert with attention over tokens": lambda folder: bert(pooling="attention"),
    "bert with joined layers": lambda folder: bert(pooling="layers", pooled_layers=[-1, 0]),
    "lstm": lambda folder: Lstm(VOCAB_SIZE, None, pretrained=None, embedding_size=8, hidden_size=12),
    "static": lambda folder: Static(VOCAB_SIZE, None, pretrained=None, embedding_size=8),
    "textcnn": lambda folder: TextCnn(VOCAB_SIZE, None, pretrained=None, embedding_size=8, hidden_size=12),
    "hf": hugging_face,
}


@pytest.fixture(params=ENCODERS)
def encoder(request, spread, tmp_path) -> Any:
    return spread(ENCODERS[request.param](tmp_path / "weights"))


def encode(encoder: Any, batch: Any, **asked: bool) -> Encoded:
    return encoder.encode(encoder.embed(batch), batch, **asked)


def test_outputs_that_are_not_requested_are_none(encoder: Encoder, corpus):
    batch = corpus("single", LENGTHS).batch()
    assert encode(encoder, batch) == Encoded(None, None)
    tokens, pooled = encode(encoder, batch, tokens=True), encode(encoder, batch, pooled=True)
    width = encoder.width_of("single")
    assert tokens.pooled_SD is None and tokens.tokens_TD.shape == (sum(LENGTHS), width)
    assert pooled.tokens_TD is None and pooled.pooled_SD.shape == (len(LENGTHS), width)


def test_both_outputs_together_equal_each_computed_separately(encoder: Encoder, corpus):
    batch = corpus("single", LENGTHS).batch()
    both = encode(encoder, batch, tokens=True, pooled=True)
    torch.testing.assert_close(both.tokens_TD, encode(encoder, batch, tokens=True).tokens_TD)
    torch.testing.assert_close(both.pooled_SD, encode(encoder, batch, pooled=True).pooled_SD)


def test_word_vectors_are_rows_of_the_table_of_words(encoder: Any, corpus):
    batch = corpus("single", LENGTHS).batch()
    name = next(name for name, _ in encoder.named_parameters() if "word_embeddings" in name)
    assert torch.equal(encoder.embed(batch), encoder.state_dict()[name][batch.tokens_T])


def test_a_change_of_one_word_vector_reaches_only_its_sequence(encoder: Encoder, corpus):
    batch = corpus("single", LENGTHS).batch()
    x_TD = encoder.embed(batch).detach().requires_grad_()
    # The token in the second place of the third sequence.
    place = int(batch.starts_S[2]) + 1
    delta_TD = torch.zeros_like(x_TD)
    delta_TD[place] = torch.linspace(-1, 1, x_TD.shape[1])
    before = encoder.encode(x_TD, batch, pooled=True).pooled_SD
    after = encoder.encode(x_TD + delta_TD, batch, pooled=True).pooled_SD
    changed = (before - after).abs().amax(1) > 1e-4
    assert changed.tolist() == [False, False, True, False, False]
    gradient_TD = torch.autograd.grad(before[2].sum(), x_TD)[0]
    assert gradient_TD[place].any()
    assert not gradient_TD[: int(batch.starts_S[2])].any() and not gradient_TD[int(batch.starts_S[3]) :].any()


def test_the_texts_of_a_pair_apart_are_encoded_as_two_single_texts(encoder: Encoder, corpus):
    sides = corpus("sides", [4, 9, 9, 30])
    encoder.layout = "sides"
    batch = sides.batch()
    assert batch.num_sequences == 8 and batch.sequences_KB.shape == (2, 4)
    together = encode(encoder, batch, pooled=True).pooled_SD
    assert together.shape == (8, encoder.width_of("sides"))
    for example in range(4):
        one = sides.batch(batch.examples_B[example : example + 1])
        single = encode(encoder, one, pooled=True).pooled_SD
        torch.testing.assert_close(together[batch.sequences_KB[:, example]], single[one.sequences_KB[:, 0]])


def test_the_last_layer_of_bert_computes_only_first_tokens_unless_others_are_needed(corpus):
    encoder, batch, rows = bert(), corpus("single", [9] * 20).batch(), []
    last = encoder.encoder["layer"][1].intermediate["dense"]
    last.register_forward_hook(lambda module, inputs, output: rows.append(len(inputs[0])))
    for asked in ({"pooled": True}, {"tokens": True}, {"tokens": True, "pooled": True}):
        encode(encoder, batch, **asked)
    encode(encoder, batch)
    assert rows == [20, 180, 180]


@pytest.mark.gpu
@pytest.mark.parametrize("layout", ["single", "pair"])
@pytest.mark.parametrize(
    "name", ["bert", "bert with narrow embeddings", "bert with a maximum", "bert with attention over tokens", "textcnn"]
)
def test_on_cuda_the_host_never_waits_for_the_device(corpus, tmp_path, name, layout):
    device = torch.device("cuda")
    encoder = ENCODERS[name](tmp_path / "weights").to(device)
    encoder.layout = layout
    batch = corpus(layout, LENGTHS).batch()
    encode(encoder, batch.to(device), tokens=True, pooled=True)
    # Every wait raises from here on, as the last line shows.
    torch.cuda.set_sync_debug_mode("error")
    try:
        encoded = encode(encoder, batch.to(device), tokens=True, pooled=True)
        with pytest.raises(RuntimeError, match="synchroniz"):
            encoded.pooled_SD.cpu()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert encoded.tokens_TD.isfinite().all() and encoded.pooled_SD.isfinite().all()
