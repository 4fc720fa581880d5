"""Spans of a text as tools write them, to the tags of its characters.

CLUENER writes an object of types and surfaces with inclusive places. doccano, Label Studio, Prodigy and spaCy write
lists of spans, as objects or as [start, end, type], whose ends are exclusive unless the surface beside a span says
otherwise.
"""

from collections.abc import Iterator, Mapping
from typing import Any

SHAPES = '[{"start": 0, "end": 7, "label": "person"}], [[0, 7, "person"]] or {"person": {"Ann Lee": [[0, 6]]}}'
KEYS = {
    "start": ("start", "start_offset", "begin", "start_idx", "start_char", "offset"),
    "end": ("end", "end_offset", "end_idx", "end_char"),
    "label": ("label", "labels", "type", "entity_group", "entity_type", "category", "tag", "entity"),
    "surface": ("text", "surface", "mention", "entity"),
}
"""the names of the parts of a span"""
INSIDE = ("entities", "spans", "result")
"""keys of objects around the list of spans"""
Place = tuple[int, int, str]
"""first character, the one behind the last, and type"""


def tags_of_spans(text: str, spans: object) -> tuple[list[str] | None, str | None]:
    """Convert spans in any of SHAPES to BIO tags of characters.

    Returns (tags, None), or (None, the broken rule) for a span outside the text, a surface that differs from the text,
    or spans that overlap, which BIO cannot represent.
    """
    tags = ["O"] * len(text)
    places: set[Place] = set()
    for place in _by_surface(text, spans) if _is_by_surface(spans) else _by_list(text, spans):
        if isinstance(place, str):
            return None, place
        start, end, name = place
        # The same span twice, as two people mark it, is one.
        if place in places:
            continue
        places.add(place)
        if any(tag != "O" for tag in tags[start:end]):
            return None, f"has {name} {text[start:end]!r} at [{start}, {end}] over another span; BIO cannot hold both"
        tags[start:end] = [f"B-{name}"] + [f"I-{name}"] * (end - start - 1)
    return tags, None


def _is_by_surface(spans: object) -> bool:
    return isinstance(spans, dict) and all(isinstance(surfaces, dict) for surfaces in spans.values())


def _by_surface(text: str, spans: Any) -> Iterator[Place | str]:
    for name, surfaces in spans.items():
        if not all(map(_is_places, surfaces.values())):
            yield f"has {name} written otherwise than {SHAPES}"
            return
        for surface, (first, last) in ((surface, place) for surface, places in surfaces.items() for place in places):
            if 0 <= first <= last < len(text) and text[first : last + 1] == surface:
                yield first, last + 1, name
                continue
            exclusive = 0 <= first < last <= len(text) and text[first:last] == surface
            rule = (
                f"whose end looks exclusive: ends are included here, so that this is [{first}, {last - 1}]"
                if exclusive
                else "where the text reads otherwise"
            )
            yield f"has {name} {surface!r} at [{first}, {last}], {rule}"


def _is_places(value: object) -> bool:
    """Return whether a value is a list of pairs of integers."""
    return isinstance(value, list) and all(
        isinstance(place, list) and len(place) == 2 and all(type(end) is int for end in place) for place in value
    )


def _by_list(text: str, spans: object) -> Iterator[Place | str]:
    if (items := _items(spans)) is None:
        yield f"is not a list of spans, such as {SHAPES}"
        return
    for item in items:
        parts = _parts(item)
        if parts is None:
            yield f"has the span {item!r:.80}, written otherwise than {SHAPES}"
            return
        start, end, name, surface = parts
        if isinstance(surface, str) and text[start:end] != surface:
            start, end = _as_surface_says(text, surface, start, end)
        where = f"has {name} at [{start}, {end}]"
        if start == end:
            yield f"{where}, an empty span: an end is the place behind the last character"
        elif not 0 <= start < end <= len(text):
            yield f"{where}, which is not within the {len(text)} characters of the text"
        elif isinstance(surface, str) and text[start:end] != surface:
            yield f"{where}, where the text reads {text[start:end]!r:.60} and not {surface!r:.60}"
        else:
            yield start, end, name


def _items(spans: object) -> list[Any] | None:
    """Return the spans of a list or of an object around it, None for anything else."""
    if isinstance(spans, Mapping):
        columns = {part: next((key for key in KEYS[part] if key in spans), None) for part in ("start", "end", "label")}
        if all(isinstance(spans.get(key), list) for key in columns.values()):
            # A list of objects as datasets keeps it: an object of lists.
            return [dict(zip(spans, values, strict=False)) for values in zip(*spans.values(), strict=False)]
        inside = next((spans[key] for key in INSIDE if key in spans), None)
        return None if inside is None else _items(inside)
    if not isinstance(spans, list | tuple):
        return None
    # Label Studio: one annotation of several, whose results may be choices or relations too.
    if spans and isinstance(spans[0], Mapping) and "result" in spans[0]:
        return _items(next((one for one in spans if not one.get("was_cancelled")), spans[0])["result"])
    values = [
        item["value"] if isinstance(item, Mapping) and isinstance(item.get("value"), dict) else item for item in spans
    ]
    return [value for item, value in zip(spans, values, strict=True) if value is item or "start" in value]


def _parts(item: object) -> tuple[int, int, str, object] | None:
    """Return start, end, type and surface (or None) of a span, None if it is written otherwise."""
    if isinstance(item, Mapping):
        found = {part: next((item[key] for key in keys if key in item), None) for part, keys in KEYS.items()}
        start, end, name, surface = found.values()
        if end is None and isinstance(length := item.get("length"), int) and isinstance(start, int):
            end = start + length
        if "type" in item and name == item.get("entity"):
            name = item["type"]
    elif isinstance(item, list | tuple) and len(item) == 3:
        numbers = [one for one in item if type(one) is int]
        names = [one for one in item if isinstance(one, str | list)]
        if len(numbers) != 2 or len(names) != 1:
            return None
        (start, end), (name,), surface = numbers, names, None
    else:
        return None
    # Label Studio writes a list of one label.
    if isinstance(name, list) and len(name) == 1:
        (name,) = name
    if type(start) is not int or type(end) is not int or not isinstance(name, str) or not name:
        return None
    return start, end, name, None if surface == name else surface


def _as_surface_says(text: str, surface: str, start: int, end: int) -> tuple[int, int]:
    """Return the place of a surface if the end includes the last character, or places count UTF-16; else the same."""
    if text[start : end + 1] == surface:
        return start, end + 1
    units = text.encode("utf-16-le")
    if units[2 * start : 2 * end] == surface.encode("utf-16-le"):
        first = len(units[: 2 * start].decode("utf-16-le", "ignore"))
        return first, first + len(surface)
    return start, end
