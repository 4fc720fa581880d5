"""Texts of a row to sequences of a batch: pairs in one sequence or two, words with the space before them."""

from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from nlu.data.collate import collate
from nlu.data.fields import ROLES, TEXT_ROLES
from nlu.data.layouts import LAYOUTS
from nlu.data.tokenizing import SPECIALS, Template, Tokenizer, wordpiece

WORDS = ["Ann", "Lee", "Leeds", "lives", "in", ",", "O'Neill", "42", "naïve", "co-op", "a", "(", "x"]
CORPUS = ["Ann Lee lives in Leeds, a naïve place", "O'Neill (42) lives in co-op x", "in Leeds Ann lives"] * 3


def trained(pre_tokenizer, normalizer=None):
    backend = Backend(models.BPE(unk_token="[UNK]"))
    backend.pre_tokenizer, backend.decoder = pre_tokenizer, decoders.ByteLevel()
    if normalizer is not None:
        backend.normalizer = normalizer
    trainer = trainers.BpeTrainer(
        vocab_size=350, special_tokens=SPECIALS, show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )  # fmt: skip
    backend.train_from_iterator(CORPUS, trainer)
    return Tokenizer(backend, Template((2,), (), (3,)), Template((2,), (3,), (3,)), 1)


SPLITS = {
    "byte-level": (pre_tokenizers.ByteLevel(add_prefix_space=False),),
    "byte-level, spaced": (pre_tokenizers.ByteLevel(add_prefix_space=True),),
    "metaspace": (pre_tokenizers.Metaspace(prepend_scheme="always"),),
    "metaspace, first": (pre_tokenizers.Metaspace(prepend_scheme="first"),),
    "metaspace, never": (pre_tokenizers.Metaspace(prepend_scheme="never"),),
    "replaced": (
        pre_tokenizers.Split("▁", "merged_with_next"),
        normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]),
    ),
}
NAMES = [*SPLITS, "wordpiece"]


@cache
def tokenizer_of(name):
    if name == "wordpiece":
        return wordpiece([*SPECIALS, "ann", "lee", "##ds", "in", "a", ","], True, "here")
    return trained(*SPLITS[name])


@pytest.mark.parametrize("name", NAMES)
@given(st.lists(st.sampled_from(WORDS), min_size=1, max_size=8))
def test_words_have_the_tokens_that_they_have_in_their_sentence(name, words):
    tokenizer = tokenizer_of(name)
    whole = tokenizer.backend.encode(" ".join(words), add_special_tokens=False)
    begins = np.cumsum([0, *(len(word) + 1 for word in words)])
    encoded = LAYOUTS["units"].encode(tokenizer, [{"tokens": words}], 512)
    assert encoded.tokens.tolist() == [2, *whole.ids, 3]
    # A word begins with the space before it, which may be a separate token.
    word_of = [int(np.searchsorted(begins - 1, end - 1, side="right")) - 1 for _, end in whole.offsets]
    assert encoded.words.tolist() == [1 + word_of.index(number) for number in range(len(words))]


@pytest.mark.parametrize("name", NAMES)
@given(st.lists(st.sampled_from([word for word in WORDS if word.isalpha()]), min_size=1, max_size=8))
def test_a_text_has_the_tokens_of_its_words_each_at_its_place(name, words):
    text = " ".join(words)
    encoded = LAYOUTS["units"].encode(tokenizer_of(name), [{"text": text}], 512)
    listed = LAYOUTS["units"].encode(tokenizer_of(name), [{"tokens": words}], 512)
    assert encoded.tokens.tolist() == listed.tokens.tolist() and encoded.words.tolist() == listed.words.tolist()
    firsts = np.cumsum([0, *(len(word) + 1 for word in words)])[:-1]
    assert encoded.places.reshape(-1, 2).tolist() == [
        [first, first + len(word) - 1] for first, word in zip(firsts.tolist(), words, strict=True)
    ]
    assert listed.places is None


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("text", ["Ann Lee, in Leeds (a 中国 lee)", "lee,ann", "  Ann\tin"])
def test_marks_and_characters_of_a_text_are_words_that_change_no_token(name, text):
    encoded = LAYOUTS["units"].encode(tokenizer_of(name), [{"text": " ".join(text.split())}], 512)
    whole = tokenizer_of(name).backend.encode(" ".join(text.split()), add_special_tokens=False)
    assert encoded.tokens[1:-1].tolist() == whole.ids


TEXTS = ["a", "a b", "a b c", "a b c d e", "a b c d e f g h i j k l"]


@pytest.fixture
def sides(write, open_files):
    lines = [f"{a}\t{b}\t{(i + j) % 2}" for i, a in enumerate(TEXTS) for j, b in enumerate(TEXTS)]
    path = write("sides.tsv", "\n".join(lines))
    return open_files("sides", train=path, dev=path, fields={"text_a": 0, "text_b": 1, "label": 2}, max_len=9)


@pytest.mark.parametrize("asked", [[7], [0, 24, 4, 20], [3, 15, 18, 19, 1, 2, 11], list(range(25))], ids=len)
def test_each_text_of_a_pair_is_encoded_like_a_single_text(sides, asked):
    part = sides.sets["train"]
    batch = collate(part, np.array(asked), key=(1, 2))
    assert batch.num_sequences == 2 * len(batch) == 2 * len(asked) and batch.key == (1, 2)
    assert batch.lengths == sorted(batch.lengths) and batch.sequences_KB.shape == (2, len(asked))
    assert sorted(batch.sequences_KB.reshape(-1).tolist()) == list(range(2 * len(asked)))
    assert sorted(batch.examples_B.tolist()) == sorted(asked)
    for column, example in enumerate(batch.examples_B):
        assert batch.targets["labels"][column] == (example // 5 + example % 5) % 2
        for side in range(2):
            sequence = int(batch.sequences_KB[side, column])
            start, length = int(batch.starts_S[sequence]), batch.lengths[sequence]
            single = LAYOUTS["single"].encode(sides.tokenizer, [{"text": TEXTS[(example // 5, example % 5)[side]]}], 9)
            assert batch.tokens_T[start : start + length].tolist() == single.tokens.tolist()
            assert batch.positions_T[start : start + length].tolist() == list(range(length))
    assert not batch.segments_T.any()


def test_each_side_is_cut_by_itself(sides):
    assert sides.meta["sets"]["train"]["cut"] == 9
    assert sides.sets["train"].lengths_N.max() == 18


def test_pairs_and_sides_are_the_same_rows_to_duplicates_and_another_store(write, open_files):
    path = write("t.tsv", "a\tb\t1\na\tb\t0\n")
    fields = {"text_a": 0, "text_b": 1, "label": 2}
    one, other = (open_files(name, train=path, dev=path, fields=fields) for name in ("pair", "sides"))
    assert one.folder != other.folder
    hashes = [store.sets["train"].stored.text_hash_N.tolist() for store in (one, other)]
    assert hashes[0] == hashes[1]


def test_every_layout_is_known_to_the_configuration():
    assert {layout.name for layout in LAYOUTS.values()} == set(TEXT_ROLES)
    assert all(layout.key == key for key, layout in LAYOUTS.items())
    assert {role for alternatives in TEXT_ROLES.values() for roles in alternatives for role in roles} < set(ROLES)
