"""Rows of a query with several second texts, taken apart into pairs of texts with a label each.

text_a, text_b, negatives    the pair of both texts, and a pair with label 0 for each negative
text_a, candidates, label    a pair for each candidate, with its own label of the list
"""

import re
from collections.abc import Iterator
from typing import Any

from nlu.config.sentences import counted
from nlu.data.fields import LISTS
from nlu.data.lists_in_cells import listed_labels
from nlu.data.reader import BadRow, Row

QUOTED = re.compile(r"\s*\[\s*(['\"]|\])")
"""the beginning of a list of texts in a cell; other brackets belong to a text, such as [deleted]"""


def pairs_of(row: Row) -> Iterator[Row | BadRow]:
    """Yield the pairs of a row, which have its number; a row without lists as it is, one that cannot be used as bad."""
    shared = {role: value for role, value in row.values.items() if role not in LISTS}
    if "candidates" in row.values:
        yield from _candidates(row, shared)
    elif "negatives" in row.values:
        yield from _negatives(row, shared)
    else:
        yield row


def _candidates(row: Row, shared: dict[str, Any]) -> Iterator[Row | BadRow]:
    texts, labels = (list_of(row.values.get(role)) for role in ("candidates", "label"))
    if not isinstance(texts, list) or not texts:
        yield BadRow.of(row.number, "candidates", row.values["candidates"], "is not a list of texts")
    elif not isinstance(labels, list) or len(labels) != len(texts):
        rule = f"is not a list with a label for each of the {counted(len(texts), 'text')} of the field candidates"
        yield BadRow.of(row.number, "label", row.values.get("label"), rule)
    elif any(map(_is_absent, labels)):
        yield BadRow.of(row.number, "label", row.values["label"], "holds an empty label")
    else:
        for text, label in zip(texts, labels, strict=True):
            yield Row(row.number, {**shared, "text_b": text, "label": label})


def _negatives(row: Row, shared: dict[str, Any]) -> Iterator[Row | BadRow]:
    texts = row.values["negatives"]
    if not isinstance(texts, str) or QUOTED.match(texts):
        texts = list_of(texts)
        if isinstance(texts, str):
            yield BadRow.of(row.number, "negatives", texts, "begins like a list of texts, but is none")
            return
    # A single text, as of a triplet, is a list of one; what is empty is no negative.
    texts = [text for text in (texts if isinstance(texts, list) else [texts]) if not _is_absent(text)]
    if wrong := [text for text in texts if not isinstance(text, str)]:
        yield BadRow.of(row.number, "negatives", wrong[0], "is not a text")
        return
    yield Row(row.number, shared if shared.get("label") is not None else {**shared, "label": 1})
    yield from (Row(row.number, {**shared, "text_b": text, "label": 0}) for text in texts)


def list_of(value: object) -> object:
    """Return the list that a cell of a table writes, any other value as it is."""
    found = listed_labels(value) if isinstance(value, str) else None
    return value if found is None else found


def _is_absent(text: object) -> bool:
    """Return whether a value stands for no text: null, NaN of parquet, or blanks."""
    return text is None or text != text or isinstance(text, str) and not text.strip()
