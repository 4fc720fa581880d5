"""Spans of a text as tools write them, to the tags of its characters.

CLUENER writes an object of types and surfaces with inclusive places. doccano, Label Studio, Prodigy and spaCy write
lists of spans, as objects or as [start, end, type], whose ends are exclusive. The surface beside a span, if there is
one, decides.
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


def tags_of_spans(text: str, spans: object) -> tuple[list[str] | None, str | None]:
    """Convert spans in any of SHAPES to BIO tags of characters.

    Returns (tags, None), or (None, the broken rule) for a span outside the text, a surface that differs from the text,
    or spans that overlap, which BIO cannot represent.
    """
    tags, places = ["O"] * len(text), set[tuple[int, int, str]]()
    if (items := _items(spans)) is None:
        return None, f"is not a list of spans, such as {SHAPES}"
    for item in items:
        if (parts := _parts(item)) is None:
            return None, f"has the span {item!r:.80}, written otherwise than {SHAPES}"
        start, end, name, surface = parts
        where = f"has {name} at [{start}, {end})"
        if isinstance(surface, str):
            found = next((place for place in _ends(text, start, end) if text[slice(*place)] == surface), None)
            if found is None or not surface or start < 0:
                return None, f"{where}, where the text reads {text[max(0, start) : end]!r:.60} and not {surface!r:.60}"
            start, end = found
        if start == end:
            return None, f"{where}, an empty span: an end is the place behind the last character"
        if not 0 <= start < end <= len(text):
            return None, f"{where}, which is not within the {len(text)} characters of the text"
        # The same span twice, as two people mark it, is one.
        if (start, end, name) not in places and any(tag != "O" for tag in tags[start:end]):
            return None, f"{where} over another span, {text[start:end]!r:.60}; BIO cannot hold both"
        places.add((start, end, name))
        tags[start:end] = [f"B-{name}"] + [f"I-{name}"] * (end - start - 1)
    return tags, None


def _ends(text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield what a place may mean: an exclusive end, an inclusive one, and units of UTF-16, as JavaScript counts."""
    yield from ((start, end), (start, end + 1), (start, end - 1))
    units = text.encode("utf-16-le")
    first, last = (len(units[: 2 * place].decode("utf-16-le", "ignore")) for place in (max(0, start), max(0, end)))
    yield first, last


def _items(spans: object) -> list[Any] | None:
    """Return the spans of a list or of an object around it, None for anything else."""
    if isinstance(spans, Mapping):
        columns = [next((key for key in KEYS[part] if key in spans), None) for part in ("start", "end", "label")]
        if all(isinstance(spans.get(key), list) for key in columns):
            # A list of objects as datasets keeps it: an object of lists.
            return [dict(zip(spans, values, strict=False)) for values in zip(*spans.values(), strict=False)]
        if all(isinstance(surfaces, dict) for surfaces in spans.values()):
            found = [(name, *one) for name, surfaces in spans.items() for one in surfaces.items()]
            return [
                {"start": place[0], "end": place[1] + 1, "label": name, "text": surface} if _is_pair(place) else place
                for name, surface, places in found
                for place in (places if isinstance(places, list) else [places])
            ]
        return next((_items(spans[key]) for key in INSIDE if key in spans), None)
    if not isinstance(spans, list | tuple):
        return None
    # Label Studio: one annotation of several, whose results may be choices or relations too.
    if spans and isinstance(spans[0], Mapping) and "result" in spans[0]:
        return _items(next((one for one in spans if not one.get("was_cancelled")), spans[0])["result"])
    items = [
        item["value"] if isinstance(item, Mapping) and isinstance(item.get("value"), dict) else item for item in spans
    ]
    return [item for item, whole in zip(items, spans, strict=True) if item is whole or "start" in item]


def _is_pair(place: object) -> bool:
    return isinstance(place, list) and len(place) == 2 and all(type(end) is int for end in place)


def _parts(item: object) -> tuple[int, int, str, object] | None:
    """Return start, end, type and surface (or None) of a span, None if it is written otherwise."""
    if isinstance(item, Mapping):
        found = {part: next((item[key] for key in keys if key in item), None) for part, keys in KEYS.items()}
        start, end, name, surface = found.values()
        if end is None and isinstance(length := item.get("length"), int) and isinstance(start, int):
            end = start + length
    elif isinstance(item, list | tuple) and len(item) == 3:
        # The sort is stable, so that numbers come first, in their order.
        (start, end, name), surface = sorted(item, key=lambda one: type(one) is not int), None
    else:
        return None
    # Label Studio writes a list of one label.
    if isinstance(name, list) and len(name) == 1:
        (name,) = name
    if type(start) is not int or type(end) is not int or not isinstance(name, str) or not name:
        return None
    return start, end, name, None if surface == name else surface
