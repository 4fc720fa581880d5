"""How the texts of a row become sequences: one text, a pair in one sequence or in two, or a list of tagged units.

A layout is everything that is to be known of it: what a row must hold, what is hashed, tokenized and shown of it, and
how stored rows become sequences of a batch. Axes: B examples of a batch, S sequences, K sequences of an example, T
tokens, U units.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Protocol

import numpy as np

from nlu.data.arrays import ranges, starts_of
from nlu.data.store import EncodedRows, StoredSet
from nlu.data.tokenizing import WORDS, Template, Tokenizer

SEPARATOR = "\x1f"
UNUSABLE = re.compile("[\x00\ud800-\udfff]")
"""NUL, and what JSON can write and no encoding of Unicode can hold, such as the first half of an emoji that was cut."""
Values = Mapping[str, Any]
Problem = tuple[str, str]
"""the field of a row that cannot be used, and the rule that its value breaks"""


@dataclass
class Packed:
    """The sequences of some rows, in ascending order of their lengths."""

    lengths_S: np.ndarray
    starts_S: np.ndarray
    tokens_T: np.ndarray
    segments_T: np.ndarray
    positions_T: np.ndarray
    sequences_KB: np.ndarray
    """place in S of each sequence of each row"""
    units_U: np.ndarray | None = None
    """place in T of each unit's first token"""
    unit_counts_B: np.ndarray | None = None
    """units of each row that fit"""
    unit_ends_U: np.ndarray | None = None
    """(U, 2): the first and the last character of each unit of a text; null where rows are lists of units"""


class Layout(Protocol):
    """One way in which rows become sequences."""

    name: str

    def problem(self, values: Values) -> Problem | None:
        """Return the text field that cannot be used, and why, or None."""

    def texts(self, values: Values) -> list[str]:
        """Return the texts of a row that has no problem, as a vocabulary is built from them."""

    def identity(self, values: Values) -> str:
        """Return one text that is the same for rows of the same texts and no others."""

    def sides(self, values: Values) -> tuple[str, str] | None:
        """Return both texts of a pair; None where a row is one text.

        Many data sets have a text in several pairs, on either side. Pairs that share a text are held out together.
        """

    def shown(self, values: Values) -> dict[str, Any]:
        """Return the texts by field, for people to read."""

    def encode(self, tokenizer: Tokenizer, rows: list[dict[str, Any]], max_len: int) -> EncodedRows:
        """Return the tokens of rows that have no problem."""

    def pack(self, stored: StoredSet, rows_B: np.ndarray) -> Packed:
        """Return the sequences of stored rows, which come in ascending order of their numbers of tokens."""


class Single:
    """One text, one sequence."""

    name = "single"

    def problem(self, values: Values) -> Problem | None:
        return ("text", rule) if (rule := check_text(values["text"])) else None

    def texts(self, values: Values) -> list[str]:
        return [values["text"]]

    def identity(self, values: Values) -> str:
        return values["text"]

    def sides(self, values: Values) -> tuple[str, str] | None:
        return None

    def shown(self, values: Values) -> dict[str, Any]:
        return {"text": values["text"]}

    def encode(self, tokenizer: Tokenizer, rows: list[dict[str, Any]], max_len: int) -> EncodedRows:
        return encode_single(tokenizer, [row["text"] for row in rows], max_len)

    def pack(self, stored: StoredSet, rows_B: np.ndarray) -> Packed:
        return _whole_rows(stored, rows_B)


class Pair:
    """Two texts in one sequence, told apart by their segment."""

    name = "pair"

    def problem(self, values: Values) -> Problem | None:
        for role in ("text_a", "text_b"):
            if rule := check_text(values[role]):
                return role, rule
        return None

    def texts(self, values: Values) -> list[str]:
        return [values["text_a"], values["text_b"]]

    def identity(self, values: Values) -> str:
        return values["text_a"] + SEPARATOR + values["text_b"]

    def sides(self, values: Values) -> tuple[str, str] | None:
        return values["text_a"], values["text_b"]

    def shown(self, values: Values) -> dict[str, Any]:
        return {"text_a": values["text_a"], "text_b": values["text_b"]}

    def encode(self, tokenizer: Tokenizer, rows: list[dict[str, Any]], max_len: int) -> EncodedRows:
        firsts, seconds = [row["text_a"] for row in rows], [row["text_b"] for row in rows]
        return encode_pair(tokenizer, firsts, seconds, max_len)

    def pack(self, stored: StoredSet, rows_B: np.ndarray) -> Packed:
        return _whole_rows(stored, rows_B)


class Sides(Pair):
    """Two texts in a sequence each, read without knowing the other."""

    name = "sides"

    def encode(self, tokenizer: Tokenizer, rows: list[dict[str, Any]], max_len: int) -> EncodedRows:
        firsts, seconds = [row["text_a"] for row in rows], [row["text_b"] for row in rows]
        return encode_sides(tokenizer, firsts, seconds, max_len)

    def pack(self, stored: StoredSet, rows_B: np.ndarray) -> Packed:
        lengths_B, firsts_B = stored.lengths_N[rows_B].astype(np.int64), stored.boundaries(rows_B).astype(np.int64)
        lengths_S = np.stack([firsts_B, lengths_B - firsts_B], axis=1).reshape(-1)
        order_S = np.argsort(lengths_S, kind="stable")
        tokens_T = stored.tokens(rows_B)[ranges(starts_of(lengths_S)[order_S], lengths_S[order_S])]
        places_S = np.empty_like(order_S)
        places_S[order_S] = np.arange(len(order_S))
        lengths_S = lengths_S[order_S]
        positions_T = ranges(np.zeros_like(lengths_S), lengths_S)
        return Packed(
            lengths_S, starts_of(lengths_S), tokens_T, np.zeros_like(positions_T), positions_T,
            np.ascontiguousarray(places_S.reshape(-1, 2).T),
        )  # fmt: skip


class Units:
    """A list of tokens, or the words of a text, in one sequence; each unit has a place in it."""

    name = "units"

    def problem(self, values: Values) -> Problem | None:
        if "tokens" in values:
            return ("tokens", rule) if (rule := check_tokens(values["tokens"])) else None
        return ("text", rule) if (rule := check_text(values["text"])) else None

    def texts(self, values: Values) -> list[str]:
        return values["tokens"] if "tokens" in values else [values["text"]]

    def identity(self, values: Values) -> str:
        return SEPARATOR.join(values["tokens"]) if "tokens" in values else values["text"]

    def sides(self, values: Values) -> tuple[str, str] | None:
        return None

    def shown(self, values: Values) -> dict[str, Any]:
        return {"tokens": values["tokens"]} if "tokens" in values else {"text": values["text"]}

    def encode(self, tokenizer: Tokenizer, rows: list[dict[str, Any]], max_len: int) -> EncodedRows:
        return encode_units(tokenizer, list(map(tagged_of, rows)), max_len)

    def pack(self, stored: StoredSet, rows_B: np.ndarray) -> Packed:
        packed = _whole_rows(stored, rows_B)
        places_U, packed.unit_counts_B = stored.words(rows_B)
        packed.units_U = places_U + np.repeat(packed.starts_S, packed.unit_counts_B)
        if stored.has("places"):
            ends, counts_B = stored.lists("places", rows_B)
            packed.unit_ends_U = ends[ranges(starts_of(counts_B), 2 * packed.unit_counts_B)].reshape(-1, 2)
        return packed


def tagged_of(values: Values) -> Sequence[str]:
    """Return what a row that has no problem has a tag for: its tokens, or the characters of its text."""
    return values["tokens"] if "tokens" in values else values["text"]


def _whole_rows(stored: StoredSet, rows_B: np.ndarray) -> Packed:
    """Every row as one sequence; what stands behind its boundary is its second segment."""
    lengths_S = stored.lengths_N[rows_B].astype(np.int64)
    positions_T = ranges(np.zeros_like(lengths_S), lengths_S)
    segments_T = positions_T >= np.repeat(stored.boundaries(rows_B), lengths_S)
    return Packed(
        lengths_S, starts_of(lengths_S), stored.tokens(rows_B), segments_T, positions_T, np.arange(len(rows_B))[None]
    )


LAYOUTS: dict[str, Layout] = {layout.name: layout for layout in (Single(), Pair(), Sides(), Units())}
"""All of them by name; which fields each one needs stands in `nlu.config.layouts`."""


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
