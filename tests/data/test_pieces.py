"""Tokens put together from remembered pieces are those that the tokenizer gives for the whole text."""

import re
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, processors
from tokenizers import Tokenizer as Backend

from nlu.data import pieces
from nlu.data.pieces import PIECES, PieceTokenizer, can_cut
from nlu.data.tokenizing import SPECIALS, wordpiece

LETTERS = [*"abcdeéàßİ1279", *"中国蚂蚁花呗", *"!,.[]-_~、。《》？…", "한", "ㅎ", "क", "ω"]
VOCAB = [*SPECIALS, *LETTERS, *(f"##{letter}" for letter in LETTERS), "ab", "##cd"]
TROUBLE = [
    *" \t\n\r\x00\x07\x85\xa0\u200b\u200d\u2003\u2028\u3000\ufeff\ufffd\U000e0001",
    *"\u0301\u0345\u05b0\u302a\u1100\u1161\u212b\u2126\u037e\u1fef\u00b4\uf900\ufa0e\U0002f800\U00020000\U0001f600",
    *"ǅΣςſﬁ㎏①½＄＋＜｀￥",
]  # fmt: skip
TEXTS = st.text(st.one_of(st.sampled_from(LETTERS), st.sampled_from(TROUBLE), st.characters(exclude_categories=["Cs"])))


def of_whole_texts(backend: Backend, texts: list[str]) -> list[list[int]]:
    return [item.ids for item in backend.encode_batch_fast(texts, add_special_tokens=False)]


def of_pieces(tokenizer: PieceTokenizer, texts: list[str]) -> list[list[int]]:
    flat, counts_N = tokenizer.ids(texts)
    return [part.tolist() for part in np.split(flat, np.cumsum(counts_N)[:-1])] if texts else []


@pytest.mark.parametrize("lowercase", [True, False])
def test_any_text_has_the_tokens_of_its_pieces(lowercase: bool) -> None:
    backend = wordpiece(VOCAB, lowercase, "vocab").backend
    tokenizer = PieceTokenizer(backend)

    @settings(max_examples=400, deadline=None)
    @given(st.lists(TEXTS, max_size=4))
    def check(texts: list[str]) -> None:
        assert of_pieces(tokenizer, texts) == of_whole_texts(backend, texts)

    check()


@pytest.mark.parametrize("lowercase", [True, pytest.param(False, marks=pytest.mark.thorough)])
def test_every_character_at_which_texts_are_cut_separates_all_its_neighbours(lowercase: bool) -> None:
    separators = [
        chr(code) for code in range(sys.maxunicode + 1)
        if not 0xD800 <= code < 0xE000 and not re.fullmatch(PIECES.pattern.rpartition("|")[2], chr(code))
    ]  # fmt: skip
    assert "中" in separators and "，" in separators and " " in separators and "a" not in separators
    backend = wordpiece([*VOCAB, *(set(separators) - set(VOCAB))], lowercase, "vocab").backend
    texts = [f"ab{separator}cd\u0301{separator}{separator}\u0301é1" for separator in separators]
    assert of_pieces(PieceTokenizer(backend), texts) == of_whole_texts(backend, texts)


def test_special_tokens_of_a_tokenizers_file_are_found_in_the_text_as_it_finds_them() -> None:
    backend = wordpiece(VOCAB, True, "vocab").backend
    backend.add_special_tokens([AddedToken("[MASK]", lstrip=True), "[SEP]"])
    texts = ["中[MASK]国", "a [MASK] b", "[mask]", "中国", "[ MASK ]", "ab[SEP]"]
    assert can_cut(backend)
    assert of_pieces(PieceTokenizer(backend), texts) == of_whole_texts(backend, texts)


def test_pieces_are_encoded_without_the_special_tokens_of_a_tokenizer_file() -> None:
    backend = wordpiece(VOCAB, True, "vocab").backend
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    assert backend.encode("ab").ids[0] == 2
    assert of_pieces(PieceTokenizer(backend), ["ab 中国", "", "c"]) == [
        backend.encode(text, add_special_tokens=False).ids for text in ("ab 中国", "", "c")
    ]


def test_tokenizers_that_cut_differently_are_not_changed() -> None:
    backend = wordpiece(VOCAB, True, "vocab").backend
    backend.add_tokens([AddedToken("蚂蚁", normalized=True)])
    assert not can_cut(backend)
    backend = wordpiece(VOCAB, True, "vocab").backend
    backend.normalizer.handle_chinese_chars = False
    assert not can_cut(backend)


def test_memory_is_bounded_and_forgetting_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "MOST_REMEMBERED", 5)
    backend = wordpiece(VOCAB, True, "vocab").backend
    tokenizer = PieceTokenizer(backend)
    for texts in (["ab cd", "中"], ["a b c d e"], ["中国 ab"], ["1 2 7 9 a b c"], ["ab"]):
        assert of_pieces(tokenizer, texts) == of_whole_texts(backend, texts)
        assert len(tokenizer._number_of) <= 7
    assert [len(part) for part in tokenizer.ids([])] == [0, 0]
