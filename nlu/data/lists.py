"""Lists of tokens, tags and spans as tables hold them: joined or written as a list in one cell, or one token a row."""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from nlu.data.fields import SENTENCE
from nlu.data.labels import listed_labels
from nlu.data.reader import BadRow, Row

LIST_ROLES = ("tokens", "tags", "spans")
SENTENCE_COLUMNS = (
    "sentence_id", "sentence #", "sentence", "sent_id", "sentence_idx", "sentence_number", "sent", "sid",
)  # fmt: skip
CONTROL = re.compile("[\x01-\x08\x0e-\x1f]")
"""characters that occur in no text; some separate the tokens of a cell"""
BLANKS = re.compile("[ \t\r\n]+")
BETWEEN_TAGS = "|,;"


def read_lists(values: dict[str, Any]) -> None:
    """Replace texts in the fields of LIST_ROLES by the lists that they write, where they write one."""
    for role in LIST_ROLES:
        if isinstance(text := values.get(role), str):
            values[role] = _written(text, role)
    tags, separator = values.get("tags"), None
    if isinstance(tags, str):
        separator = _separator_of(tags)
        values["tags"] = tags = _split(tags, separator)
    if isinstance(tokens := values.get("tokens"), str):
        found = CONTROL.search(tokens)
        usual, count = _split(tokens, found.group() if found else None), len(tags) if isinstance(tags, list) else 0
        # The tokens are joined like the tags, by blanks, or not at all, as Chinese characters are.
        letters = [] if tokens.isascii() else list(tokens)
        ways = (_split(tokens, separator), usual, letters) if count else ()
        values["tokens"] = next((way for way in ways if len(way) == count), usual)


def _written(text: str, role: str) -> Any:
    """Return the list or object that a text writes; the text itself if it writes none."""
    found = listed_labels(text)
    # Brackets may be tokens of a sentence, but quotes around all tokens are not.
    if found is None or role == "tokens" and not ("'" in text or '"' in text):
        return text
    return found[0] if role == "spans" and found and isinstance(found[0], dict) and text.strip()[0] == "{" else found


def _separator_of(tags: str) -> str | None:
    """Return what stands between joined tags; None: blanks, or nothing."""
    if found := CONTROL.search(tags):
        return found.group()
    return None if BLANKS.search(tags.strip()) else next((one for one in BETWEEN_TAGS if one in tags.strip(one)), None)


def _split(text: str, separator: str | None) -> list[str]:
    if separator is not None:
        return text.split(separator)
    parts = BLANKS.split(text.strip(" \t\r\n"))
    # "O, B-PER": blanks behind the marks that separate.
    if len(parts) > 1 and all(part[-1:] == parts[0][-1] and part[:-1] for part in parts[:-1]) and parts[0][-1] in ",;|":
        return [part.removesuffix(parts[0][-1]) for part in parts]
    return parts


def sentence_column(names: Sequence[str]) -> str | None:
    """Return the column that is usually called so if it tells sentences apart, or None."""
    usual = {name.strip().lower(): name for name in reversed(names)}
    return next((usual[name] for name in SENTENCE_COLUMNS if name in usual), None)


def is_single(cell: object, role: str) -> bool:
    """Return whether a cell is one token or tag, and not a list of them."""
    if not isinstance(cell, str) or CONTROL.search(cell) or BLANKS.search(cell.strip()) or cell[:1] == "[" != cell:
        return False
    return role != "tags" or _separator_of(cell) is None


def sentences(rows: Iterable[Row | BadRow]) -> Iterator[Row | BadRow]:
    """Yield the sentences of rows of one token each.

    One begins where the field SENTENCE is neither empty nor that of the row before or, without this field, behind an
    empty line. A sentence with a bad row is bad.
    """
    first: Row | BadRow | None = None
    bad: BadRow | None = None
    parts: dict[str, list[str]] = {}
    name, before = "", 0
    for row in rows:
        begins = row.number != before + 1
        before = row.number
        if isinstance(row, Row) and SENTENCE in row.values:
            own = row.values.pop(SENTENCE).strip()
            begins, name = bool(own) and own != name, own or name
        elif isinstance(row, BadRow):
            begins = False
        if first is None or begins:
            if first is not None:
                yield bad or Row(first.number, {**first.values, **parts})  # type: ignore[union-attr]
            first, bad, parts = row, None, {}
        if isinstance(row, BadRow):
            bad = bad or row
            continue
        for role in LIST_ROLES:
            if role in row.values:
                parts.setdefault(role, []).append(row.values[role])
    if first is not None:
        yield bad or Row(first.number, {**first.values, **parts})  # type: ignore[union-attr]
