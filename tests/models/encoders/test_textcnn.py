"""Convolutions see their own text only, and a pair is two texts under the same weights."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from nlu.config.errors import UserError
from nlu.models.encoders.textcnn import TextCnn
from nlu.models.task_model import TaskModel
from tests.models.parts import task_model

VOCAB_SIZE = 50
SIZES: dict[str, Any] = {"embedding_size": 8, "hidden_size": 12, "layers": 2, "kernel_sizes": [3, 5]}


def model(spread: Any, layout: str = "single", **changes: Any) -> TaskModel:
    return spread(task_model(TextCnn(VOCAB_SIZE, None, pretrained=None, **{**SIZES, **changes}), layout, 2))


def pooled_of(encoder: Any, batch: Any) -> torch.Tensor:
    return encoder.encode(encoder.embed(batch), batch, pooled=True).pooled_SD


def best_of(cnn: TextCnn, tokens: torch.Tensor) -> torch.Tensor:
    """The formula for one text: convolve, add up, activate, layer by layer; then the largest of each feature."""
    hidden = cnn.word_embeddings(tokens).T
    for convolutions in cnn.layers:
        pairs = [(c.weight, c.bias) for c in convolutions]
        hidden = F.gelu(sum(F.conv1d(hidden[None], w, b, padding=w.shape[2] // 2)[0] for w, b in pairs))
    return hidden.amax(dim=1)


@pytest.mark.parametrize("kernel_sizes", [[1], [3, 5], [9]])
def test_the_vector_of_a_text_among_longer_ones_follows_the_formula(corpus, spread, kernel_sizes):
    cnn: Any = model(spread, kernel_sizes=kernel_sizes).backbone
    batch = corpus("single", [1, 2, 2, 6, 40]).batch()
    expected = torch.stack([best_of(cnn, tokens) for tokens in batch.tokens_T.split(batch.lengths)])
    torch.testing.assert_close(pooled_of(cnn, batch), expected)


def test_a_pair_is_both_texts_their_distance_and_their_product(corpus, spread):
    cnn: Any = model(spread, "pair").backbone
    batch = corpus("pair", [2, 5, 5, 9, 30]).batch()
    rows = zip(batch.tokens_T.split(batch.lengths), batch.segments_T.split(batch.lengths), strict=True)
    texts = [(best_of(cnn, tokens[kind == 0]), best_of(cnn, tokens[kind == 1])) for tokens, kind in rows]
    expected = torch.stack([torch.cat([a, b, (a - b).abs(), a * b]) for a, b in texts])
    torch.testing.assert_close(pooled_of(cnn, batch), expected)


def test_there_must_be_a_kernel():
    with pytest.raises(UserError, match="model.kernel_sizes is empty, but .* e.g. \\[3,5\\]"):
        TextCnn(VOCAB_SIZE, None, pretrained=None, **{**SIZES, "kernel_sizes": []})


def test_word_vectors_begin_with_a_deviation_of_a_tenth():
    torch.manual_seed(0)
    weight = TextCnn(2000, None, pretrained=None, **SIZES).word_embeddings.weight
    assert weight.std().item() == pytest.approx(0.1, rel=0.03) and abs(weight.mean().item()) < 0.005
