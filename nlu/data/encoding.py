"""Rows of a task's layout to rows of the store: one text, a pair of texts, or a list of tagged units.

Axes: N rows of one chunk; flat arrays hold the rows one after another.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from nlu.data.pieces import WORDS
from nlu.data.ragged import ranges, starts_of
from nlu.data.tokenizing import Template, Tokenizer

UNUSABLE = re.compile("[\x00\ud800-\udfff]")
"""NUL, and what JSON can write and no encoding of Unicode can hold, such as the first half of an emoji that was cut."""


@dataclass
class EncodedRows:
    """Token rows of one chunk, before labels."""

    tokens: np.ndarray
    """flat int32"""
    lengths_N: np.ndarray
    boundary_N: np.ndarray
    """number of tokens before the second text; the whole length where there is none"""
    cut_N: np.ndarray
    """true where tokens were cut off"""
    words: np.ndarray | None = None
    """flat int32: the first token of each unit that fits, counted within its row"""
    word_counts_N: np.ndarray | None = None
    places: np.ndarray | None = None
    """flat int32: the first and the last character of each unit of a text, also of those that do not fit, one after the
    other; null where all rows are lists of units"""
    place_counts_N: np.ndarray | None = None

    def ends_of_units(self) -> list[list[list[int]] | None]:
        """Return of each row the first and the last character of each unit; None where all rows are lists of units."""
        if self.places is None or self.place_counts_N is None:
            return [None] * len(self.lengths_N)
        rows = np.split(self.places.reshape(-1, 2), np.cumsum(self.place_counts_N // 2)[:-1])
        return [ends_U.tolist() for ends_U in rows]


def check_text(value: Any) -> str | None:
    """Return the rule that a text field breaks, or None."""
    if not isinstance(value, str):
        return "is not a text"
    if not value.strip():
        return "is empty"
    return unusable(value)


def unusable(text: str) -> str | None:
    """Return what a text holds that no text may, as a rule that it breaks, or None."""
    if (found := UNUSABLE.search(text)) is None:
        return None
    if found.group() == "\0":
        return "holds a NUL character, as files do that are damaged or in another encoding than UTF-8"
    return "holds half of a surrogate pair"


def check_tokens(value: Any) -> str | None:
    """Return the rule that a list of tokens breaks, or None; a token may be blank, as a space between others is."""
    if not isinstance(value, list) or not all(isinstance(token, str) for token in value):
        return "is not a list of texts"
    if not value:
        return "is empty"
    return next((rule for rule in map(unusable, value) if rule), None)


def encode_single(tokenizer: Tokenizer, texts: list[str], max_len: int) -> EncodedRows:
    """Encode single texts; a text is cut at its end to fit `max_len` with its special tokens."""
    flat, counts_N = tokenizer.ids(texts)
    keep_N = np.minimum(counts_N, max_len - tokenizer.single.size)
    tokens, lengths_N = _assemble(tokenizer.single, [(flat, counts_N, keep_N)])
    return EncodedRows(tokens, lengths_N, lengths_N, keep_N < counts_N)


def encode_pair(tokenizer: Tokenizer, firsts: list[str], seconds: list[str], max_len: int) -> EncodedRows:
    """Encode pairs; where a pair is too long, only the texts longer than half of the room are cut."""
    flat_a, counts_a_N = tokenizer.ids(firsts)
    flat_b, counts_b_N = tokenizer.ids(seconds)
    keep_a_N, keep_b_N = cut_pair(counts_a_N, counts_b_N, max_len - tokenizer.pair.size)
    parts = [(flat_a, counts_a_N, keep_a_N), (flat_b, counts_b_N, keep_b_N)]
    tokens, lengths_N = _assemble(tokenizer.pair, parts)
    boundary_N = keep_a_N + len(tokenizer.pair.before) + len(tokenizer.pair.between)
    return EncodedRows(tokens, lengths_N, boundary_N, (keep_a_N < counts_a_N) | (keep_b_N < counts_b_N))


def encode_sides(tokenizer: Tokenizer, firsts: list[str], seconds: list[str], max_len: int) -> EncodedRows:
    """Encode the texts of a pair each by itself, the second one's tokens after the first one's.

    Each text is cut at its end to fit `max_len` with its special tokens; the boundary is the length of the first.
    """
    first, second = encode_single(tokenizer, firsts, max_len), encode_single(tokenizer, seconds, max_len)
    lengths_N = first.lengths_N + second.lengths_N
    tokens = np.empty(int(lengths_N.sum()), np.int32)
    starts_N = starts_of(lengths_N)
    tokens[ranges(starts_N, first.lengths_N)] = first.tokens
    tokens[ranges(starts_N + first.lengths_N, second.lengths_N)] = second.tokens
    return EncodedRows(tokens, lengths_N, first.lengths_N, first.cut_N | second.cut_N)


def cut_pair(counts_a_N: np.ndarray, counts_b_N: np.ndarray, room: int) -> tuple[np.ndarray, np.ndarray]:
    """Return how many tokens of each text stay. Both over half: half each, the odd one to the first; one over half:
    only that one is cut, to what the other leaves."""
    half_a, half_b = room - room // 2, room // 2
    over_N = counts_a_N + counts_b_N > room
    a_long_N, b_long_N = counts_a_N > half_a, counts_b_N > half_b
    keep_a_N = np.where(over_N & a_long_N, np.where(b_long_N, half_a, room - counts_b_N), counts_a_N)
    keep_b_N = np.where(over_N & b_long_N, np.where(a_long_N, half_b, room - counts_a_N), counts_b_N)
    return keep_a_N, keep_b_N


def encode_units(tokenizer: Tokenizer, rows: Sequence[Sequence[str] | str], max_len: int) -> EncodedRows:
    """Encode rows of units each of which carries a tag on its first token.

    A row is a list of words, or a text, whose units are its words (`pieces.WORDS`), so that its tokens are those of the
    whole text. A blank before a word is encoded with it where the tokenizer tells words by that. A unit that the
    tokenizer drops (a space, say) stands as the unknown token, so that every unit has a place; units that do not fit
    wholly in `max_len` are cut off.
    """
    units: list[str] = []
    units_N = np.empty(len(rows), np.int64)
    places: list[int] = []
    with_places = any(isinstance(row, str) for row in rows)
    for number, row in enumerate(rows):
        own, ends = units_of(row)
        units_N[number] = len(own)
        if with_places:
            places += chain.from_iterable(ends)
        if tokenizer.needs_spaces:
            own = [f" {unit}" if _follows_blank(row, ends[place][0]) else unit for place, unit in enumerate(own)]
        units += own
    flat, pieces_U = tokenizer.ids(units)
    flat, pieces_U = _fill_empty(flat, pieces_U, tokenizer.unknown_id)
    row_U = np.repeat(np.arange(len(rows)), units_N)
    end_U = np.cumsum(pieces_U)
    row_start_N = np.concatenate([[0], end_U])[starts_of(units_N)]
    end_in_row_U = end_U - row_start_N[row_U]
    fits_U = end_in_row_U <= max_len - tokenizer.single.size
    counts_N = np.bincount(row_U, weights=pieces_U, minlength=len(rows)).astype(np.int64)
    keep_N = np.bincount(row_U, weights=pieces_U * fits_U, minlength=len(rows)).astype(np.int64)
    tokens, lengths_N = _assemble(tokenizer.single, [(flat, counts_N, keep_N)])
    words = (end_in_row_U - pieces_U + len(tokenizer.single.before))[fits_U].astype(np.int32)
    word_counts_N = np.bincount(row_U[fits_U], minlength=len(rows)).astype(np.int64)
    encoded = EncodedRows(tokens, lengths_N, lengths_N, keep_N < counts_N, words, word_counts_N)
    if with_places:
        encoded.places, encoded.place_counts_N = np.array(places, np.int32), 2 * units_N
    return encoded


def units_of(row: Sequence[str] | str) -> tuple[Sequence[str], list[tuple[int, int]]]:
    """Return the units of a row, and of each the first and the last character; of a list of units its number, twice."""
    if not isinstance(row, str):
        return row, [(number, number) for number in range(len(row))]
    spans = [match.span() for match in WORDS.finditer(row)]
    return [row[start:end] for start, end in spans], [(start, end - 1) for start, end in spans]


def _follows_blank(row: Sequence[str] | str, first: int) -> bool:
    return first > 0 and (row[first - 1].isspace() if isinstance(row, str) else True)


def _fill_empty(flat: np.ndarray, pieces_U: np.ndarray, unknown_id: int) -> tuple[np.ndarray, np.ndarray]:
    empty_U = pieces_U == 0
    if not empty_U.any():
        return flat, pieces_U
    filled = np.insert(flat, starts_of(pieces_U)[empty_U], unknown_id)
    return filled, np.where(empty_U, 1, pieces_U)


def _assemble(
    template: Template, parts: list[tuple[np.ndarray, np.ndarray, np.ndarray]]
) -> tuple[np.ndarray, np.ndarray]:
    """Lay `before`, the kept tokens of each part with `between`, and `after` side by side for every row."""
    lengths_N = sum((keep_N for _, _, keep_N in parts), np.zeros(len(parts[0][1]), np.int64)) + template.size
    out = np.empty(int(lengths_N.sum()), dtype=np.int32)
    cursor_N = starts_of(lengths_N)

    def put(fixed: tuple[int, ...]) -> None:
        nonlocal cursor_N
        for offset, token in enumerate(fixed):
            out[cursor_N + offset] = token
        cursor_N = cursor_N + len(fixed)

    put(template.before)
    for number, (flat, counts_N, keep_N) in enumerate(parts):
        if number:
            put(template.between)
        out[ranges(cursor_N, keep_N)] = flat[ranges(starts_of(counts_N), keep_N)]
        cursor_N = cursor_N + keep_N
    put(template.after)
    return out, lengths_N
