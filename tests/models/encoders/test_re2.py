"""RE2 follows its equations for each pair by itself, whatever else is in the batch."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import erf, softmax

from nlu.config.errors import UserError
from nlu.models.encoders.re2 import Block, Re2
from nlu.models.model_rules import pair_problems
from tests.models.parts import task_model

VOCAB_SIZE = 50
SIZES: dict[str, Any] = {"embedding_size": 6, "hidden_size": 8, "blocks": 3, "layers": 2}
LENGTHS = [2, 5, 5, 9, 30]


def encoder(spread: Any, **changes: Any) -> Re2:
    return spread(task_model(Re2(VOCAB_SIZE, None, pretrained=None, **{**SIZES, **changes}), "pair", 2)).backbone.eval()


@torch.inference_mode()
def pooled_of(re2: Re2, batch: Any) -> np.ndarray:
    return re2.encode(re2.embed(batch), batch, pooled=True).pooled_SD.numpy()


def gelu(x: np.ndarray) -> np.ndarray:
    return x * (1 + erf(x / math.sqrt(2))) / 2


def layer(module: Any, x: np.ndarray) -> np.ndarray:
    return gelu(x @ module.weight.detach().double().numpy().T + module.bias.detach().double().numpy())


def convolved(block: Block, x: np.ndarray) -> np.ndarray:
    for module in block.convolutions:
        weight, padded = module.weight.detach().double().numpy(), np.pad(x, ((1, 1), (0, 0)))
        windows = np.stack([padded[place : place + 3] for place in range(len(x))])
        x = gelu(np.einsum("lkd,odk->lo", windows, weight) + module.bias.detach().double().numpy())
    return x


def fused(block: Block, own: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Equations 3 to 7 for one text."""
    scores = layer(block.project, own) @ layer(block.project, other).T * block.temperature.item()
    aligned = softmax(scores, axis=1) @ other
    three = (
        layer(block.fuse_plain, np.concatenate([own, aligned], 1)),
        layer(block.fuse_difference, np.concatenate([own, own - aligned], 1)),
        layer(block.fuse_product, np.concatenate([own, own * aligned], 1)),
    )
    return layer(block.fuse, np.concatenate(three, 1))


def pair_of(re2: Re2, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """The vector of a pair, by the paper; both texts have tokens."""
    words = [re2.word_embeddings.weight.detach().double().numpy()[text] for text in (first, second)]
    outputs: list[list[np.ndarray]] = []
    for number, block in enumerate(re2.blocks):
        if number == 0:
            read = words
        elif number == 1:
            read = [np.concatenate([word, out], 1) for word, out in zip(words, outputs[0], strict=True)]
        else:
            # What the block before read beside the words, and what it wrote.
            before = [text[:, words[0].shape[1] :] for text in read]
            summed = [(x + y) / math.sqrt(2) for x, y in zip(before, outputs[-1], strict=True)]
            read = [np.concatenate([word, one], 1) for word, one in zip(words, summed, strict=True)]
        both = [np.concatenate([text, convolved(block, text)], 1) for text in read]
        outputs.append([fused(block, both[0], both[1]), fused(block, both[1], both[0])])
    a, b = (text.max(0) for text in outputs[-1])
    return np.concatenate([a, b, abs(a - b), a * b])


@pytest.mark.parametrize("blocks", [1, 2, 3])
def test_the_vector_of_a_pair_follows_the_paper(corpus, spread, blocks):
    re2, batch = encoder(spread, blocks=blocks), corpus("pair", LENGTHS).batch()
    rows = zip(batch.tokens_T.split(batch.lengths), batch.segments_T.split(batch.lengths), strict=True)
    texts = [(tokens[kinds == 0].numpy(), tokens[kinds == 1].numpy()) for tokens, kinds in rows]
    assert all(len(second) for _, second in texts)
    found, expected = pooled_of(re2, batch), np.array([pair_of(re2, *pair) for pair in texts])
    assert expected.std() > 0.01
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_an_empty_second_text_is_zero_and_has_a_finite_gradient(corpus, spread):
    # The second text of a pair of length 1 is empty.
    re2, batch = encoder(spread).train(), corpus("pair", [1, 7]).batch()
    found = re2.encode(re2.embed(batch), batch, pooled=True).pooled_SD
    found.sum().backward()
    assert not found[0].chunk(4)[1].any() and found.isfinite().all()
    assert all(value.grad is not None and value.grad.isfinite().all() for value in re2.parameters())


def test_other_rows_than_pairs_are_refused_before_data_is_read_and_by_the_model():
    with pytest.raises(UserError, match="model is re2, which compares the two texts of a pair"):
        Re2(VOCAB_SIZE, None, pretrained=None, **SIZES).width_of("single")
    config = {"task": {"_target_": "nlu.tasks.tag.Tag"}}
    (problem,) = pair_problems(config, {"layouts": ("units",)})
    assert problem.startswith("task=tag reads no pairs in one sequence")
    assert not list(pair_problems(config, {"layouts": ("single", "pair")})) and not list(pair_problems(config, {}))
