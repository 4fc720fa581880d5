"""Labels of classes and tags of units: from what a file says to the numbers that a model is trained on."""

import re
from typing import Any

from nlu.config.errors import DataError

SPANS = '{"person": {"Ann Lee": [[0, 6]]}} with first and last character'


class ClassLabels:
    """The classes of a classification or matching task, in the order of their numbers."""

    def __init__(self, names: list[str] | None, max_rows: int | None = None):
        """`names` null: those of the training set, of which `data.max_rows` may have kept the first rows alone."""
        self._open = names is None
        self._cut_to = max_rows if names is None else None
        self._numbers = _numbered(names or [])

    def read(self, value: Any) -> tuple[int | None, str | None]:
        """Return (number, None), or (None, the rule that the value breaks). Unknown labels are added while open."""
        if value is None or isinstance(value, (dict, list)) or value != value:
            return None, "is not a label"
        name = str(value).strip()
        if name not in self._numbers:
            if not name:
                return None, "is an empty label"
            if not self._open:
                return None, f"is not in the label map {_outside(self._numbers, self._cut_to)}"
            self._numbers[name] = len(self._numbers)
        return self._numbers[name], None

    def close(self) -> tuple[list[str], list[int]]:
        """Fix the order (numbers by value, else by name) once the training set is read.

        Returns the names, and for each number handed out so far the final one.
        """
        names = list(self._numbers)
        if self._open:
            numeric = all(re.fullmatch(r"-?\d+", name) for name in names)
            names.sort(key=lambda name: (int(name), name) if numeric else (0, name))
        final = {name: number for number, name in enumerate(names)}
        remap = [final[name] for name in self._numbers]
        self._open, self._numbers = False, final
        return names, remap


class TagLabels:
    """BIO tags: O, then B- and I- of each span type in the order of their names."""

    def __init__(self, types: list[str] | None, max_rows: int | None = None):
        """`types` null: those of the training set, of which `data.max_rows` may have kept the first rows alone."""
        self._open = types is None
        self._cut_to = max_rows if types is None else None
        self._types = _numbered(types or [])

    def _rule(self, tag: str) -> str | None:
        prefix, _, name = tag.partition("-")
        if tag != "O" and (prefix not in ("B", "I") or not name):
            return "is not a BIO tag (O, B-type or I-type)"
        if tag != "O" and name not in self._types and not self._open:
            return f"has a type not in the label map {_outside(self._types, self._cut_to)}"
        return None

    def _number(self, tag: str) -> int:
        if tag == "O":
            return 0
        prefix, _, name = tag.partition("-")
        return 1 + 2 * self._types.setdefault(name, len(self._types)) + (prefix == "I")

    def read(self, tags: Any) -> tuple[list[int] | None, str | None]:
        """Return (numbers, None), or (None, the rule that a tag breaks). A row that is refused adds no type."""
        if not isinstance(tags, list):
            return None, "is not a list of tags"
        for tag in tags:
            if rule := self._rule(str(tag)):
                return None, f"{rule}: {tag!r}"
        return [self._number(str(tag)) for tag in tags], None

    def close(self) -> tuple[list[str], list[int]]:
        """Fix the order of the types by name; returns the tags and the final number of each one handed out."""
        types = list(self._types)
        if self._open:
            types.sort()
        final = {name: number for number, name in enumerate(types)}
        remap = [0]
        for name in self._types:
            remap += [1 + 2 * final[name], 2 + 2 * final[name]]
        self._open, self._types = False, final
        return ["O", *(f"{prefix}-{name}" for name in types for prefix in "BI")], remap


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
            if not 0 <= first <= last < len(text) or text[first : last + 1] != surface:
                return None, f"has {name} {surface!r} at [{first}, {last}], where the text reads otherwise"
            if any(tag != "O" for tag in tags[first : last + 1]):
                return None, f"has {name} {surface!r} at [{first}, {last}] over another span; BIO cannot hold both"
            tags[first : last + 1] = [f"B-{name}"] + [f"I-{name}"] * (last - first)
    return tags, None


def _is_places(value: Any) -> bool:
    """Whether a value is a list of pairs of whole numbers."""
    return isinstance(value, list) and all(
        isinstance(place, list) and len(place) == 2 and all(type(end) is int for end in place) for place in value
    )


def require_labels(names: list[str], minimum: int) -> None:
    """Raise DataError where the training set has fewer labels than a task can be learned from."""
    if len(names) < minimum:
        raise DataError(
            f"the training set has the labels {names}, but at least {minimum} are needed; "
            "check data.fields and data.train"
        )


def _numbered(names: list[str]) -> dict[str, int]:
    if twice := [name for place, name in enumerate(names) if name in names[:place]]:
        raise DataError(f"data.labels names {', '.join(twice)} more than once; name each label once")
    return {name: number for number, name in enumerate(names)}


def _outside(names: Any, cut_to: int | None) -> str:
    """The label map, and what to do about a label that it lacks."""
    if cut_to is None:
        return f"{_shown(names)}; mend the row or set data.labels"
    return (
        f"{_shown(names)}, the labels of those training rows that data.max_rows={cut_to} keeps; set data.max_rows "
        "higher, or data.labels to all labels, or mend the row"
    )


def _shown(names: Any) -> str:
    listed = list(names)
    return str(listed if len(listed) <= 12 else [*listed[:12], "..."])
