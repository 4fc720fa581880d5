"""Blocks of a corpus, compared with blocks that are written by hand."""

import csv
import gzip
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nlu.config.errors import DataError
from nlu.data.corpus import Corpus, _WordFinder
from nlu.data.opening import Store
from nlu.data.prepare import prepare
from nlu.data.store_plan import plan_of
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


DOCUMENTS = ["a b c\nd e f g", "h i", "j k l m n o p a\n\n b c"]
"""the documents of TEXT, in which the line of eight tokens is continued instead of cut"""
BLOCKS_OF_ROWS = {
    "none": BLOCKS["none"], "none_doc": BLOCKS["none_doc"], "complete": ["abc", "defghi", "jklmno", "pabc"],
    "complete_doc": ["abc", "defg", "hi", "jklmno", "pabc"], "eos": ["abc", "defg", "hi", "jklmno", "pa", "bc"],
}  # fmt: skip


def rows_file(folder: Path, name: str, column: str) -> Path:
    path, rows = folder / name, [{"id": number, column: text} for number, text in enumerate(DOCUMENTS)]
    if name.endswith("parquet"):
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif name.endswith("csv"):
        with open(path, "w", newline="") as file:
            csv.writer(file).writerows([rows[0].keys(), *(row.values() for row in rows)])
    else:
        text = "\n".join(map(json.dumps, rows)) + "\n"
        path.write_bytes(gzip.compress(text.encode()) if name.endswith("gz") else text.encode())
    return path


@pytest.mark.parametrize(
    ("mode", "name"), zip(BLOCKS_OF_ROWS, ["a.jsonl", "a.jsonl.gz", "a.csv", "a.parquet", "b.jsonl"], strict=True)
)
def test_a_row_is_a_document_whose_long_lines_are_continued(
    mode: str, name: str, opened: Callable[..., Store], tmp_path: Path
) -> None:
    path = str(rows_file(tmp_path, name, "content"))
    store = opened("unused\n", train=path, dev=path, break_mode=mode, fields={"text": "content"})
    assert blocks_of(store) == BLOCKS_OF_ROWS[mode]
    assert store.meta["sets"]["train"]["cut"] == 0


def test_the_column_of_texts_is_text_or_is_named_by_the_key(opened: Callable[..., Store], tmp_path: Path) -> None:
    path = str(rows_file(tmp_path, "a.jsonl", "text"))
    assert blocks_of(opened("unused\n", train=path, dev=path)) == BLOCKS_OF_ROWS["complete"]
    path = str(rows_file(tmp_path, "b.parquet", "content"))
    with pytest.raises(DataError, match=r"no column text but id, content; set data\.fields=\{text: COLUMN\}"):
        opened("unused\n", train=path, dev=path)


def test_a_row_of_a_corpus_without_a_text_is_bad_at_its_place(opened: Callable[..., Store], tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "a b"}\n{"text": null}\nno json\n{"text": "c d"}\n')
    with pytest.raises(
        DataError, match=r"(?s)a\.jsonl:2: field text: null is not a text.*a\.jsonl:3: the row 'no json'"
    ):
        opened("unused\n", train=str(path), dev=str(path))
    store = opened("unused\n", train=str(path), dev=str(path), on_bad_row="skip", break_mode="complete_doc")
    assert blocks_of(store) == ["ab", "cd"]
