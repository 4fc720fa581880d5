"""Both directions follow the formula of an LSTM for each text by itself, whatever else is in the batch."""

from typing import Any

import numpy as np
import torch

from nlu.models.encoders.lstm import Lstm
from tests.models.parts import task_model

VOCAB_SIZE = 50
SIZES: dict[str, Any] = {"embedding_size": 8, "hidden_size": 12, "layers": 2}
LENGTHS = [1, 2, 2, 6, 6, 40]


def encoder(spread: Any, layout: str = "single", **changes: Any) -> Lstm:
    model = spread(task_model(Lstm(VOCAB_SIZE, None, pretrained=None, **{**SIZES, **changes}), layout, 2))
    return model.backbone.eval()


@torch.inference_mode()
def tokens_of(lstm: Lstm, batch: Any) -> np.ndarray:
    return lstm.encode(lstm.embed(batch), batch, tokens=True).tokens_TD.numpy()


@torch.inference_mode()
def pooled_of(lstm: Lstm, batch: Any) -> np.ndarray:
    return lstm.encode(lstm.embed(batch), batch, pooled=True).pooled_SD.numpy()


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def one_direction(x_LD: np.ndarray, weights: dict[str, np.ndarray], suffix: str) -> np.ndarray:
    """The formula in float64: gates in torch's order, input, forget, cell, output."""
    half = weights["weight_hh_l0" + suffix].shape[1]
    hidden, cell, found = np.zeros(half), np.zeros(half), []
    for x_D in x_LD:
        gates = weights["weight_ih_l0" + suffix] @ x_D + weights["bias_ih_l0" + suffix]
        gates += weights["weight_hh_l0" + suffix] @ hidden + weights["bias_hh_l0" + suffix]
        enter, forget, new, leave = np.split(gates, 4)
        cell = sigmoid(forget) * cell + sigmoid(enter) * np.tanh(new)
        hidden = sigmoid(leave) * np.tanh(cell)
        found.append(hidden)
    return np.array(found)


def read(lstm: Lstm, tokens: np.ndarray) -> np.ndarray:
    x_LD = lstm.word_embeddings.weight.detach().double().numpy()[tokens]
    for layer in lstm.layers:
        weights = {name: value.detach().double().numpy() for name, value in layer.named_parameters()}
        backwards = one_direction(x_LD[::-1], weights, "_reverse")[::-1]
        x_LD = np.concatenate([one_direction(x_LD, weights, ""), backwards], axis=1)
    return x_LD


def test_every_vector_of_a_token_follows_the_formula(corpus, spread):
    lstm, batch = encoder(spread), corpus("units", LENGTHS).batch()
    found = np.split(tokens_of(lstm, batch), np.cumsum(batch.lengths)[:-1])
    for tokens, vectors in zip(batch.tokens_T.split(batch.lengths), found, strict=True):
        np.testing.assert_allclose(vectors, read(lstm, tokens.numpy()), atol=1e-5)


def test_a_text_is_the_largest_value_of_each_feature(corpus, spread):
    lstm, batch = encoder(spread), corpus("single", LENGTHS).batch()
    expected = [read(lstm, tokens.numpy()).max(0) for tokens in batch.tokens_T.split(batch.lengths)]
    np.testing.assert_allclose(pooled_of(lstm, batch), expected, atol=1e-5)


def test_the_texts_of_a_pair_are_read_apart_and_an_empty_one_is_zero(corpus, spread):
    # The second text of a pair of length 1 is empty.
    lstm, batch = encoder(spread, "pair"), corpus("pair", [1, 1, 2, 9, 30]).batch()
    rows = zip(batch.tokens_T.split(batch.lengths), batch.segments_T.split(batch.lengths), strict=True)
    expected = []
    for tokens, segments in rows:
        texts = [tokens[segments == number].numpy() for number in (0, 1)]
        a, b = (read(lstm, text).max(0) if len(text) else np.zeros(12) for text in texts)
        expected.append(np.concatenate([a, b, abs(a - b), a * b]))
    np.testing.assert_allclose(pooled_of(lstm, batch), expected, atol=1e-5)
