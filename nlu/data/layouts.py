"""How the texts of a row become sequences: one text, a pair in one sequence or in two, or a list of tagged units.

A layout checks the texts of a row, hashes, encodes and shows them, and packs stored rows into the sequences of a batch.

Axes: N rows of a chunk, B examples of a batch, S sequences, K sequences of an example, T tokens, U units; flat arrays
hold the rows one after another.
"""

import re
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from itertools import chain
from typing import Any, Self

import numpy as np

from nlu.config.types import Config
from nlu.data.arrays import ranges, starts_of
from nlu.data.pieces import CUTS, WORDS
from nlu.data.store import EncodedRows, StoredSet
from nlu.data.tokenizing import Template, Tokenizer

SEPARATOR = "\x1f"
UNUSABLE = re.compile("[\x00\ud800-\udfff]")
"""NUL, and lone surrogates, which JSON can write but no encoding of Unicode can hold, such as half an emoji."""
Values = Mapping[str, Any]
"""the fields of a row; from JSON and parquet, values may have any type"""
Problem = tuple[str, str]
"""an invalid field of a row, and the rule that its value breaks"""


@dataclass
class Packed:
    """The sequences of some rows, in ascending order of their lengths."""

    lengths_S: np.ndarray
    starts_S: np.ndarray
    tokens_T: np.ndarray
    segments_T: np.ndarray
    positions_T: np.ndarray
    sequences_KB: np.ndarray
    """index in S of each sequence of each row, rows may share one; of rows in windows (1, S), row by row"""
    units_U: np.ndarray | None = None
    """index in T of the first token of each unit"""
    unit_counts_B: np.ndarray | None = None
    """units of each row that fit in max_len"""
    unit_ends_U: np.ndarray | None = None
    """(U, 2): the first and the last character of each unit of a text; None if rows are lists of units"""
    windows_B: np.ndarray | None = None
    """windows of each row; None: each is whole"""
    texts_KB: np.ndarray | None = None
    """of stored pairs in two sequences: a hash of each text, equal for equal texts"""
    shared_B: np.ndarray | None = None
    """a hash of the first text of each row, if rows share the sequence of equal ones"""

    @classmethod
    def of_pieces(cls, tokens_T: np.ndarray, lengths_P: np.ndarray) -> Self:
        """Return sequences of one segment that stand one after another, in any order of their lengths."""
        order_P = np.argsort(lengths_P, kind="stable")
        tokens_T = tokens_T[ranges(starts_of(lengths_P)[order_P], lengths_P[order_P])]
        # The inverse permutation: where each sequence has moved.
        places_P = np.empty_like(order_P)
        places_P[order_P] = np.arange(len(order_P))
        lengths_S = lengths_P[order_P]
        positions_T = ranges(np.zeros_like(lengths_S), lengths_S)
        segments_T = np.zeros_like(positions_T)
        return cls(lengths_S, starts_of(lengths_S), tokens_T, segments_T, positions_T, places_P[None])

    def moved(self, places_U: np.ndarray) -> np.ndarray:
        """Return where tokens of the pieces have moved."""
        places_P = self.sequences_KB[0]
        starts_P = starts_of(self.lengths_S[places_P])
        piece_U = np.searchsorted(starts_P, places_U, side="right") - 1
        return places_U - starts_P[piece_U] + self.starts_S[places_P[piece_U]]


class Layout:
    """One way in which rows become sequences.

    To define another one, derive from the class below whose tasks and models it fits, and name it by `data.layout`. It
    keeps the `name` of that class. Its own `roles`, if any, are the fields that `data.fields` must name. `encode` must
    treat each row by itself.
    """

    name: str
    roles: tuple[str, ...] = ("text",)

    @property
    def alternatives(self) -> tuple[tuple[str, ...], ...]:
        """The alternative sets of fields with the texts of a row, of which it needs one."""
        return (self.roles,)

    def roles_of(self, values: Values) -> tuple[str, ...]:
        """Return the fields that hold the texts of a row."""
        return self.roles

    def of_queries(self) -> "Layout":
        """Return the layout of rows that come as whole queries, several second texts for a first one."""
        return self

    @property
    def key(self) -> str:
        """Its key in LAYOUTS, which a checkpoint keeps."""
        return self.name

    def settings(self) -> Config:
        """Return all options that affect the tokens, as JSON, for the name of the store."""
        return {}

    def problem(self, values: Values) -> Problem | None:
        """Return the text field that cannot be used, and why, or None."""
        for role in self.roles_of(values):
            if rule := (check_tokens if role == "tokens" else check_text)(values[role]):
                return role, rule
        return None

    def texts(self, values: Values) -> list[str]:
        """Return the texts of a valid row, from which a vocabulary is built."""
        return [values[role] for role in self.roles_of(values)]

    def identity(self, values: Values) -> str:
        """Return a string that is equal for rows with the same texts, and only for these."""
        return SEPARATOR.join(self.texts(values))

    def sides(self, values: Values) -> tuple[str, str] | None:
        """Return both texts of a pair, or None if a row is one text.

        Many data sets have a text in several pairs, on either side. Pairs that share a text are held out together.
        """
        return None

    def shown(self, values: Values) -> dict[str, Any]:
        """Return the texts by field, for display."""
        return {role: values[role] for role in self.roles_of(values)}

    def encode(self, tokenizer: Tokenizer, rows: Sequence[Values], max_len: int) -> EncodedRows:
        """Return the tokens of valid rows, cut to `max_len` tokens including the special ones."""
        raise NotImplementedError

    def pack(self, stored: StoredSet, rows_B: np.ndarray) -> Packed:
        """Return the sequences of stored rows, which must be in ascending order of their numbers of tokens.

        Unless a layout says otherwise, each row is one sequence, or one for each window of a text, and the tokens after
        its boundary have segment 1.
        """
        if stored.has("windows"):
            lengths_W, windows_B = stored.lists("windows", rows_B)
            packed = Packed.of_pieces(stored.tokens(rows_B), lengths_W.astype(np.int64))
            packed.windows_B = windows_B
            return packed
        lengths_S = stored.lengths_N[rows_B].astype(np.int64)
        positions_T = ranges(np.zeros_like(lengths_S), lengths_S)
        # The boundary of a single text is its length, so all of its tokens have segment 0.
        segments_T = positions_T >= np.repeat(stored.boundaries(rows_B), lengths_S)
        sequences_KB = np.arange(len(rows_B))[None]
        return Packed(lengths_S, starts_of(lengths_S), stored.tokens(rows_B), segments_T, positions_T, sequences_KB)


class Single(Layout):
    """One text in one sequence."""

    name = "single"

    def encode(self, tokenizer: Tokenizer, rows: Sequence[Values], max_len: int) -> EncodedRows:
        return encode_single(tokenizer, [row["text"] for row in rows], max_len)


class Pair(Layout):
    """Two texts in one sequence, which differ by their segment."""

    name = "pair"
    roles = ("text_a", "text_b")

    def sides(self, values: Values) -> tuple[str, str] | None:
        return values["text_a"], values["text_b"]

    def encode(self, tokenizer: Tokenizer, rows: Sequence[Values], max_len: int) -> EncodedRows:
        firsts, seconds = _columns(rows, self.roles)
        return encode_pair(tokenizer, firsts, seconds, max_len)


class Sides(Pair):
    """Two texts in a sequence each, encoded independently of one another.

    A stored row has the tokens of the first text, then those of the second; its boundary is the length of the first.
    """

    name = "sides"
    shares_first = False
    """whether rows of a batch with the same first text have one sequence for it"""

    def of_queries(self) -> "Sides":
        layout = copy(self)
        layout.shares_first = True
        return layout

    def encode(self, tokenizer: Tokenizer, rows: Sequence[Values], max_len: int) -> EncodedRows:
        first, second = (encode_single(tokenizer, texts, max_len) for texts in _columns(rows, self.roles))
        lengths_N = first.lengths_N + second.lengths_N
        tokens = np.empty(int(lengths_N.sum()), np.int32)
        starts_N = starts_of(lengths_N)
        tokens[ranges(starts_N, first.lengths_N)] = first.tokens
        tokens[ranges(starts_N + first.lengths_N, second.lengths_N)] = second.tokens
        return EncodedRows(tokens, lengths_N, first.lengths_N, first.cut_N | second.cut_N)

    def pack(self, stored: StoredSet, rows_B: np.ndarray) -> Packed:
        lengths_B, firsts_B = stored.lengths_N[rows_B].astype(np.int64), stored.boundaries(rows_B).astype(np.int64)
        lengths_P = np.stack([firsts_B, lengths_B - firsts_B], axis=1).reshape(-1)
        tokens, piece_BK = stored.tokens(rows_B), np.arange(len(lengths_P)).reshape(-1, 2)
        if self.shares_first:
            # The first row with a text has its sequence, for all rows with this text.
            _, row_Q, query_B = np.unique(stored.first_N[rows_B], return_index=True, return_inverse=True)
            is_kept_P = np.ones(len(lengths_P), bool)
            is_kept_P[::2] = row_Q[query_B] == np.arange(len(rows_B))
            tokens, lengths_P = tokens[np.repeat(is_kept_P, lengths_P)], lengths_P[is_kept_P]
            piece_BK[:, 0] = piece_BK[row_Q[query_B], 0]
            piece_BK = (np.cumsum(is_kept_P) - 1)[piece_BK]
        # The rows are sorted by their total length, which says nothing about the two sequences of each.
        packed = Packed.of_pieces(tokens, lengths_P)
        packed.sequences_KB = np.ascontiguousarray(packed.sequences_KB[0][piece_BK].T)
        if stored.second_N is not None:
            packed.texts_KB = np.stack([stored.first_N[rows_B], stored.second_N[rows_B]]).astype(np.int64)
        packed.shared_B = stored.first_N[rows_B] if self.shares_first else None
        return packed


class Units(Layout):
    """A list of tokens, or the units of a text, in one sequence; `Packed.units_U` has the place of each unit."""

    name = "units"
    cut = "words"
    """how a text is cut into units, a key of `pieces.CUTS`"""

    @classmethod
    def of(cls, cut: str) -> Self:
        layout = cls()
        layout.cut = cut
        return layout

    @property
    def key(self) -> str:
        return self.name if self.cut == "words" else f"{self.name}/{self.cut}"

    @property
    def alternatives(self) -> tuple[tuple[str, ...], ...]:
        return ("tokens",), ("text",)

    def roles_of(self, values: Values) -> tuple[str, ...]:
        return ("tokens",) if "tokens" in values else ("text",)

    def texts(self, values: Values) -> list[str]:
        if self.cut != "words" and "tokens" not in values:
            # A vocabulary that is built has the letters that are units.
            return list(units_of(values["text"], CUTS[self.cut])[0])
        return values["tokens"] if "tokens" in values else [values["text"]]

    def identity(self, values: Values) -> str:
        return SEPARATOR.join(values["tokens"]) if "tokens" in values else values["text"]

    def encode(self, tokenizer: Tokenizer, rows: Sequence[Values], max_len: int) -> EncodedRows:
        return encode_units(tokenizer, list(map(tagged_of, rows)), max_len, CUTS[self.cut])

    def pack(self, stored: StoredSet, rows_B: np.ndarray) -> Packed:
        packed = super().pack(stored, rows_B)
        places_U, packed.unit_counts_B = stored.words(rows_B)
        starts_B = starts_of(stored.lengths_N[rows_B].astype(np.int64))
        places_U = places_U + np.repeat(starts_B, packed.unit_counts_B)
        packed.units_U = places_U if packed.windows_B is None else packed.moved(places_U)
        if stored.has("places"):
            ends, counts_B = stored.lists("places", rows_B)
            # `places` has two numbers for each unit, also for units that do not fit. The first units are those that
            # fit.
            packed.unit_ends_U = ends[ranges(starts_of(counts_B), 2 * packed.unit_counts_B)].reshape(-1, 2)
        return packed


def _columns(rows: Sequence[Values], roles: Sequence[str]) -> list[list[str]]:
    """Return the texts of each field."""
    return [[row[role] for row in rows] for role in roles]


def tagged_of(values: Values) -> Sequence[str]:
    """Return what the tags of a valid row belong to: its tokens, or the characters of its text."""
    return values["tokens"] if "tokens" in values else values["text"]


LAYOUTS: dict[str, Layout] = {one.key: one for one in (Single(), Pair(), Sides(), *map(Units.of, CUTS))}
"""All layouts by key; `nlu.data.fields` has the fields that each one needs."""


def check_text(value: object) -> str | None:
    """Return the rule that a text field breaks, or None."""
    if not isinstance(value, str):
        return "is not a text"
    if not value.strip():
        return "is empty"
    return unusable(value)


def unusable(text: str) -> str | None:
    """Return the rule that the characters of a text break, or None."""
    if (found := UNUSABLE.search(text)) is None:
        return None
    if found.group() == "\0":
        return "holds a NUL character; the file is damaged, or not in UTF-8"
    return "is not UTF-8" if "\udc80" <= found.group() <= "\udcff" else "holds half of a surrogate pair"


def check_tokens(value: object) -> str | None:
    """Return the rule that a list of tokens breaks, or None; a token may be blank."""
    if not isinstance(value, list) or not all(isinstance(token, str) for token in value):
        return "is not a list of texts"
    if not value:
        return "is empty"
    return next((rule for rule in map(unusable, value) if rule), None)


def encode_single(tokenizer: Tokenizer, texts: list[str], max_len: int) -> EncodedRows:
    """Encode single texts; a text is cut at its end to fit `max_len` with its special tokens."""
    flat, counts_N = tokenizer.ids(texts)
    keep_N = np.minimum(counts_N, max_len - tokenizer.single.size)
    tokens, lengths_N = assemble(tokenizer.single, [(flat, counts_N, keep_N)])
    return EncodedRows(tokens, lengths_N, lengths_N, keep_N < counts_N)


def encode_pair(tokenizer: Tokenizer, firsts: list[str], seconds: list[str], max_len: int) -> EncodedRows:
    """Encode pairs; a pair that is longer than `max_len` is cut by `cut_pair`."""
    flat_a, counts_a_N = tokenizer.ids(firsts)
    flat_b, counts_b_N = tokenizer.ids(seconds)
    keep_a_N, keep_b_N = cut_pair(counts_a_N, counts_b_N, max_len - tokenizer.pair.size)
    parts = [(flat_a, counts_a_N, keep_a_N), (flat_b, counts_b_N, keep_b_N)]
    tokens, lengths_N = assemble(tokenizer.pair, parts)
    boundary_N = keep_a_N + len(tokenizer.pair.before) + len(tokenizer.pair.between)
    return EncodedRows(tokens, lengths_N, boundary_N, (keep_a_N < counts_a_N) | (keep_b_N < counts_b_N))


def cut_pair(counts_a_N: np.ndarray, counts_b_N: np.ndarray, room: int) -> tuple[np.ndarray, np.ndarray]:
    """Return how many tokens of each text fit into `room`.

    If both texts are longer than half of the room, each gets half, and the first one gets the odd token. If only one
    is, that one is cut to the room that the other leaves.
    """
    half_a, half_b = room - room // 2, room // 2
    # A rule for each pair by itself, so the tokens of a pair do not depend on the other rows of the chunk.
    over_N = counts_a_N + counts_b_N > room
    a_long_N, b_long_N = counts_a_N > half_a, counts_b_N > half_b
    keep_a_N = np.where(over_N & a_long_N, np.where(b_long_N, half_a, room - counts_b_N), counts_a_N)
    keep_b_N = np.where(over_N & b_long_N, np.where(a_long_N, half_b, room - counts_a_N), counts_b_N)
    return keep_a_N, keep_b_N


def encode_units(
    tokenizer: Tokenizer, rows: Sequence[Sequence[str] | str], max_len: int, cut: re.Pattern[str] = WORDS
) -> EncodedRows:
    """Encode rows of units; the first token of each unit carries its tag.

    A row is a list of words, or a text whose units match `cut`. If these are its words, its tokens are those of the
    whole text. A space before a word is encoded with the word if the tokenizer marks the beginning of words by
    it, and a unit of a text that follows another one without a space does not begin a word. A unit of which the
    tokenizer leaves nothing, such as a space, becomes the unknown token, so that every unit has a token. A unit that
    does not fit in `max_len` as a whole is cut off.
    """
    units: list[str] = []
    units_N = np.empty(len(rows), np.int64)
    places: list[int] = []
    inside: list[bool] = []
    with_places = any(isinstance(row, str) for row in rows)
    for number, row in enumerate(rows):
        own, ends = units_of(row, cut)
        units_N[number] = len(own)
        # For the whole chunk or not at all, because the store has one column for all rows.
        if with_places:
            places += chain.from_iterable(ends)
        if tokenizer.needs_spaces:
            own = [f" {unit}" if _follows_blank(row, ends[place][0]) else unit for place, unit in enumerate(own)]
        units += own
        if tokenizer.marks_beginnings:
            inside += [isinstance(row, str) and first > 0 and not row[first - 1].isspace() for first, _ in ends]
    flat, pieces_U = tokenizer.ids_of_units(units, inside) if any(inside) else tokenizer.ids(units)
    # np.insert takes places in the old array, so several inserts do not shift one another.
    flat = np.insert(flat, starts_of(pieces_U)[pieces_U == 0], tokenizer.unknown_id)
    # Each unit without tokens has just got one.
    pieces_U = np.maximum(pieces_U, 1)
    row_U = np.repeat(np.arange(len(rows)), units_N)
    end_U = np.cumsum(pieces_U)
    row_start_N = np.concatenate([[0], end_U])[starts_of(units_N)]
    end_in_row_U = end_U - row_start_N[row_U]
    # Units end in ascending order, so those that fit are a prefix of their row.
    fits_U = end_in_row_U <= max_len - tokenizer.single.size
    counts_N = np.bincount(row_U, weights=pieces_U, minlength=len(rows)).astype(np.int64)
    keep_N = np.bincount(row_U, weights=pieces_U * fits_U, minlength=len(rows)).astype(np.int64)
    tokens, lengths_N = assemble(tokenizer.single, [(flat, counts_N, keep_N)])
    words = (end_in_row_U - pieces_U + len(tokenizer.single.before))[fits_U].astype(np.int32)
    word_counts_N = np.bincount(row_U[fits_U], minlength=len(rows)).astype(np.int64)
    encoded = EncodedRows(tokens, lengths_N, lengths_N, keep_N < counts_N, words, word_counts_N)
    if with_places:
        encoded.places, encoded.place_counts_N = np.array(places, np.int32), 2 * units_N
    return encoded


def units_of(row: Sequence[str] | str, cut: re.Pattern[str] = WORDS) -> tuple[Sequence[str], list[tuple[int, int]]]:
    """Return the units of a row, and the first and the last character of each; in a list of units its index, twice."""
    if not isinstance(row, str):
        return row, [(number, number) for number in range(len(row))]
    spans = [match.span() for match in cut.finditer(row)]
    return [row[start:end] for start, end in spans], [(start, end - 1) for start, end in spans]


def _follows_blank(row: Sequence[str] | str, first: int) -> bool:
    return first > 0 and (row[first - 1].isspace() if isinstance(row, str) else True)


def assemble(
    template: Template, parts: list[tuple[np.ndarray, np.ndarray, np.ndarray]]
) -> tuple[np.ndarray, np.ndarray]:
    """Concatenate `before`, the kept tokens of all parts with `between` between them, and `after`, for every row."""
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
