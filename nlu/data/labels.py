"""Labels of a row as files write them: a list within a cell, and columns of 0 and 1."""

import ast
import json
import re
from contextlib import suppress
from typing import Any

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
