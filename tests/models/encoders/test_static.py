"""A text is the weighted mean of its word vectors; an encoder's outputs become these vectors."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from nlu.data.tokenizing import wordpiece
from nlu.display.progress_bars import Progress
from nlu.models.encoders.static import Static
from nlu.models.formats.vectors import fill, principal_components
from tests.models.parts import task_model

VOCAB_SIZE = 50
LENGTHS = [1, 1, 2, 5, 9, 30]
COUNTS_V = np.arange(VOCAB_SIZE) ** 2
LEFT_OUT = [0, 7, 20]
"""tokens that have no meaning"""


def encoder(spread: Any, layout: str = "single", **changes: Any) -> Static:
    own = {"embedding_size": 8, "rarity": 0.01, **changes}
    static = spread(task_model(Static(VOCAB_SIZE, None, pretrained=None, **own), layout, 2)).backbone.eval()
    static.weigh(COUNTS_V, LEFT_OUT)
    return static


@torch.inference_mode()
def pooled_of(static: Static, batch: Any) -> np.ndarray:
    return static.encode(static.embed(batch), batch, pooled=True).pooled_SD.numpy()


def mean_of(static: Static, tokens: np.ndarray, rarity: float = 0.01) -> np.ndarray:
    tokens = tokens[~np.isin(tokens, LEFT_OUT)]
    vectors = static.word_embeddings.weight.detach().double().numpy()[tokens]
    counts_V = np.where(np.isin(np.arange(VOCAB_SIZE), LEFT_OUT), 0, COUNTS_V)
    share = counts_V[tokens] / counts_V.sum()
    weights = rarity / (rarity + share) if rarity else np.ones(len(tokens))
    if rarity:
        # Over all words of the texts their mean is 1.
        of_all = counts_V / counts_V.sum()
        weights = weights / np.sum(of_all * rarity / (rarity + of_all))
    return (vectors * weights[:, None]).mean(0) if len(tokens) else np.zeros(8)


@pytest.mark.parametrize("rarity", [0.01, 0.0])
def test_a_text_is_the_mean_of_its_vectors_weighed_by_rarity(corpus, spread, rarity):
    static, batch = encoder(spread, rarity=rarity), corpus("single", LENGTHS).batch()
    expected = [mean_of(static, tokens.numpy(), rarity) for tokens in batch.tokens_T.split(batch.lengths)]
    np.testing.assert_allclose(pooled_of(static, batch), expected, atol=1e-6)


def test_the_texts_of_a_pair_have_a_mean_each_and_an_empty_one_zeros(corpus, spread):
    # The second text of a pair of length 1 is empty.
    static, batch = encoder(spread, "pair"), corpus("pair", LENGTHS).batch()
    rows = zip(batch.tokens_T.split(batch.lengths), batch.segments_T.split(batch.lengths), strict=True)
    expected = []
    for tokens, segments in rows:
        a, b = (mean_of(static, tokens[segments == number].numpy()) for number in (0, 1))
        expected.append(np.concatenate([a, b, abs(a - b), a * b]))
    np.testing.assert_allclose(pooled_of(static, batch), expected, atol=1e-6)


@pytest.fixture
def weights(tmp_path: Path, spread: Any) -> tuple[Path, Any]:
    """A random BertModel of transformers with its vocabulary."""
    transformers = pytest.importorskip("transformers")
    vocab = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "good", "bad", "##ly", "a", "b", "c", "##d"]
    sizes = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40}
    model = spread(transformers.BertModel(transformers.BertConfig(vocab_size=len(vocab), **sizes))).eval()
    model.save_pretrained(tmp_path / "weights")
    (tmp_path / "weights" / "vocab.txt").write_text("\n".join(vocab) + "\n")
    return tmp_path / "weights", model


@torch.inference_mode()
def test_the_vector_of_a_word_is_what_transformers_computes_for_it(weights):
    folder, theirs = weights
    tokenizer = wordpiece((folder / "vocab.txt").read_text().splitlines(), True, "vocab.txt")
    # Words of another vocabulary, which the tokenizer of the weights splits in its own way.
    vocabulary = {"goodly": 1, "##bad": 2, "ab": 3, "a": 4, "good": 5}
    texts = {1: ["good", "##ly"], 2: ["bad"], 3: ["[UNK]"], 4: ["a"], 5: ["good"]}
    outputs = []
    for pieces in texts.values():
        ids = torch.tensor([[tokenizer.vocabulary[name] for name in ("[CLS]", *pieces, "[SEP]")]])
        outputs.append(theirs(input_ids=ids).last_hidden_state[0].mean(0).double().numpy())
    centred = np.array(outputs) - np.mean(outputs, axis=0)
    # By a singular value decomposition; the signs of components are not determined by it.
    left, values, _ = np.linalg.svd(centred, full_matrices=False)
    expected = (left * values)[:, :3]
    words = torch.nn.Embedding(6, 3)
    torch.nn.init.constant_(words.weight, -8)
    fill(words, vocabulary, str(folder), np.zeros(6), Progress(enabled=False))
    found = words.weight.numpy()
    assert (found[0] == -8).all()
    np.testing.assert_allclose(abs(found[1:]), abs(expected) * 0.1 / expected.std(), rtol=1e-3, atol=1e-5)


def test_the_outputs_for_words_do_not_depend_on_their_order(weights):
    vocabulary = {word: number for number, word in enumerate(["a", "good", "bad", "ab", "##ly", "goodly", "c"])}
    tables = [torch.nn.Embedding(7, 3) for _ in range(2)]
    for table, order in zip(tables, (sorted(vocabulary), sorted(vocabulary, reverse=True)), strict=True):
        words = {word: vocabulary[word] for word in order}
        fill(table, words, str(weights[0]), np.zeros(7), Progress(enabled=False))
    assert torch.equal(tables[0].weight, tables[1].weight)


def test_components_have_the_sign_of_their_largest_entry():
    rows = np.random.default_rng(0).normal(size=(4000, 5)) * [16, 8, 4, 2, 1]
    found = principal_components(rows, 3)
    np.testing.assert_allclose(found, principal_components(rows[::-1], 3)[::-1], atol=1e-5)
    # The axes are close to those of the numbers, so each component grows with one of them.
    assert all(np.corrcoef(found[:, place], rows[:, place])[0, 1] > 0.9 for place in range(3))
    assert found.std() == pytest.approx(0.1, rel=1e-5)
