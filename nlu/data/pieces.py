"""Tokens of texts that are cut into pieces, most of which have occurred before.

BERT's tokenizer puts spaces around every ideograph and splits at white space and punctuation before it uses the
vocabulary, and its normalizer (lowercasing, stripping accents) treats each letter without regard to its neighbors. So
the tokens of a text are those of its pieces, one after another, if it is cut beside an ideograph, a mark or a blank.
Most pieces of a text have occurred before, and looking a piece up costs a small part of tokenizing it. PIECES lists
only marks and blanks that are sure to separate; all other characters stay in one piece, which the tokenizer splits.

Axes: N texts; flat arrays hold them one after another; W pieces of all texts, P distinct pieces.

The mark that tokenizers put before a text, as if a space preceded it, and the same tokenizer without it.

SentencePiece's tokenizers (Metaspace, written ▁) and some byte-level ones mark the beginning of words, and treat the
beginning of a text as one. A unit that directly follows another one, such as a comma or an ideograph, does not begin a
word, so its tokens are those of the tokenizer without this mark.

Axes: U units, P some of them; flat arrays hold the tokens of units one after another.
"""

import json
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Container, Iterable
from itertools import chain
from typing import Any

import numpy as np
from tokenizers import Tokenizer as Backend
from tokenizers import normalizers, pre_tokenizers
from tokenizers.models import WordPiece

from nlu.data.arrays import flatten, ranges, starts_of

IDEOGRAPHS = "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
MARKS = (
    r"!-/:-@\[-`{-~"
    "\u2010-\u2027\u3001-\u3003\u3008-\u3011\u3014-\u301b\uff01-\uff03\uff05-\uff0a\uff0c-\uff0f\uff1a\uff1b\uff1f\uff20"
)
BLANKS = r" \t\n\r\u3000"
PIECES = re.compile(f"[{IDEOGRAPHS}{MARKS}]|[^{IDEOGRAPHS}{MARKS}{BLANKS}]+")
WORDS = re.compile(rf"[{IDEOGRAPHS}{MARKS}]|[^{IDEOGRAPHS}{MARKS}\s]+")
"""the units of a text in which spans are tagged; any white space separates them"""
OTHERS = "\u0590-\U0010ffff"
"""all letters but Latin, Greek, Cyrillic and Armenian ones"""
ENDS = "\u060c\u061b\u061f\u06d4\u05be\u0964\u0965"
MARKED = rf"(?:[^\w\s\x00-\u02ff\u2000-\U0010ffff{ENDS}]|[\u200c\u200d\u3099\u309a\ufe00-\ufe0f])*"
"""the vowel signs, tones and accents behind a letter; marks such as the Arabic comma (ENDS) are none"""
CUTS = {
    "words": WORDS,
    "letters": re.compile(rf"[{IDEOGRAPHS}{MARKS}]|[^\s{MARKS}{OTHERS}]+|\S{MARKED}"),
    "characters": re.compile(rf"\S{MARKED}"),
}
"""ways to cut a text into units, the coarsest first: words; letters of scripts without blanks between words, or whose
words have endings, such as Thai and Korean; all letters"""
MOST_REMEMBERED = 300_000
MOST_LETTERS = 2_000_000
"""limits of the cached pieces and of their characters; beyond either one the cache is emptied, so that memory grows
neither with the number of rows nor with their length"""


def count_words(
    texts: Iterable[list[str]], pieces: re.Pattern[str], words_of: Callable[[str], Iterable[str]]
) -> Counter[str]:
    """Return the number of occurrences of each word in lists of texts, of which `pieces` matches the pieces.

    `words_of` returns the words of a piece; it is called once for each distinct piece, and not at every occurrence, and
    again after MOST_REMEMBERED of them, so that memory does not grow with the texts.
    """
    counts: Counter[str] = Counter()
    counted: Counter[str] = Counter()

    def split() -> None:
        for piece, count in counted.items():
            for word in words_of(piece):
                counts[word] += count
        counted.clear()

    for batch in texts:
        counted.update(chain.from_iterable(map(pieces.findall, batch)))
        if len(counted) > MOST_REMEMBERED:
            split()
    split()
    return counts


class PieceTokenizer:
    """Caches the tokens of pieces of text; returns exactly the tokens that the tokenizer returns for whole texts."""

    def __init__(self, backend: Backend):
        """`backend` must satisfy `can_cut`."""
        self._backend = backend
        added = [re.escape(token.content) for token in backend.get_added_tokens_decoder().values()]
        self._added = re.compile("|".join(added)) if added else None
        self._forget()

    def _forget(self) -> None:
        self._number_of: dict[str, int] = {}
        self._letters = 0
        self._tokens = np.zeros(0, np.int32)
        self._counts_P = np.zeros(0, np.int64)
        self._starts_P = np.zeros(0, np.int64)

    def ids(self, texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
        """Return the tokens of all texts, flat int32, and the count of each text, int64."""
        # An added token, such as [MASK], is found before texts are split.
        if self._added is not None and any(map(self._added.search, texts)):
            return encoded(self._backend, texts)
        pieces_of = [PIECES.findall(text) for text in texts]
        pieces_N = np.fromiter(map(len, pieces_of), np.int64, len(texts))
        pieces_W = list(chain.from_iterable(pieces_of))
        self._learn(pieces_W)
        number_W = np.fromiter(map(self._number_of.__getitem__, pieces_W), np.int64, len(pieces_W))
        counts_W = self._counts_P[number_W]
        # The tokens of a text end where those of its last piece end.
        ends_W = np.concatenate([[0], np.cumsum(counts_W)])
        ends_N = ends_W[np.concatenate([[0], np.cumsum(pieces_N)])]
        found = self._tokens[ranges(self._starts_P[number_W], counts_W)], np.diff(ends_N)
        if self._letters > MOST_LETTERS:
            # The texts of a single call may exceed the limit.
            self._forget()
        return found

    def _learn(self, pieces_W: list[str]) -> None:
        new = set(pieces_W).difference(self._number_of)
        if not new:
            return
        if len(self._number_of) + len(new) > MOST_REMEMBERED or self._letters + sum(map(len, new)) > MOST_LETTERS:
            self._forget()
            new = set(pieces_W)
        self._letters += sum(map(len, new))
        # Sorted, because the order of a set differs between processes.
        named = sorted(new)
        tokens, counts = encoded(self._backend, named)
        self._number_of.update(zip(named, range(len(self._number_of), len(self._number_of) + len(named)), strict=True))
        self._tokens = np.concatenate([self._tokens, tokens])
        self._counts_P = np.concatenate([self._counts_P, counts])
        self._starts_P = starts_of(self._counts_P)


def encoded(backend: Backend, texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
    # "fast" leaves out the offsets of characters, which are not needed here.
    encoded = backend.encode_batch_fast(texts, add_special_tokens=False)
    return flatten([item.ids for item in encoded])


def can_cut(backend: Backend) -> bool:
    """Return whether the tokenizer is BERT's: split at ideographs and marks, then WordPiece, only special tokens
    added."""
    normalizer = backend.normalizer
    return (
        isinstance(normalizer, normalizers.BertNormalizer)
        and normalizer.clean_text
        and normalizer.handle_chinese_chars
        and isinstance(backend.pre_tokenizer, pre_tokenizers.BertPreTokenizer)
        and isinstance(backend.model, WordPiece)
        and not any(token.normalized for token in backend.get_added_tokens_decoder().values())
    )


SPACE_BYTE = "\u0120"
"""a space in a byte-level vocabulary"""
BLANK_MARKS = ("\u2581", SPACE_BYTE)
"""what stands for a blank at the beginning of a token, in vocabularies of SentencePiece and of bytes"""
UNSPACED = re.compile(f"[{IDEOGRAPHS}\u3041-\u30ff\u31f0-\u31ff\uff66-\uff9f\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff]")
"""scripts without blanks between words: ideographs, kana, Thai, Lao, Tibetan, Burmese, Khmer"""
AS_THEMSELVES = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
OTHER_BYTES = sorted({*range(0x100)}.difference(AS_THEMSELVES))
BYTE_OF = {chr(byte): byte for byte in AS_THEMSELVES} | {chr(0x100 + n): byte for n, byte in enumerate(OTHER_BYTES)}
"""the byte of each character of a byte-level vocabulary, which cannot show some bytes as they are"""
PARTS = ("normalizer", "pre_tokenizer")
MODEL = ',"model":'
"""where the vocabulary begins in the text of a tokenizer; inside a string of JSON the quotes would be escaped"""


def options_of(backend: Backend) -> dict[str, Any]:
    """Return the JSON of a tokenizer without its vocabulary, which would take most of the time."""
    options: dict[str, Any] = json.loads(backend.to_str().partition(MODEL)[0] + "}")
    return options


def marks_beginnings(backend: Backend) -> bool:
    """Return whether the tokenizer marks the beginning of a text."""
    options = options_of(backend)
    return any(_unmarked(options[part]) != options[part] for part in PARTS)


def without_mark(backend: Backend) -> Backend:
    """Return the same tokenizer, except that it does not mark the beginning of a text."""
    document = json.loads(backend.to_str())
    for part in PARTS:
        document[part] = _unmarked(document[part])
    return Backend.from_str(json.dumps(document))


def ids_of_units(
    backend: Backend, unmarked: Backend, units: list[str], inside: list[bool]
) -> tuple[np.ndarray, np.ndarray]:
    """Return the tokens of units, flat int32, and the count of each, int64; those `inside` of a word by `unmarked`."""
    inside_U, counts_U, parts = np.array(inside, bool), np.zeros(len(units), np.int64), []
    for places_P, of_part in ((np.flatnonzero(~inside_U), backend), (np.flatnonzero(inside_U), unmarked)):
        flat, counts_U[places_P] = encoded(of_part, [units[place] for place in places_P])
        parts.append((places_P, flat))
    joined, starts_U = np.empty(int(counts_U.sum()), np.int32), starts_of(counts_U)
    for places_P, flat in parts:
        joined[ranges(starts_U[places_P], counts_U[places_P])] = flat
    return joined, counts_U


def _unmarked(node: Any) -> Any:
    """Return the JSON of a normalizer or pre-tokenizer without what marks the beginning; None if nothing is left."""
    if node is None or node["type"] == "Prepend":
        return None
    if node["type"] == "Sequence":
        (several,) = (key for key, value in node.items() if isinstance(value, list))
        parts = (_unmarked(part) for part in node[several])
        return {**node, several: [part for part in parts if part is not None]}
    if node["type"] == "Metaspace":
        return {**node, "prepend_scheme": "never"}
    return {**node, "add_prefix_space": False} if node.get("add_prefix_space") else node


def begins_word(token: str, vocabulary: Container[str]) -> bool:
    """Return whether a token begins a word, by its spelling in this vocabulary.

    In a script without blanks each token that begins a character is a word. Otherwise, in WordPiece a token that begins
    with ## continues a word; where a mark stands for a blank, so does a token without it that begins with a letter or
    digit.
    """
    mark = next((mark for mark in BLANK_MARKS if mark in vocabulary), None)
    if mark is not None and token.startswith(mark):
        return True
    first = _character(token) if mark == SPACE_BYTE else token.removeprefix("##")[:1]
    # Vowels and tones that are written above or below a letter are marks.
    if not first or unicodedata.category(first).startswith("M"):
        return False
    return UNSPACED.match(first) is not None or not token.startswith("##") and (mark is None or not first.isalnum())


def _character(token: str) -> str:
    """Return the first character that begins in a token of bytes, "a" if none does.

    An ideograph stands for one of which only the first bytes are there, if it may be of a script without blanks.
    """
    spelled = bytes(BYTE_OF.get(character, 0) for character in token).lstrip(bytes(range(0x80, 0xC0)))
    first = spelled.decode("utf-8", errors="replace")[:1] or "a"
    if first != "\ufffd":
        return first
    return "一" if 0xE0 <= spelled[0] < 0xEA or spelled[0] >= 0xEF else "a"
