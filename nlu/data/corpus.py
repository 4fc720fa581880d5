"""`data=corpus`: a sentence on each line, an empty line between documents; examples are blocks of tokens.

Files of rows (jsonl, csv, parquet, ...) have a document in each row.

The five ways of making blocks are those of fairseq's TokenBlockDataset (Ott et al. 2019,
https://aclanthology.org/N19-4009), of which two end a block with its document.

With `Corpus.make_halves`, a block is stored as a pair of its two halves, for tasks about the order of sentences.

Axes: T tokens of a sentence or of a block.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, cast

import numpy as np

from nlu.config.errors import DataError, UserError
from nlu.config.keys import takes
from nlu.config.sentences import listed
from nlu.config.types import Config
from nlu.data import keys as schemas
from nlu.data.arrays import starts_of
from nlu.data.data_rules import OF_ONE_DOCUMENT, halves_problem
from nlu.data.dataset import Files
from nlu.data.dialect import PLAIN
from nlu.data.fields import has_rows
from nlu.data.keys import BreakMode, Words
from nlu.data.layouts import Problem, Single, Values, check_text
from nlu.data.pieces import begins_word
from nlu.data.reader import BadRow, Mark, Row
from nlu.data.readers import column_names, open_text, read_rows
from nlu.data.store import EncodedRows
from nlu.data.tokenizing import Tokenizer

LINES_AT_ONCE = 1024
"""lines that are tokenized together"""
LINE = "line"
"""in the place of a field, for a line that cannot be used"""


@dataclass(eq=False)
class Piece:
    """Tokens of neighboring sentences."""

    tokens_T: np.ndarray
    """int32"""
    begins_T: np.ndarray
    """bool: whether a token begins a word"""
    opens_T: np.ndarray
    """bool: whether a token begins a sentence"""
    tokenizer: Tokenizer = field(repr=False)
    is_cut: bool = False
    """whether the end of the sentence is missing"""
    document: int = 0
    """number in its file of the document with the block's last sentence"""

    @property
    def text(self) -> str:
        """The text that the tokens spell, with a blank between words of WordPiece."""
        backend, tokens = self.tokenizer.backend, self.tokens_T.tolist()
        if backend.decoder is not None:
            return backend.decode(tokens, skip_special_tokens=False)
        return " ".join(str(backend.id_to_token(token)) for token in tokens).replace(" ##", "")

    def __len__(self) -> int:
        return len(self.tokens_T)

    def part(self, start: int, stop: int | None = None, *, is_cut: bool = False) -> "Piece":
        own = slice(start, stop)
        return Piece(self.tokens_T[own], self.begins_T[own], self.opens_T[own], self.tokenizer, is_cut)

    @property
    def middle(self) -> int | None:
        """The place nearest to the middle at which a sentence begins or, within a single sentence, a word; None for a
        single word."""
        for begins_T in (self.opens_T, self.begins_T):
            if len(places := 1 + np.flatnonzero(begins_T[1:])):
                return int(places[np.abs(2 * places - len(self)).argmin()])
        return None


def joined(pieces: Sequence[Piece]) -> Piece:
    """Return the tokens of at least one piece, one after another."""
    if len(pieces) == 1:
        return pieces[0]
    tokens, begins = [one.tokens_T for one in pieces], [one.begins_T for one in pieces]
    opens = [one.opens_T for one in pieces]
    return Piece(np.concatenate(tokens), np.concatenate(begins), np.concatenate(opens), pieces[0].tokenizer)


class BlockLayout(Single):
    """A block of tokens in one sequence. The row holds its tokens, or a line from which a vocabulary is built."""

    def __init__(self, settings: Config):
        """`settings`: everything that shapes blocks beside the tokenizer and max_len, as JSON."""
        self._settings = settings

        self.in_halves = False
        """whether a block is a pair of its halves; only Corpus.make_halves sets it"""

    def settings(self) -> Config:
        return {**self._settings, "in_halves": True} if self.in_halves else self._settings

    def problem(self, values: Values) -> Problem | None:
        return None if isinstance(values["text"], Piece) else super().problem(values)

    def identity(self, values: Values) -> str:
        # Equal tokens are equal texts, and each byte is a character of latin-1.
        return cast(Piece, values["text"]).tokens_T.tobytes().decode("latin-1")

    def shown(self, values: Values) -> dict[str, Any]:
        return {"text": cast(Piece, values["text"]).text}

    def encode(self, tokenizer: Tokenizer, rows: Sequence[Values], max_len: int) -> EncodedRows:
        if any(isinstance(row["text"], str) for row in rows):
            # Rows of a program, such as those of `nlu.load`, are whole texts.
            return super().encode(tokenizer, rows, max_len)
        pieces = [cast(Piece, row["text"]) for row in rows]
        # In halves a block has the special tokens of a pair, and else those of a single text.
        middles = [self.in_halves and piece.middle or len(piece) for piece in pieces]
        template = tokenizer.pair if self.in_halves else tokenizer.single
        before, between, after = (
            np.array(tokens, np.int32) for tokens in (template.before, template.between, template.after)
        )
        tokens = np.concatenate(
            [
                part
                for piece, middle in zip(pieces, middles, strict=True)
                for part in (before, piece.tokens_T[:middle], between, piece.tokens_T[middle:], after)
            ]
        )
        lengths_N = np.array([len(piece) for piece in pieces]) + template.size
        is_cut_N = np.array([piece.is_cut for piece in pieces])
        boundary_N = lengths_N
        if self.in_halves:
            boundary_N = np.array(middles) + len(before) + len(between)
        encoded = EncodedRows(tokens, lengths_N, boundary_N, is_cut_N)
        # The spelling of tokens tells plain words, so they need no column.
        if self._settings["words"] != "plain":
            firsts = [np.flatnonzero(piece.begins_T) for piece in pieces]
            inside = [
                first + len(before) + len(between) * (first >= middle)
                for first, middle in zip(firsts, middles, strict=True)
            ]
            encoded.words = np.concatenate(inside).astype(np.int32)
            encoded.word_counts_N = np.array([len(first) for first in firsts], np.int64)
        return encoded


class CorpusBlocks:
    """Makes blocks of at most `max_len` tokens, special ones included, from the lines of a file.

    Each file is read once, and only the open block is kept. A block ends with its file.
    """

    def __init__(self, break_mode: BreakMode, words: Words, max_len: int, min_len: int):
        self.break_mode, self.words, self.max_len, self.min_len = break_mode, words, max_len, min_len
        self.in_halves = False
        """whether each block needs two halves and the special tokens of a pair; only Corpus.make_halves sets it"""

        self.dialect, self.column = PLAIN, cast(str | int, "text")
        self.left_out: Counter[tuple[str, str]] = Counter()
        """number of blocks that were not rows, by reason and remedy"""

    def rows(self, path: Path, tokenizer: Tokenizer | None, max_lines: int | None) -> Iterator[Row | BadRow]:
        """Yield the blocks of a file, numbered from 1, and a BadRow for a line that cannot be used.

        Without a tokenizer, yield the sentences.
        """
        if tokenizer is None:
            for row in self._sentences(path, max_lines):
                if not isinstance(row, Row) or row.values["text"] is not None:
                    yield row
            return
        number, room = 0, self.max_len - (tokenizer.pair if self.in_halves else tokenizer.single).size
        for found in self._blocks(path, tokenizer, max_lines, room):
            if isinstance(found, BadRow):
                yield found
            elif len(found) < self.min_len:
                self.left_out[
                    f"they have fewer than data.min_len, {self.min_len} tokens", "set data.min_len lower"
                ] += 1
            elif self.in_halves and found.middle is None:
                remedy = "give files with longer sentences, or set data.break_mode=complete_doc"
                self.left_out["a block of one word has no halves", remedy] += 1
            else:
                number += 1
                yield Row(number, {"text": found})

    def _blocks(self, path: Path, tokenizer: Tokenizer, max_lines: int | None, room: int) -> Iterator[Piece | BadRow]:
        of_words = _WordFinder(self.words, tokenizer)
        ends_with_document = self.break_mode.endswith("_doc")
        takes = {"none": _filled, "complete": _whole_sentences, "eos": _one_sentence}[
            self.break_mode.removesuffix("_doc")
        ]
        open_block: list[Piece] = []
        document = 0
        is_divided = has_rows(path)
        sentences = self._sentences(path, max_lines)
        while batch := list(islice(sentences, LINES_AT_ONCE)):
            yield from (row for row in batch if isinstance(row, BadRow))
            usable = [row.values["text"] for row in batch if isinstance(row, Row)]
            pieces = iter(of_words.pieces([sentence for sentence in usable if sentence is not None]))
            for sentence in usable:
                if sentence is None:
                    if ends_with_document and open_block:
                        yield _of_document(joined(open_block), document)
                        open_block = []
                    document += 1
                # A line of which the tokenizer leaves nothing adds nothing.
                elif len(piece := next(pieces)):
                    # A line of a text is a paragraph, of which nothing shall be lost.
                    for part in _parts(piece, room) if is_divided else [piece]:
                        for block in takes(open_block, part, room):
                            yield _of_document(block, document)
        if open_block:
            yield _of_document(joined(open_block), document)

    def _sentences(self, path: Path, max_lines: int | None) -> Iterator[Row | BadRow]:
        """Yield each line without the blanks around it; the text is None for an empty line, which ends a document.

        In a file of rows each text is a document.
        """
        if not has_rows(path):
            with open_text(path, "lines", self.dialect) as lines:
                for number, line in enumerate(islice(lines, max_lines), 1):
                    yield _checked(Row(number, {"text": line.strip() or None}), LINE)
            return
        names = column_names(path, "auto", self.dialect)
        if isinstance(self.column, str) and self.column.partition(".")[0] not in names:
            raise DataError(
                f"{path}: has no column {self.column} but {listed(names)}; set data.fields={{text: COLUMN}} to the one "
                "with the texts"
            )
        rows = read_rows(path, "auto", {"text": self.column}, None, dialect=self.dialect)
        for row in islice((row for row in rows if not isinstance(row, Mark)), max_lines):
            whole = _checked(row, str(self.column)) if isinstance(row, Row) else row
            if isinstance(whole, BadRow):
                yield whole
                continue
            paragraphs = filter(None, map(str.strip, whole.values["text"].split("\n")))
            yield from (Row(whole.number, {"text": line}) for line in [*paragraphs, None])


def _checked(row: Row, field: str) -> Row | BadRow:
    text = row.values["text"]
    rule = None if text is None and field == LINE else check_text(text)
    return row if rule is None else BadRow.of(row.number, field, text, rule)


def _of_document(block: Piece, number: int) -> Piece:
    block.document = number
    return block


def _filled(open_block: list[Piece], sentence: Piece, room: int) -> Iterator[Piece]:
    """Fill blocks to the last token that fits, but end before a word of which only a part fits."""
    open_block.append(sentence)
    if sum(map(len, open_block)) > room:
        *blocks, rest = _parts(joined(open_block), room)
        yield from blocks
        open_block[:] = [rest]


def _parts(rest: Piece, room: int) -> Iterator[Piece]:
    while len(rest) > room:
        begun = np.flatnonzero(rest.begins_T[1 : room + 1])
        # A word that fits nowhere is divided.
        stop = int(begun[-1]) + 1 if len(begun) else room
        yield rest.part(0, stop)
        rest = rest.part(stop)
    yield rest


def _whole_sentences(open_block: list[Piece], sentence: Piece, room: int) -> Iterator[Piece]:
    """Put sentences into a block as long as they fit as a whole; one that is too long is a block and is cut."""
    if open_block and sum(map(len, open_block)) + len(sentence) > room:
        yield joined(open_block)
        open_block.clear()
    if len(sentence) > room:
        yield from _one_sentence(open_block, sentence, room)
    else:
        open_block.append(sentence)


def _one_sentence(open_block: list[Piece], sentence: Piece, room: int) -> Iterator[Piece]:
    yield sentence if len(sentence) <= room else sentence.part(0, room, is_cut=True)


class _WordFinder:
    """Tokens of sentences, and where their words begin. The tokens are always those of the sentence as a whole."""

    def __init__(self, words: Words, tokenizer: Tokenizer):
        self._words, self._tokenizer = words, tokenizer
        known = tokenizer.vocabulary
        self._begins_V = np.zeros(tokenizer.vocab_size, bool)
        self._begins_V[[number for token, number in known.items() if begins_word(token, known)]] = True

    def pieces(self, sentences: list[str]) -> list[Piece]:
        if not sentences:
            return []
        flat, counts_N = self._tokenizer.ids(sentences)
        begins = self._begins_V[flat]
        if self._words != "plain":
            self._divide(sentences, flat, counts_N, begins)
        found = []
        for start, count in zip(starts_of(counts_N).tolist(), counts_N.tolist(), strict=True):
            begins[start : start + 1] = True
            inside = slice(start, start + count)
            opens = np.arange(count) == 0
            found.append(Piece(flat[inside], begins[inside], opens, self._tokenizer))
        return found

    def _divide(self, sentences: list[str], flat: np.ndarray, counts_N: np.ndarray, begins: np.ndarray) -> None:
        """Set where the given words of the sentences begin.

        Each word is tokenized by itself. A sentence whose tokens then differ, because a word ends within a piece of
        text that the tokenizer treats as one, keeps its plain words.
        """
        words_of = [self._cut(sentence) for sentence in sentences]
        words = [word for own in words_of for word in own]
        own_flat, own_counts_W = self._tokenizer.ids(words)
        own_starts_W = starts_of(own_counts_W)
        first_word, starts_N = 0, starts_of(counts_N)
        for number, own in enumerate(words_of):
            inside = slice(first_word, first_word + len(own))
            first_word += len(own)
            if not own:
                continue
            begin = int(own_starts_W[inside.start])
            counts_W = own_counts_W[inside]
            start, count = int(starts_N[number]), int(counts_N[number])
            stop = begin + int(counts_W.sum())
            if stop - begin != count or (own_flat[begin:stop] != flat[start : start + count]).any():
                continue
            begins[start : start + count] = False
            begins[start + own_starts_W[inside][counts_W > 0] - begin] = True

    def _cut(self, sentence: str) -> list[str]:
        if self._words == "spaces":
            words = sentence.split()
        else:
            import jieba

            jieba.setLogLevel("ERROR")
            words = [word for word in jieba.cut(sentence) if not word.isspace()]
        if self._tokenizer.needs_spaces:
            words = words[:1] + [f" {word}" for word in words[1:]]
        return words


@takes(schemas.Corpus)
class Corpus(Files):
    """Files of sentences, for pretraining."""

    def __init__(self, keys: schemas.Corpus):
        shared = schemas.Files(
            train=keys.train,
            dev=keys.dev,
            test=keys.test,
            fields=dict(keys.fields or {"text": 0}),
            max_len=keys.max_len,
            on_bad_row=keys.on_bad_row,
            drop_duplicates=keys.drop_duplicates,
            dev_fraction=keys.dev_fraction,
            exclude_dev_from_train=keys.exclude_dev_from_train,
            max_rows=keys.max_rows,
            urls=keys.urls,
        )
        super().__init__(shared)
        self.stream = keys.stream
        # No other reader has it, and its files may have any suffix.
        self.format = "corpus"
        self.blocks = CorpusBlocks(keys.break_mode, keys.words, keys.max_len, keys.min_len)
        self.blocks.dialect, self.blocks.column = self.dialect, (keys.fields or {}).get("text", "text")
        shaped_by: Config = {"break_mode": keys.break_mode, "words": keys.words, "min_len": keys.min_len}
        if keys.words == "jieba":
            import jieba

            # Another version has another dictionary.
            shaped_by["jieba"] = jieba.__version__
        self.layout = BlockLayout(shaped_by)

    def make_halves(self) -> None:
        """Make rows that are pairs of the halves of a block: called by a target about the order of sentences.

        Raises UserError for blocks that may have sentences of several documents.
        """
        if self.blocks.break_mode not in OF_ONE_DOCUMENT:
            raise UserError(halves_problem(self.blocks.break_mode))
        self.blocks.in_halves = self.layout.in_halves = True
