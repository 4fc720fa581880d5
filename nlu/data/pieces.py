"""Tokens of texts that are cut into pieces, most of which have occurred before.

BERT's tokenizer puts spaces around every ideograph and splits at white space and punctuation before it uses the
vocabulary, and its normalizer (lowercasing, stripping accents) treats each letter without regard to its neighbors. So
the tokens of a text are those of its pieces, one after another, if it is cut beside an ideograph, a mark or a blank.
Most pieces of a text have occurred before, and looking a piece up costs a small part of tokenizing it. PIECES lists
only marks and blanks that are sure to separate; all other characters stay in one piece, which the tokenizer splits.

Axes: N texts; flat arrays hold them one after another; W pieces of all texts, P distinct pieces.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable
from itertools import chain

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
