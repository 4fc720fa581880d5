"""Tags of any known scheme to BIO, and spans to BIO.

A scheme marks where a span begins and ends by the letter before its type: B begins, I and M continue, E and L end, S
and U are a span of one unit. One rule reads them all; schemes differ only in the letters that occur together. See
Ratinov and Roth, "Design Challenges and Misconceptions in Named Entity Recognition" (CoNLL 2009), 3.1.
"""

from collections.abc import Iterable, Sequence
from typing import Any

SPANS = '{"person": {"Ann Lee": [[0, 6]]}} with first and last character'
SCHEMES = {"IO": "I", "BIO": "BI", "BIO with S": "BIS", "BIOES": "BIES", "BMES": "BMES", "BILOU": "BILU"}
"""The letters of each, the fewer first; O stands outside of all spans."""
KNOWN = "known are O and, before -type, the letters of " + ", ".join(
    f"{name} ({' '.join(letters)})" for name, letters in SCHEMES.items()
)
BEGINS, GOES_ON, ENDS, ALONE = "B", "IM", "EL", "SU"
LETTERS = frozenset(BEGINS + GOES_ON + ENDS + ALONE)


def scheme_of(letters: Iterable[str]) -> str | None:
    """Return the first scheme that has all of these letters, or None; BIO where there are none."""
    wanted = set(letters)
    return next((name for name, own in SCHEMES.items() if wanted <= set(own)), None) if wanted else "BIO"


def split_tag(tag: Any) -> tuple[str, str] | None:
    """Return the letter and the type of a tag, ("O", "") of O, or None where it is of no known scheme."""
    letter, hyphen, name = str(tag).partition("-")
    if letter == "O" and not hyphen:
        return "O", ""
    return (letter, name) if letter in LETTERS and name else None


def to_bio(parts: Sequence[tuple[str, str]]) -> tuple[list[tuple[str, str]], int]:
    """Return the letters and types of the same spans in BIO, and how many letters but B began a span for lack of one.

    A unit with I, M, E or L continues the span before it if both have the same type and that span has not ended; every
    other unit begins a span. So a gold I- without a span before it counts as the beginning of one.
    """
    bio, strays, open_type = [], 0, None
    for letter, name in parts:
        if letter == "O":
            open_type = None
            bio.append((letter, name))
            continue
        goes_on = letter in GOES_ON or letter in ENDS
        continues = goes_on and name == open_type
        strays += goes_on and not continues
        bio.append(("I" if continues else "B", name))
        open_type = None if letter in ENDS or letter in ALONE else name
    return bio, strays


def tags_of_spans(text: str, spans: Any) -> tuple[list[str] | None, str | None]:
    """Turn `{type: {surface: [[first, last], ...]}}` over the characters of a text, ends included, into BIO tags.

    Returns (tags, None) or (None, the rule broken): a span outside the text, a surface that differs from it, spans
    that overlap (BIO cannot hold both).
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


def _is_places(value: Any) -> bool:
    """Whether a value is a list of pairs of whole numbers."""
    return isinstance(value, list) and all(
        isinstance(place, list) and len(place) == 2 and all(type(end) is int for end in place) for place in value
    )
