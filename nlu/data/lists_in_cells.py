"""Labels of a row as files write them: a list within a cell, and columns of 0 and 1.

Lists of tokens, tags and spans as tables hold them: joined or written as a list in one cell, or one token a row.
"""

import ast
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any

from nlu.data.fields import SENTENCE
from nlu.data.reader import BadRow, Row

PAIRS = {"[": "]", "{": "}", "(": ")"}
QUOTED = r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\""
ITEM = re.compile(rf"\s*({QUOTED}|[^\s,'\"\[\]{{}}()][^,'\"\[\]{{}}()]*)\s*,?", re.DOTALL)
NUMBERS = re.compile(r"\s*(?:\d+(?:\.0*)?[\s,]+)*\d+(?:\.0*)?\s*")
NO_COMMA = re.compile(r"""['"]\s+['"]""")
"""two texts of which Python would make one, as it prints an array of numpy"""
APPLIES = {
    **dict.fromkeys(("1", "1.0", "true", "yes", "t", "y"), True),
    **dict.fromkeys(("0", "0.0", "false", "no", "f", "n", "", "nan", "none"), False),
}
"""whether the label of a column applies, by its cell"""
FLAGS = frozenset(("0", "1", "0.0", "1.0", "false", "true"))
"""the items of a list that has one for each label, in lower case"""


def listed_labels(cell: str) -> list[object] | None:
    """Return the items of a cell that is a list, None for another cell; nothing is evaluated.

    Lists are those of JSON, of Python, of numpy (`['a' 'b']`), of PostgreSQL (`{a,b}`), and texts without quotes
    between square brackets.
    """
    cell = cell.strip()
    if len(cell) < 2 or PAIRS.get(cell[0]) != cell[-1]:
        return [] if cell == "set()" else None
    inside = cell[1:-1]
    if NUMBERS.fullmatch(inside):
        return [int(float(number)) for number in re.split(r"[\s,]+", inside.strip())]
    for read in (json.loads, ast.literal_eval):
        with suppress(ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
            found = None if NO_COMMA.search(inside) else read(cell)
            if isinstance(found, list | tuple | set):
                # The order of a set differs between processes.
                return sorted(found, key=str) if isinstance(found, set) else list(found)
            # `{}` has no label; another mapping is shown as what is wrong with the row.
            if isinstance(found, dict):
                return [found] if found else []
    items, place = [], 0
    while match := ITEM.match(inside, place):
        items.append(match[1].strip())
        place = match.end()
    is_quoted = all(re.fullmatch(QUOTED, item, re.DOTALL) for item in items)
    if inside[place:].strip() or (cell[0] == "(" and not is_quoted):
        return None
    with suppress(ValueError, SyntaxError):
        return [ast.literal_eval(item) if item[0] in "'\"" else item for item in items]
    return None


def labels_of(cell: str, separator: str) -> list[object]:
    """Return the labels of a cell: a list, or texts with separators between them."""
    if (found := listed_labels(cell)) is not None:
        return list(plain_labels(found))
    parts = [(part, listed_labels(part)) for part in cell.split(separator) if part.strip()]
    # Beside other labels, one in brackets is read as if it were alone.
    return [label for part, own in parts for label in ([part] if own is None else own)]


def plain_labels(written: Any) -> Any:
    """Return the names of labels that are objects: with a name each, in a list, or one with a 0 or 1 for each label, as
    spaCy writes them. Any other value is returned unchanged."""
    if isinstance(written, list):
        return [item.get("name", item.get("label", item)) if isinstance(item, dict) else item for item in written]
    if not isinstance(written, dict) or not written or None in map(applies, written.values()):
        return written
    return [name for name, cell in written.items() if applies(cell)]


def applies(cell: object) -> bool | None:
    """Return whether the label of a column applies to a row with this cell; None for one that is neither 0 nor 1."""
    return APPLIES.get(str("" if cell is None else cell).strip().lower())


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
