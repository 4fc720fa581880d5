"""Texts that were tokenized before, with a built and with a given vocabulary."""

from pathlib import Path

import numpy as np
import pytest
from tokenizers import pre_tokenizers

from nlu.config.errors import DataError
from nlu.data.tokenizing import SPECIALS, Tokenizer, load_tokenizer
from nlu.data.whitespace import TOKENS, Whitespace

TEXTS = ["U.S. 's  北京 ##ing\u3000don't", "北京 's 's Rare"]


def built(**settings: object) -> Tokenizer:
    tokenizing = Whitespace(**{"min_count": 1, **settings})  # type: ignore[arg-type]
    whole = tokenizing.build([TEXTS])
    counts_V = np.bincount(whole.ids(TEXTS)[0], minlength=whole.vocab_size)
    return tokenizing.restrict(whole, counts_V)[0]


def words_of(tokenizer: Tokenizer, text: str) -> list[str | None]:
    return [tokenizer.backend.id_to_token(number) for number in tokenizer.ids([text])[0].tolist()]


def test_tokens_stand_between_white_space_and_nothing_else_is_split() -> None:
    assert words_of(built(), TEXTS[0]) == ["U.S.", "'s", "北京", "##ing", "don't"]
    assert words_of(built(), "Don't [MASK]. [MASK]") == ["[UNK]", "[UNK]", "[MASK]"]


def test_a_built_vocabulary_has_the_most_frequent_tokens_first() -> None:
    vocabulary = built().vocabulary
    in_order = sorted(vocabulary, key=vocabulary.__getitem__)
    # 's occurs three times, 北京 twice, and each other token once.
    assert in_order == [*SPECIALS, "'s", "北京", "##ing", "Rare", "U.S.", "don't"]
    assert set(built(min_count=2).vocabulary) == {*SPECIALS, "'s", "北京"}
    assert built(max_size=6).vocab_size == 6
    assert "rare" in built(lowercase=True).vocabulary and words_of(built(lowercase=True), "RARE") == ["rare"]


def test_the_tokenizer_of_a_checkpoint_is_the_one_that_was_saved(tmp_path: Path) -> None:
    saved = built(lowercase=True)
    saved.save(tmp_path)
    opened = load_tokenizer(tmp_path, None)
    assert opened is not None and opened.digest == saved.digest
    # It continues to split at white space, also as the vocabulary of weights.
    for tokenizing in (Whitespace(), Whitespace(vocab="any")):
        given = tokenizing.given(None, tmp_path)
        assert given is not None and given.digest == saved.digest


def test_a_vocabulary_of_wordpieces_names_the_tokens_of_the_texts(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text("\n".join([*SPECIALS, "ing", "##ing", "北", "."]))
    given = Whitespace().given(tmp_path / "vocab.txt", None)
    assert given is not None and given.ids(["##ing 北 . 北. ing"])[0].tolist() == [6, 7, 8, 1, 5]
    (tmp_path / "vocab.txt").write_text("a\nb")
    with pytest.raises(DataError, match=r"the vocabulary lacks \[UNK\], \[CLS\], \[SEP\]"):
        Whitespace().given(None, tmp_path)


def test_counting_splits_exactly_where_the_tokenizer_does() -> None:
    splitter = pre_tokenizers.WhitespaceSplit()
    letters = [chr(code) for code in range(1, 0x3100) if not 0xD800 <= code < 0xE000]
    assert all(
        len(TOKENS.findall(f"a{letter}b")) == len(splitter.pre_tokenize_str(f"a{letter}b")) for letter in letters
    )
