"""Blocks of a corpus, compared with blocks that are written by hand."""

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from nlu.config.errors import DataError
from nlu.data.corpus import Corpus, _WordFinder
from nlu.data.opening import Store
from nlu.data.plan import plan_of
from nlu.data.prepare import prepare
from nlu.data.tokenizing import WordPiece, wordpiece

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
VOCAB = [*SPECIALS, *"abcdefghijklmnop", "x", "##y", "##z", *"我爱北京"]
TEXT = "a b c\nd e f g\n\nh i\n \nj k l m n o p a\nb c\n"
"""documents of (3, 4), (2) and (8, 2) tokens"""
BLOCKS = {
    "none": ["abcdef", "ghijkl", "mnopab", "c"],
    "none_doc": ["abcdef", "g", "hi", "jklmno", "pabc"],
    "complete": ["abc", "defghi", "jklmno", "bc"],
    "complete_doc": ["abc", "defg", "hi", "jklmno", "bc"],
    "eos": ["abc", "defg", "hi", "jklmno", "bc"],
}
"""blocks of at most six tokens; a sentence of eight is cut where blocks consist of whole sentences"""


@pytest.fixture
def opened(tmp_path: Path) -> Callable[..., Store]:
    (tmp_path / "vocab.txt").write_text("".join(f"{token}\n" for token in VOCAB))

    def open_corpus(text: str, **settings: object) -> Store:
        path = tmp_path / "corpus.txt"
        path.write_text(text)
        given = {"train": str(path), "dev": str(path), "max_len": 8, **settings}
        corpus = Corpus(**given)  # type: ignore[arg-type]
        plan = plan_of(
            corpus, WordPiece(), "nlu.data.targets.MaskedWords", ("single",), pretrained=None,
            vocab=tmp_path / "vocab.txt",
        )  # fmt: skip
        return prepare(plan)

    return open_corpus


def blocks_of(store: Store) -> list[str]:
    """Return the tokens of each block without special ones, as one word."""
    stored = store.sets["train"].stored
    found = []
    for row in range(len(stored)):
        tokens = stored.tokens(np.array([row])).tolist()
        assert (tokens[0], tokens[-1]) == (VOCAB.index("[CLS]"), VOCAB.index("[SEP]"))
        found.append("".join(VOCAB[token] for token in tokens[1:-1]))
    return found


@pytest.mark.parametrize("mode", BLOCKS)
def test_each_break_mode_makes_the_blocks_that_its_definition_says(mode: str, opened: Callable[..., Store]) -> None:
    store = opened(TEXT, break_mode=mode)
    assert blocks_of(store) == BLOCKS[mode]
    assert store.meta["sets"]["train"]["cut"] == (0 if mode.startswith("none") else 1)
    texts = [values["text"].replace(" ", "") for values in store.sets["train"].texts() if values is not None]
    assert texts == BLOCKS[mode]


def test_blocks_do_not_depend_on_how_many_lines_are_read_at_once(
    opened: Callable[..., Store], monkeypatch: pytest.MonkeyPatch, empty_cache: Path
) -> None:
    monkeypatch.setattr("nlu.data.corpus.LINES_AT_ONCE", 2)
    monkeypatch.setattr("nlu.data.reading.CHUNK_ROWS", 3)
    for mode, wanted in BLOCKS.items():
        assert blocks_of(opened(TEXT, break_mode=mode)) == wanted


def test_short_blocks_are_left_out_and_a_block_ends_with_its_file(opened: Callable[..., Store], tmp_path: Path) -> None:
    assert blocks_of(opened(TEXT, break_mode="none_doc", min_len=3)) == ["abcdef", "jklmno", "pabc"]
    (tmp_path / "more.txt").write_text("a\n")
    assert blocks_of(opened("b\nc", train=[str(tmp_path / "corpus.txt"), str(tmp_path / "more.txt")])) == ["bc", "a"]


def test_a_full_block_ends_before_a_word_that_does_not_fit(opened: Callable[..., Store]) -> None:
    assert blocks_of(opened("a b c d xyz e", break_mode="none")) == ["abcd", "x##y##ze"]
    assert blocks_of(opened("a xyzyzyzy", break_mode="none")) == ["a", "x##y##z##y##z##y", "##z##y"]


def test_words_between_spaces_are_stored_where_they_begin(opened: Callable[..., Store]) -> None:
    store = opened("我 爱 北京\nxy 北京", break_mode="complete", words="spaces", max_len=16)
    stored = store.sets["train"].stored
    words, counts = stored.words(np.arange(1))
    # [CLS] 我 爱 北 京 x ##y 北 京 [SEP]
    assert words.tolist() == [1, 2, 3, 5, 7] and counts.tolist() == [5]


def test_words_that_cut_a_piece_of_text_leave_the_tokens_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    cut = ModuleType("jieba")
    cut.cut = lambda text: {"我爱北京": ["我", "爱", "北京"], "xy": ["x", "y"]}[text]  # type: ignore[attr-defined]
    cut.setLogLevel = lambda level: None  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "jieba", cut)
    tokenizer = wordpiece(VOCAB, True, "vocab")
    first, second = _WordFinder("jieba", tokenizer).pieces(["我爱北京", "xy"])
    assert [VOCAB[token] for token in first.tokens_T] == list("我爱北京")
    assert first.begins_T.tolist() == [True, True, True, False]
    # y by itself is unknown, so the sentence keeps the words that its pieces tell.
    assert [VOCAB[token] for token in second.tokens_T] == ["x", "##y"]
    assert second.begins_T.tolist() == [True, False]


def test_a_damaged_line_is_named_or_left_out(opened: Callable[..., Store]) -> None:
    damaged = "a b\nc\0d\n\ne f"
    with pytest.raises(DataError, match=r"corpus\.txt:2: field line: 'c\\x00d' holds a NUL character"):
        opened(damaged)
    store = opened(damaged, on_bad_row="skip", break_mode="eos")
    assert blocks_of(store) == ["ab", "ef"] and store.meta["sets"]["train"]["bad_rows"] == 1


def test_a_vocabulary_is_built_from_the_sentences(tmp_path: Path) -> None:
    path = tmp_path / "corpus.txt"
    path.write_text("a b a\n\nb a c\n" * 3)
    corpus = Corpus(train=str(path), dev=str(path), break_mode="none", max_len=8)
    plan = plan_of(corpus, WordPiece(), "nlu.data.targets.MaskedWords", ("single",), pretrained=None, vocab=None)
    store = prepare(plan)
    assert set(store.tokenizer.vocabulary) == {*SPECIALS, "a", "b", "c"}
    texts = [values["text"] for values in store.sets["train"].texts() if values is not None]
    assert texts == ["a b a b a c"] * 3
