"""A tag for each unit of an example, written in any known scheme and stored as BIO, or a class for each unit.

A scheme marks where a span begins and ends by the letter before its type: B begins, I and M continue, E and L end, S
and U are a span of one unit. One rule reads them all; schemes differ only in the letters that occur together. See
Ratinov and Roth, "Design Challenges and Misconceptions in Named Entity Recognition" (CoNLL 2009), 3.1.

Axes: N rows of a set, B rows of a batch, U units, C tags.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Self

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from nlu.config.keys import takes
from nlu.config.sentences import counted
from nlu.data import keys as schemas
from nlu.data.arrays import ranges, starts_of
from nlu.data.dataset import Files
from nlu.data.layouts import Layout, Units, tagged_of, units_of, unusable
from nlu.data.pieces import CUTS
from nlu.data.store import StoredSet, chunks_of
from nlu.data.targets.base import Gathered, Problem, Target, Values, named_counts
from nlu.data.targets.classes import WHOLE, hashes_of_lists, numbered, outside, require_names
from nlu.data.targets.span_tags import tags_of_spans

UNTYPED = "_"
"""the type of spans whose tags are letters alone, as in seqeval"""
SCHEMES = {"IO": "I", "BIO": "BI", "BIO with S": "BIS", "BIOES": "BIES", "BMES": "BMES", "BILOU": "BILU"}
"""the letters of each scheme, the fewest first; O is outside of all spans"""
KNOWN = "known are O and, before -type, the letters of " + ", ".join(
    f"{name} ({' '.join(letters)})" for name, letters in SCHEMES.items()
)
BEGINS, CONTINUES, ENDS, SINGLE = "B", "IM", "EL", "SU"
SEPARATORS = ("-", "_")
LEAST_GAINED, MOST_LOST, FEW_LOST = 0.01, 0.05, 2
"""the share of spans that units of letters must gain; the share, and number, of spans that may begin within a unit"""
LETTERS = frozenset(BEGINS + CONTINUES + ENDS + SINGLE)


@takes(schemas.Tags)
class Tags(Target):
    """BIO tags: O, then B- and I- of each span type in the order of their names.

    Rows may be tagged in any of SCHEMES. The same spans are stored in strict BIO, in which every span begins with B-.
    """

    looks = True

    def __init__(self, files: Files):
        self._is_open, self._is_trained = files.labels is None, False
        self.is_classes = False
        """whether tags are classes of units, such as parts of speech, and not spans"""
        self._given: list[str] = []
        self.read_as(files)
        self._types = numbered(_types_of(self._given))
        self._letters: set[str] = set()
        self._from_spans = False
        self._strays = 0
        self.remap = None

    def read_as(self, files: Files) -> None:
        self._given = list(map(str, files.labels or []))

    def look(self, layout: Layout, rows: Iterable[Values]) -> Layout:
        """Decide whether tags are spans or classes, and return the layout with the coarsest units for the spans.

        They are classes if no tag has a type behind the letter of a scheme, and not all tags are such letters alone.
        """
        seen: set[str] = set()
        lost, count = Counter[str](), 0
        for values in rows:
            tags = self._written(values)[0]
            if not isinstance(tags, list):
                continue
            written = list(map(str, tags))
            # A row repeats few tags, so each is looked up once.
            name_of = {tag: self._named(tag) for tag in set(written)}
            seen.update(name_of.values())
            if isinstance(text := values.get("text"), str) and "tokens" not in values and len(tags) == len(text):
                parts = {tag: split_tag(name) or ("O", "") for tag, name in name_of.items()}
                bio, _ = to_bio([parts[tag] for tag in written])
                tags_U = np.array(["OBI".index(letter) for letter, _ in bio])
                count += int((tags_U == 1).sum())
                for cut, pattern in CUTS.items():
                    if not (more := _count_lost(tags_U, np.array(units_of(text, pattern)[1]).reshape(-1, 2))):
                        # Finer units begin and end wherever coarser ones do.
                        break
                    lost[cut] += more
        known = [split_tag(tag) for tag in seen]
        is_typed = any(part is not None and part[1] not in ("", UNTYPED) for part in known)
        letters = {part[0] for part in known if part is not None} - {"O"}
        are_letters = None not in known and scheme_of(letters) is not None
        # Numbers without names are refused when rows are read.
        self.is_classes = not (is_typed or are_letters or any(WHOLE.fullmatch(tag) for tag in seen))
        if self.is_classes:
            self._types = numbered(self._given)
        if type(layout) is not Units or not count:
            return layout
        cut = "letters" if lost["words"] - lost["letters"] >= LEAST_GAINED * count else "words"
        return Units.of("characters" if lost[cut] > max(FEW_LOST, MOST_LOST * count) else cut)

    def read(self, values: Values) -> tuple[list[int] | None, Problem | None]:
        role = "spans" if "spans" in values and "text" in values else "tags"
        tags, rule = self._written(values)
        self._from_spans |= role == "spans"
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

    @staticmethod
    def _written(values: Values) -> tuple[Any, str | None]:
        """Return the tags of a row, those of its spans by character, or None and the rule that its spans break."""
        if "spans" in values and "text" in values:
            return tags_of_spans(values["text"], values["spans"])
        return values.get("tags"), None

    def _named(self, tag: object) -> str:
        """Return a tag; for a number its name in data.labels."""
        name = str(tag)
        is_number = bool(self._given) and name not in self._given and name.isascii() and name.isdigit()
        return self._given[int(name)] if is_number and int(name) < len(self._given) else name

    def numbers(self, tags: Sequence[object]) -> tuple[list[int] | None, str | None]:
        """Return (numbers, None), or (None, the rule that a tag breaks). A bad row adds no type."""
        known: dict[str, tuple[str, str]] = {}
        parts = []
        for tag in tags:
            name = str(tag)
            # A row repeats few tags, mostly O, so each is split once.
            if (part := known.get(name)) is None:
                checked, rule = self._check(self._named(tag)) if isinstance(tag, str | int) else (None, "is not a tag")
                if checked is None:
                    return None, f"{rule}: {tag!r}"
                part = known[name] = checked
            parts.append(part)
        if self.is_classes:
            return [self._types.setdefault(name, len(self._types)) for _, name in parts], None
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
        part = ("", tag) if self.is_classes else split_tag(tag)
        if part is None:
            if WHOLE.fullmatch(tag):
                return None, (
                    "is a number in place of the name of a tag (set data.labels to the names of all tags in the order "
                    "of their numbers, such as [O, B-PER, I-PER])"
                )
            return None, f"is a tag of no known scheme ({KNOWN})"
        if rule := unusable(part[1]):
            return None, f"has a type that {rule}"
        if part[0] != "O" and part[1] not in self._types and not self._is_open:
            what = "tag" if self.is_classes else "type"
            return None, f"has a {what} that is not one of {outside(self._types, self._is_trained)}"
        return part, None

    def _number(self, letter: str, name: str) -> int:
        # 0 is O, odd numbers begin a span and even ones continue it; `_tags_of_words` relies on that.
        return 0 if letter == "O" else 1 + 2 * self._types.setdefault(name, len(self._types)) + (letter == "I")

    def column(self) -> pa.DataType | None:
        return pa.list_(pa.int32())

    def close(self) -> None:
        types = sorted(self._types) if self._is_open else list(self._types)
        final = numbered(types)
        self.remap = [final[name] for name in self._types] if self.is_classes else [0]
        # The final numbers of B- and I- of each type, in the order in which types were numbered.
        for name in () if self.is_classes else self._types:
            self.remap += [1 + 2 * final[name], 2 + 2 * final[name]]
        self._is_open, self._types = False, final
        require_names(self.names, 2)

    def about(self) -> dict[str, object]:
        """Return `scheme`, that of the rows or "classes"; and `begun_without_B`, the number of spans that began with a
        letter for the middle or the end and now begin with B-."""
        if self.is_classes:
            return {"scheme": "classes"}
        scheme = "spans" if self._from_spans else scheme_of(self._letters)
        return {"scheme": scheme, "begun_without_B": self._strays}

    def meta(self) -> dict[str, object]:
        return {
            "types": list(self._types),
            "remap": self.remap,
            "letters": sorted(self._letters),
            "from_spans": self._from_spans,
            "strays": self._strays,
            **({"classes": True} if self.is_classes else {}),
        }

    @classmethod
    def from_meta(cls, meta: dict[str, Any]) -> Self:
        target = cls.__new__(cls)
        target._is_open, target._is_trained = False, True
        target._types = numbered(meta["types"])
        target._letters, target._from_spans, target._strays = set(meta["letters"]), meta["from_spans"], meta["strays"]
        target.remap, target.is_classes, target._given = meta["remap"], meta.get("classes", False), []
        return target

    @property
    def names(self) -> list[str]:
        return list(self._types) if self.is_classes else tag_names(self._types)

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
        return tags[ends_U[:, 0]] if self.is_classes else _tags_of_words(tags, ends_U), end_counts_B // 2

    def collate(self, rows: Gathered) -> dict[str, Tensor]:
        """Return `labels`, (U,), int64: the tags of the units that fit in max_len."""
        tags, counts_B = self.unit_tags(rows.stored, rows.rows_B)
        fitting_B = rows.stored.counts("words", rows.rows_B)
        return {"labels": torch.from_numpy(tags[ranges(starts_of(counts_B), fitting_B)].astype(np.int64))}

    def identities(self, stored: StoredSet, rows_B: np.ndarray) -> np.ndarray:
        return hashes_of_lists(self.tags, stored, rows_B)

    def facts(self, stored: StoredSet, rows_N: np.ndarray) -> dict[str, object]:
        """Return `labels`, the number of units with each tag, and of texts `inexpressible`, the number of spans that
        begin or end within a unit."""
        counts_C = np.zeros(len(self.names), np.int64)
        lost, is_text = 0, stored.has("places") and not self.is_classes
        for rows_B in chunks_of(rows_N):
            tags, counts_B = self.tags(stored, rows_B)
            counts_C += np.bincount(tags, minlength=len(counts_C))
            if is_text:
                ends, end_counts_B = stored.lists("places", rows_B)
                row_U = np.repeat(np.arange(len(rows_B)), end_counts_B // 2)
                lost += _count_lost(tags, ends.reshape(-1, 2) + starts_of(counts_B)[row_U][:, None])
        return {"labels": named_counts(self.names, counts_C), **({"inexpressible": lost} if is_text else {})}


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


def _count_lost(tags: np.ndarray, ends_U: np.ndarray) -> int:
    """Return how many spans of characters begin or end within a unit; `ends_U`, (U, 2): its first, last character."""
    goes_on = np.append((tags[1:] > 0) & (tags[1:] % 2 == 0), False)
    is_first, is_last = np.zeros((2, len(tags)), bool)
    is_first[ends_U[:, 0]] = is_last[ends_U[:, 1]] = True
    begins, ends = np.flatnonzero(tags % 2 == 1), np.flatnonzero((tags > 0) & ~goes_on)
    return int((~(is_first[begins] & is_last[ends])).sum())


def _types_of(given: list[str]) -> list[str]:
    """Return the types in data.labels, which may name all tags instead, with O."""
    parts = [split_tag(name) for name in given]
    if "O" not in given or None in parts:
        return given
    return list(dict.fromkeys(part[1] for part in parts if part is not None and part[0] != "O"))


def tag_names(types: Iterable[str]) -> list[str]:
    """Return the tags of span types in the order of their numbers."""
    return ["O", *(f"{prefix}-{name}" for name in types for prefix in "BI")]


def scheme_of(letters: Iterable[str]) -> str | None:
    """Return the first scheme that has all of these letters, or None; BIO for no letters."""
    wanted = set(letters)
    return next((name for name, own in SCHEMES.items() if wanted <= set(own)), None) if wanted else "BIO"


def split_tag(tag: object) -> tuple[str, str] | None:
    """Return the letter and the type of a tag, ("O", "") for O, (letter, UNTYPED) for a letter alone, or None for a tag
    of no known scheme."""
    tag = str(tag)
    letter, between, name = tag[:1], tag[1:2], tag[2:]
    if tag == "O":
        return "O", ""
    if letter not in LETTERS or between and not (between in SEPARATORS and name):
        return None
    return letter, name or UNTYPED


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
