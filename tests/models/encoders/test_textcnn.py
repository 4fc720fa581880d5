"""Convolutions see their own text only, and a pair is two texts under the same weights."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from nlu.config.errors import UserError
from nlu.models.encoders.textcnn import TextCnn
from nlu.models.formats.pretrained import Pretrained
from nlu.models.task_model import TaskModel
from tests.models.parts import task_model

VOCAB_SIZE = 50
SIZES: dict[str, Any] = {"embedding_size": 8, "hidden_size": 12, "layers": 2, "kernel_sizes": [3, 5]}


def model(spread: Any, layout: str = "single", **changes: Any) -> TaskModel:
    return spread(task_model(TextCnn(VOCAB_SIZE, None, pretrained=None, **{**SIZES, **changes}), layout, 2))


def tokens_of(encoder: Any, batch: Any) -> torch.Tensor:
    return encoder.encode(encoder.embed(batch), batch, tokens=True).tokens_TD


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


def test_outputs_that_are_not_requested_are_left_out(corpus, spread):
    cnn: Any = model(spread).backbone
    batch = corpus("single", [2, 3]).batch()
    for tokens in (True, False):
        for pooled in (True, False):
            found = cnn.encode(cnn.embed(batch), batch, tokens=tokens, pooled=pooled)
            assert (found.tokens_TD is not None, found.pooled_SD is not None) == (tokens, pooled)
    found = cnn.encode(cnn.embed(batch), batch)
    assert found.tokens_TD is None and found.pooled_SD is None


def test_a_pair_is_both_texts_their_distance_and_their_product(corpus, spread):
    cnn: Any = model(spread, "pair").backbone
    batch = corpus("pair", [2, 5, 5, 9, 30]).batch()
    rows = zip(batch.tokens_T.split(batch.lengths), batch.segments_T.split(batch.lengths), strict=True)
    texts = [(best_of(cnn, tokens[kind == 0]), best_of(cnn, tokens[kind == 1])) for tokens, kind in rows]
    expected = torch.stack([torch.cat([a, b, (a - b).abs(), a * b]) for a, b in texts])
    torch.testing.assert_close(pooled_of(cnn, batch), expected)


def test_the_texts_of_pairs_are_padded_to_the_longest_text(corpus, spread):
    cnn: Any = model(spread, "pair").backbone
    batch, shapes = corpus("pair", [2, 9, 30]).batch(), []
    cnn.layers[0][0].register_forward_pre_hook(lambda layer, inputs: shapes.append(tuple(inputs[0].shape)))
    pooled_of(cnn, batch)
    texts = [(segments == kind).sum() for segments in batch.segments_T.split(batch.lengths) for kind in (0, 1)]
    assert shapes == [(6, SIZES["embedding_size"], max(texts))]


def test_a_pair_of_one_text_twice_has_equal_parts_and_no_distance(corpus, spread):
    cnn: Any = model(spread, "pair").backbone
    batch = corpus("pair", [8, 8]).batch()
    batch.tokens_T = torch.arange(4).repeat(4) + 1
    batch.segments_T = torch.tensor([0] * 4 + [1] * 4).repeat(2)
    first, second, distance, product = pooled_of(cnn, batch).split(SIZES["hidden_size"], dim=1)
    assert torch.equal(first, second) and not distance.any()
    torch.testing.assert_close(product, first.square())


def test_exchanging_the_texts_of_a_pair_exchanges_only_their_parts(corpus, spread):
    cnn: Any = model(spread, "pair").backbone
    batch = corpus("pair", [8]).batch()
    batch.segments_T = torch.tensor([0] * 3 + [1] * 5)
    first, second, distance, product = pooled_of(cnn, batch).chunk(4, dim=1)
    batch.tokens_T = torch.cat([batch.tokens_T[3:], batch.tokens_T[:3]])
    batch.segments_T = torch.tensor([0] * 5 + [1] * 3)
    for found, expected in zip(pooled_of(cnn, batch).chunk(4, dim=1), (second, first, distance, product), strict=True):
        torch.testing.assert_close(found, expected)


def test_a_pair_whose_second_text_is_empty_is_still_a_pair(corpus, spread):
    matcher = model(spread, "pair")
    single, among = corpus("pair", [1]).batch(), corpus("pair", [1, 1, 20], seed=0).batch()
    assert not single.segments_T.any()
    logits = matcher(single)
    assert logits.shape == (1, 2) and logits.isfinite().all()
    torch.testing.assert_close(matcher(among)[:1], logits)
    second = pooled_of(matcher.backbone, single).chunk(4, dim=1)[1]
    assert not second.any()


def test_the_gradient_of_an_empty_text_is_finite(corpus, spread):
    matcher = model(spread, "pair")
    matcher(corpus("pair", [1, 7]).batch()).sum().backward()
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in matcher.parameters())


def test_tags_are_read_off_at_the_units_places(corpus, spread):
    cnn: Any = model(spread, "units").backbone
    batch = corpus("units", [3, 7, 7, 20]).batch()
    every = torch.cat([tokens_of(cnn, batch)[torch.tensor([place])] for place in batch.units_U.tolist()])
    torch.testing.assert_close(tokens_of(cnn, batch)[batch.units_U], every)
    single = corpus("units", [3]).batch()
    torch.testing.assert_close(tokens_of(cnn, batch)[:3], tokens_of(cnn, single)[:3])


def test_there_must_be_a_kernel():
    with pytest.raises(UserError, match="model.kernel_sizes is empty, but .* e.g. \\[3,5\\]"):
        TextCnn(VOCAB_SIZE, None, pretrained=None, **{**SIZES, "kernel_sizes": []})


def test_all_sizes_that_are_not_those_of_the_former_run_are_listed():
    former = TextCnn(VOCAB_SIZE, None, pretrained=None, **SIZES).settings()
    source = Pretrained("RUN", Path("RUN/model.safetensors"), former)
    with pytest.raises(UserError) as caught:
        TextCnn(VOCAB_SIZE, source, pretrained="RUN", **{**SIZES, "layers": 1, "kernel_sizes": [3]})
    assert [problem.partition(";")[0] for problem in caught.value.problems] == [
        "model.layers is 1, but the pretrained weights have 2",
        "model.kernel_sizes is [3], but the pretrained weights have [3, 5]",
    ]
    assert TextCnn(VOCAB_SIZE, source, pretrained="RUN", **SIZES).settings() == former


def test_depth_counts_from_the_embeddings():
    cnn = TextCnn(VOCAB_SIZE, None, pretrained=None, **SIZES)
    found = {name.split(".")[0] + name.split(".")[1]: cnn.depth_of(name) for name, _ in cnn.named_parameters()}
    assert found == {"word_embeddingsweight": 0, "layers0": 1, "layers1": 2} and cnn.depth == 3


def test_word_vectors_begin_with_a_deviation_of_a_tenth():
    torch.manual_seed(0)
    weight = TextCnn(2000, None, pretrained=None, **SIZES).word_embeddings.weight
    assert weight.std().item() == pytest.approx(0.1, rel=0.03) and abs(weight.mean().item()) < 0.005
