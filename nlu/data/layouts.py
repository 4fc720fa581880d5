"""How the texts of a row become sequences: one text, a pair in one sequence or in two, or a list of tagged units.

A layout is everything that is to be known of it: what a row must hold, what is hashed, tokenized and shown of it, and
how stored rows become sequences of a batch. Axes: B examples of a batch, S sequences, K sequences of an example, T
tokens, U units.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from nlu.data.encoding import (
    EncodedRows,
    check_text,
    check_tokens,
    encode_pair,
    encode_sides,
    encode_single,
    encode_units,
)
from nlu.data.ragged import ranges, starts_of
from nlu.data.store import StoredSet
from nlu.data.tokenizing import Tokenizer

SEPARATOR = "\x1f"
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
"""All of them by name; which fields each one needs is in `nlu.data.fields`."""
