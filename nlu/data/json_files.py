"""Records of .json and .jsonl files: an object on each line, or a document, which is read as a whole.

A document is a list, objects that go over several lines, or one object with the list within (`data.records`). An object
of columns, as pandas writes it, is read too.
"""

import json
import logging
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from nlu.config.errors import DataError
from nlu.config.nearest import hint
from nlu.config.sentences import counted, listed
from nlu.data.dialect import PLAIN, Dialect
from nlu.data.fields import USUAL_PAIRS, USUAL_TEXTS

log = logging.getLogger(__name__)

TEXTS = {"text", "text_a", "text_b", "tokens", *USUAL_TEXTS, *(name for pair in USUAL_PAIRS for name in pair)}
MOST_LEVELS = 3
"""levels of objects in which lists of rows are looked for"""
BETWEEN = re.compile(r"[\s,]*")
ABSENT = object()


def is_document(path: Path, dialect: Dialect = PLAIN) -> bool:
    """Return whether a file has to be read as a whole, by its first two lines that are not empty."""
    with open(path, encoding="utf-8-sig", errors="surrogateescape") as file:
        lines = (line.strip() for line in dialect.lines(file) if line.strip())
        first, second = next(lines, ""), next(lines, "")
    if first[:1] not in ("[", "{"):
        return False
    try:
        value = json.loads(first)
    except json.JSONDecodeError as error:
        # A line that ends within an object may go on in the next line. A fault before its end is that of a bad row.
        return first[0] == "[" or (error.pos >= len(first) and not second.startswith("{"))
    except (ValueError, RecursionError):
        return False
    # One object on one line is a row, unless it seems to hold rows.
    is_row = isinstance(value, dict) and not (
        dialect.records
        or all(isinstance(inner, dict | list) for inner in value.values())
        or (_lists(value) and not TEXTS & value.keys())
    )
    return not second and not is_row


def document_records(
    path: Path, key: str | None, fields: Mapping[str, Any], errors: str = "strict"
) -> list[tuple[int, object]]:
    """Return the records of a document with their numbers: the line of an object, or its place in the list.

    `key` is `data.records`, `fields` the columns that are wanted, which tell an object that is a row, `errors` what
    becomes of bytes that are not UTF-8. Raises DataError for invalid JSON, and if it is open which list has the rows.
    """
    values = _values(path, errors)
    if len(values) != 1:
        return values
    found: object = values[0][1]
    if key is not None and isinstance(found, dict):
        names = list(_lists(found)) or list(found)
        if (found := field_of(found, key)) is ABSENT:
            raise DataError(f"{path}: data.records is {key!r}; {hint(key, names)}; set it to where the rows are")
    if isinstance(found, dict):
        texts = {column for role, column in fields.items() if role.startswith("text") or role == "tokens"}
        found = _rows_of(path, found, {str(name).partition(".")[0] for name in texts or TEXTS})
    return list(enumerate(found if isinstance(found, list) else [found], 1))


def _values(path: Path, errors: str) -> list[tuple[int, object]]:
    """Return the values of a file, one after another, each with its line."""
    text = path.read_text(encoding="utf-8-sig", errors=errors)
    values: list[tuple[int, object]] = []
    decoder, place, line = json.JSONDecoder(), 0, 1
    while True:
        begin = BETWEEN.match(text, place).end()  # type: ignore[union-attr]
        line += text.count("\n", place, begin)
        if begin == len(text):
            return values
        try:
            value, place = decoder.raw_decode(text, begin)
        except (ValueError, RecursionError) as error:
            at = error.lineno if isinstance(error, json.JSONDecodeError) else line
            raise DataError(f"{path}:{at}: is not JSON: {reason_of(error)}; fix the file") from None
        values.append((line, value))
        line += text.count("\n", begin, place)


def reason_of(error: Exception) -> str:
    """Return why a text cannot be parsed: its syntax, or nesting or numbers that are too long."""
    return error.msg if isinstance(error, json.JSONDecodeError) else str(error)


def _rows_of(path: Path, whole: dict[str, Any], texts: set[str]) -> list[object]:
    """Return the rows of one object, of which the columns in `texts` would make a row."""
    if (table := _table(whole)) is not None:
        return table
    if texts & whole.keys() or not whole:
        return [whole]
    inner = list(whole.values())
    if all(isinstance(row, dict) and any(isinstance(cell, str) for cell in row.values()) for row in inner):
        return inner
    every = _lists(whole)
    lists = {
        name: rows for name, rows in every.items() if isinstance(rows[0], dict) and texts & rows[0].keys()
    } or every
    if len(lists) > 1:
        shown = listed([f"{name} ({len(rows)})" for name, rows in lists.items()])
        raise DataError(
            f"{path}: is one JSON object, and holds several lists: {shown}; set data.records to that of the rows, "
            f"such as data.records={max(lists, key=lambda name: len(lists[name]))}"
        )
    for name, rows in lists.items():
        _say_once(f"{path}: its {counted(len(rows), 'row')} are those of {name} (data.records)")
        return rows
    return [whole]


@cache
def _say_once(sentence: str) -> None:
    log.info(sentence)


def _lists(whole: object, above: str = "", levels: int = MOST_LEVELS) -> dict[str, list[Any]]:
    """Return the lists of objects, or of lists, within an object, by their dotted names."""
    found: dict[str, list[Any]] = {}
    for name, value in whole.items() if isinstance(whole, dict) and levels else ():
        if isinstance(value, list) and value and all(isinstance(item, dict | list) for item in value):
            found[above + name] = value
        found |= _lists(value, f"{above}{name}.", levels - 1)
    return found


def _table(whole: dict[str, Any]) -> list[object] | None:
    """Return the rows of an object of columns; None for another object."""
    columns = list(whole.values())
    if columns and all(isinstance(column, dict) and column.keys() == columns[0].keys() for column in columns):
        # pandas numbers rows; an object of rows has other names within.
        is_numbered = all(name.isdecimal() for name in columns[0])
        columns = [list(column.values()) for column in columns] if is_numbered else []
    if not columns or not all(isinstance(column, list) and len(column) == len(columns[0]) > 0 for column in columns):
        return None
    # One row of tokens and tags is no table, nor is an object of lists of rows.
    tokens = whole.get("tokens")
    first = [column[0] for column in columns]
    is_table = (
        isinstance(first[list(whole).index("tokens")], list) if tokens else any(isinstance(one, str) for one in first)
    )
    return [dict(zip(whole, cells, strict=True)) for cells in zip(*columns, strict=True)] if is_table else None


def field_of(record: Mapping[Any, Any], name: str | int) -> Any:
    """Return a field of a record, or of an object within it by a dotted name; ABSENT if it has none."""
    if name in record:
        return record[name]
    head, _, rest = str(name).partition(".")
    inner = record.get(head)
    return field_of(inner, rest) if rest and isinstance(inner, Mapping) else ABSENT
