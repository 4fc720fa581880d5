"""Tokens of a text from the tokens of its pieces, each of which goes through the tokenizer once and is then remembered.

BERT's tokenizer sets spaces around every ideograph and splits at white space and punctuation before it looks at the
vocabulary, and what it does to a letter before (lowering, stripping accents) does not look at the letter's neighbours.
So the tokens of a text are those of its pieces, one after another, wherever it is cut beside an ideograph, a mark or a
blank. Few pieces of a text were not seen before, and remembering one costs a small part of tokenizing it.

Only marks and blanks that surely separate are listed here; all other characters stay in the run they are in, and the
tokenizer itself sees to them. Axes: N texts, W pieces of all of them, P distinct pieces.
"""

import re
from itertools import chain
from typing import Any

import numpy as np

from nlu.data.ragged import flatten, ranges, starts_of

IDEOGRAPHS = "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
MARKS = (
    r"!-/:-@\[-`{-~"
    "\u2010-\u2027\u3001-\u3003\u3008-\u3011\u3014-\u301b\uff01-\uff03\uff05-\uff0a\uff0c-\uff0f\uff1a\uff1b\uff1f\uff20"
)
BLANKS = r" \t\n\r\u3000"
PIECES = re.compile(f"[{IDEOGRAPHS}{MARKS}]|[^{IDEOGRAPHS}{MARKS}{BLANKS}]+")
WORDS = re.compile(rf"[{IDEOGRAPHS}{MARKS}]|[^{IDEOGRAPHS}{MARKS}\s]+")
"""the units of a text that spans are found in; whatever is blank separates them"""
MOST_REMEMBERED = 300_000
MOST_LETTERS = 2_000_000
"""of pieces that are remembered, and of their letters; beyond either limit all are forgotten, so that memory grows
neither with the number of rows nor with their length"""


class PieceTokenizer:
    """Remembers the tokens of pieces of text; gives exactly what the tokenizer gives for whole texts."""

    def __init__(self, backend: Any):
        """`backend` must be one that `can_cut` accepts."""
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
        if self._added is not None and any(map(self._added.search, texts)):
            return self._whole(texts)
        pieces_of = [PIECES.findall(text) for text in texts]
        pieces_N = np.fromiter(map(len, pieces_of), np.int64, len(texts))
        pieces_W = list(chain.from_iterable(pieces_of))
        self._learn(pieces_W)
        number_W = np.fromiter(map(self._number_of.__getitem__, pieces_W), np.int64, len(pieces_W))
        counts_W = self._counts_P[number_W]
        ends_W = np.concatenate([[0], np.cumsum(counts_W)])
        ends_N = ends_W[np.concatenate([[0], np.cumsum(pieces_N)])]
        found = self._tokens[ranges(self._starts_P[number_W], counts_W)], np.diff(ends_N)
        if self._letters > MOST_LETTERS:
            # The texts of this call alone hold more.
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
        # In an order of their own, since a set has none that is the same tomorrow.
        named = sorted(new)
        tokens, counts = self._whole(named)
        self._number_of.update(zip(named, range(len(self._number_of), len(self._number_of) + len(named)), strict=True))
        self._tokens = np.concatenate([self._tokens, tokens])
        self._counts_P = np.concatenate([self._counts_P, counts])
        self._starts_P = starts_of(self._counts_P)

    def _whole(self, texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
        encoded = self._backend.encode_batch_fast(texts, add_special_tokens=False)
        return flatten([item.ids for item in encoded])


def can_cut(backend: Any) -> bool:
    """Whether the tokenizer is BERT's: cut at ideographs and marks, then WordPiece, no token but special ones added."""
    from tokenizers import models, normalizers, pre_tokenizers

    normalizer = backend.normalizer
    return (
        isinstance(normalizer, normalizers.BertNormalizer)
        and normalizer.clean_text
        and normalizer.handle_chinese_chars
        and isinstance(backend.pre_tokenizer, pre_tokenizers.BertPreTokenizer)
        and isinstance(backend.model, models.WordPiece)
        and not any(token.normalized for token in backend.get_added_tokens_decoder().values())
    )
