"""A tag for each unit of an example, written in any known scheme and stored as BIO.

A scheme marks where a span begins and ends by the letter before its type: B begins, I and M continue, E and L end, S
and U are a span of one unit. One rule reads them all; schemes differ only in the letters that occur together. See
Ratinov and Roth, "Design Challenges and Misconceptions in Named Entity Recognition" (CoNLL 2009), 3.1.

Axes: N rows of a set, B rows of a batch, U units, C tags.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Self

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from nlu.config.words import counted
from nlu.data.arrays import ranges, starts_of
from nlu.data.dataset import Files
from nlu.data.layouts import tagged_of, unusable
from nlu.data.store import StoredSet, chunks_of
from nlu.data.targets.base import Gathered, Problem, Target, Values, named_counts
from nlu.data.targets.classes import hashes_of_lists, numbered, outside, require_names

SPANS = '{"person": {"Ann Lee": [[0, 6]]}} with first and last character'
SCHEMES = {"IO": "I", "BIO": "BI", "BIO with S": "BIS", "BIOES": "BIES", "BMES": "BMES", "BILOU": "BILU"}
"""the letters of each scheme, the fewest first; O is outside of all spans"""
KNOWN = "known are O and, before -type, the letters of " + ", ".join(
    f"{name} ({' '.join(letters)})" for name, letters in SCHEMES.items()
)
BEGINS, CONTINUES, ENDS, SINGLE = "B", "IM", "EL", "SU"
LETTERS = frozenset(BEGINS + CONTINUES + ENDS + SINGLE)


class Tags(Target):
    """BIO tags: O, then B- and I- of each span type in the order of their names.

    Rows may be tagged in any of SCHEMES. The same spans are stored in strict BIO, in which every span begins with B-.
    """

    kind = "tags"
    roles = ("tags", "spans")

    def __init__(self, files: Files):
        self._is_open, self._is_trained = files.labels is None, False
        self._cut_to = files.max_rows if files.labels is None else None
        self._types = numbered(files.labels or [])
        self._letters: set[str] = set()
        self._from_spans = False
        self._strays = 0
        self.remap = None

    def read(self, values: Values) -> tuple[list[int] | None, Problem | None]:
        role = "spans" if "spans" in values and "text" in values else "tags"
        tags, rule = values.get("tags"), None
        if role == "spans":
            tags, rule = tags_of_spans(values["text"], values["spans"])
            self._from_spans = True
        numbers = None
        if isinstance(tags, list) and rule is None:
            count = len(tagged_of(values))
            if len(tags) == count:
                numbers, rule = self.numbers(tags)
            else:
                rule = f"has {counted(len(tags), 'tag')} for {counted(count, 'token')}"
        elif rule is None:
            rule = "is not a list of tags"
        return (None, (role, rule)) if rule is not None else (numbers, None)

    def numbers(self, tags: Sequence[object]) -> tuple[list[int] | None, str | None]:
        """Return (numbers, None), or (None, the rule that a tag breaks). A bad row adds no type."""
        known: dict[str, tuple[str, str]] = {}
        parts = []
        for tag in tags:
            name = str(tag)
            # A row repeats few tags, mostly O, so each is split once.
            if (part := known.get(name)) is None:
                checked, rule = self._check(name)
                if checked is None:
                    return None, f"{rule}: {tag!r}"
                part = known[name] = checked
            parts.append(part)
        # The scheme must be one for all rows, so the letters are collected over rows.
        letters = {letter for letter, _ in known.values() if letter != "O"}
        if not letters <= self._letters:
            if scheme_of(letters | self._letters) is None:
                mixed = ", ".join(sorted(letters | self._letters))
                return None, f"has tags that begin with {mixed} in all rows so far, which no single scheme has; {KNOWN}"
            self._letters |= letters
        bio, strays = to_bio(parts)
        self._strays += strays
        return [self._number(letter, name) for letter, name in bio], None

    def _check(self, tag: str) -> tuple[tuple[str, str] | None, str | None]:
        part = split_tag(tag)
        if part is None:
            return None, f"is a tag of no known scheme ({KNOWN})"
        if rule := unusable(part[1]):
            return None, f"has a type that {rule}"
        if part[0] != "O" and part[1] not in self._types and not self._is_open:
            return None, f"has a type that is not one of {outside(self._types, self._cut_to, self._is_trained)}"
        return part, None

    def _number(self, letter: str, name: str) -> int:
        # 0 is O, odd numbers begin a span and even ones continue it; `_tags_of_words` relies on that.
        return 0 if letter == "O" else 1 + 2 * self._types.setdefault(name, len(self._types)) + (letter == "I")

    def column(self) -> pa.DataType | None:
        return pa.list_(pa.int32())

    def close(self) -> None:
        types = sorted(self._types) if self._is_open else list(self._types)
        final = numbered(types)
        self.remap = [0]
        # The final numbers of B- and I- of each type, in the order in which types were numbered.
        for name in self._types:
            self.remap += [1 + 2 * final[name], 2 + 2 * final[name]]
        self._is_open, self._types = False, final
        require_names(self.names, 2, self._cut_to)

    def about(self) -> dict[str, object]:
        """Return `scheme`, the scheme of the rows, and `begun_without_B`, the number of spans that began with a letter
        for the middle or the end and now begin with B-."""
        scheme = "spans" if self._from_spans else scheme_of(self._letters)
        return {"scheme": scheme, "begun_without_B": self._strays}

    def meta(self) -> dict[str, object]:
        return {
            "types": list(self._types),
            "remap": self.remap,
            "letters": sorted(self._letters),
            "from_spans": self._from_spans,
            "strays": self._strays,
        }

    @classmethod
    def from_meta(cls, meta: dict[str, Any]) -> Self:
        target = cls.__new__(cls)
        target._is_open, target._is_trained = False, True
        target._cut_to, target._types = None, numbered(meta["types"])
        target._letters, target._from_spans, target._strays = set(meta["letters"]), meta["from_spans"], meta["strays"]
        target.remap = meta["remap"]
        return target

    @property
    def names(self) -> list[str]:
        return tag_names(self._types)

    def tags(self, stored: StoredSet, rows_B: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the stored tags of the rows, flat, and their counts (B,).

        A list of units has a tag for each unit, including those that max_len cut off; a text for each character.
        """
        return stored.lists("target", rows_B)

    def unit_tags(self, stored: StoredSet, rows_B: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the tag of every unit, including those that max_len cut off; flat, and counts (B,).

        A word of a text belongs to the first span that contains one of its characters.
        """
        tags, counts_B = self.tags(stored, rows_B)
        if not stored.has("places"):
            return tags, counts_B
        ends, end_counts_B = stored.lists("places", rows_B)
        row_U = np.repeat(np.arange(len(rows_B)), end_counts_B // 2)
        ends_U = ends.reshape(-1, 2) + starts_of(counts_B)[row_U][:, None]
        return _tags_of_words(tags, ends_U), end_counts_B // 2

    def collate(self, rows: Gathered) -> dict[str, Tensor]:
        """Return `labels`, (U,), int64: the tags of the units that fit in max_len."""
        tags, counts_B = self.unit_tags(rows.stored, rows.rows_B)
        fitting_B = rows.stored.counts("words", rows.rows_B)
        return {"labels": torch.from_numpy(tags[ranges(starts_of(counts_B), fitting_B)].astype(np.int64))}

    def identities(self, stored: StoredSet, rows_B: np.ndarray) -> np.ndarray:
        return hashes_of_lists(self.tags, stored, rows_B)

    def facts(self, stored: StoredSet, rows_N: np.ndarray) -> dict[str, object]:
        """Return `labels`, the number of units with each tag."""
        counts_C = np.zeros(len(self.names), np.int64)
        for rows_B in chunks_of(rows_N):
            counts_C += np.bincount(self.tags(stored, rows_B)[0], minlength=len(counts_C))
        return {"labels": named_counts(self.names, counts_C)}


def _tags_of_words(tags: np.ndarray, ends_U: np.ndarray) -> np.ndarray:
    """Return the BIO tag of each word from the tags of characters; `ends_U`, (U, 2): its first and last character."""
    count = len(tags)
    place = np.arange(count)
    # For each character: the first one from here on that is in a span, and the beginning of its span.
    next_tagged = np.minimum.accumulate(np.append(np.where(tags > 0, place, count), count)[::-1])[::-1]
    begun_at = np.maximum.accumulate(np.where(tags % 2 == 1, place, -1)) if count else place
    tagged_U = next_tagged[ends_U[:, 0]]
    is_tagged_U = tagged_U <= ends_U[:, 1]
    tagged_U = np.where(is_tagged_U, tagged_U, 0)
    begun_U = np.where(is_tagged_U, begun_at[tagged_U], -1)
    # A word continues a span if the word before it is in the same span. Outside words have -1, and become 0 below.
    continues_U = np.append(False, begun_U[1:] == begun_U[:-1])[: len(begun_U)]
    begins_U = (tags[tagged_U] - 1) // 2 * 2 + 1
    return np.where(is_tagged_U, begins_U + continues_U, 0).astype(tags.dtype)


def tag_names(types: Iterable[str]) -> list[str]:
    """Return the tags of span types in the order of their numbers."""
    return ["O", *(f"{prefix}-{name}" for name in types for prefix in "BI")]


def scheme_of(letters: Iterable[str]) -> str | None:
    """Return the first scheme that has all of these letters, or None; BIO for no letters."""
    wanted = set(letters)
    return next((name for name, own in SCHEMES.items() if wanted <= set(own)), None) if wanted else "BIO"


def split_tag(tag: object) -> tuple[str, str] | None:
    """Return the letter and the type of a tag, ("O", "") for O, or None for a tag of no known scheme."""
    letter, hyphen, name = str(tag).partition("-")
    if letter == "O" and not hyphen:
        return "O", ""
    return (letter, name) if letter in LETTERS and name else None


def to_bio(parts: Sequence[tuple[str, str]]) -> tuple[list[tuple[str, str]], int]:
    """Return the letters and types of the same spans in BIO, and the number of spans that began with I, M, E or L.

    A unit with I, M, E or L continues the span before it if both have the same type and that span has not ended; every
    other unit begins a span. So an I- without a span before it begins one.
    """
    bio, strays, open_type = [], 0, None
    for letter, name in parts:
        if letter == "O":
            open_type = None
            bio.append((letter, name))
            continue
        is_inner = letter in CONTINUES or letter in ENDS
        continues = is_inner and name == open_type
        strays += is_inner and not continues
        bio.append(("I" if continues else "B", name))
        open_type = None if letter in ENDS or letter in SINGLE else name
    return bio, strays


def tags_of_spans(text: str, spans: object) -> tuple[list[str] | None, str | None]:
    """Convert `{type: {surface: [[first, last], ...]}}`, with inclusive character indices, to BIO tags of characters.

    Returns (tags, None), or (None, the broken rule) for a span outside the text, a surface that differs from the text,
    or spans that overlap, which BIO cannot represent.
    """
    if not isinstance(spans, dict):
        return None, f"is not an object of span types, such as {SPANS}"
    tags = ["O"] * len(text)
    for name, surfaces in spans.items():
        if not isinstance(surfaces, dict) or not all(map(_is_places, surfaces.values())):
            return None, f"has {name} written otherwise than {SPANS}"
        for surface, (first, last) in ((surface, place) for surface, places in surfaces.items() for place in places):
            where = f"has {name} {surface!r} at [{first}, {last}]"
            if not 0 <= first <= last < len(text) or text[first : last + 1] != surface:
                return None, f"{where}, {_otherwise(text, surface, first, last)}"
            if any(tag != "O" for tag in tags[first : last + 1]):
                return None, f"{where} over another span; BIO cannot hold both"
            tags[first : last + 1] = [f"B-{name}"] + [f"I-{name}"] * (last - first)
    return tags, None


def _otherwise(text: str, surface: str, first: int, last: int) -> str:
    if 0 <= first < last <= len(text) and text[first:last] == surface:
        return f"whose end looks exclusive: ends are included here, so that this is [{first}, {last - 1}]"
    return "where the text reads otherwise"


def _is_places(value: object) -> bool:
    """Return whether a value is a list of pairs of integers."""
    return isinstance(value, list) and all(
        isinstance(place, list) and len(place) == 2 and all(type(end) is int for end in place) for place in value
    )
