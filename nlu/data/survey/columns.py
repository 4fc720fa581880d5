"""Which column holds the text and which the label, where nobody says: by their names, else by what they hold."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from nlu.config.errors import DataError
from nlu.data.charset import not_utf_8
from nlu.data.dialect import PLAIN, Dialect
from nlu.data.readers import Fields, Row, column_names, format_of, read_rows
from nlu.data.reading import HEADER_WORDS
from nlu.data.targets.names import NUMBER

SAMPLED_ROWS = 1000
TEXTS = (
    "text sentence content review comment body question query title utterance document doc news message input passage "
    "文本 内容 评论 句子 标题 问题 正文 评价"
).split()
PAIRS = (
    ("text_a", "text_b"), ("sentence1", "sentence2"), ("sentence_a", "sentence_b"), ("text1", "text2"),
    ("question1", "question2"), ("q1", "q2"), ("first", "second"), ("premise", "hypothesis"), ("query", "title"),
    ("query", "passage"), ("query", "document"), ("query", "doc"), ("question", "answer"), ("question", "passage"),
    ("question", "sentence"), ("question", "context"), ("句子1", "句子2"), ("问题1", "问题2"), ("问题", "答案"),
)  # fmt: skip
LABELS = (
    *HEADER_WORDS, "gold", "gold_label", "intent", "topic", "topics", "same", "is_duplicate", "similarity", "y", "情感",
    "评分", "意图",
)  # fmt: skip
TOKENS, TAGS = ("tokens", "words"), ("tags", "ner_tags", "ner", "pos_tags", "labels")
TAG = re.compile("O|[BIESMLU][-_].+")
MOST_CLASSES = 200
LIKE_LENGTHS = 2.5
"""by how much the mean lengths of two columns may differ for them to be a pair"""
MOST_HEADER = 40
"""characters of a name of a column"""
OTHER_SEPARATORS = {"csv": "\t;|", "tsv": ";|"}
"""what else may separate the cells of a table"""
LEAST_LINES = 3
"""of a table that is told by what its lines have in common"""


@dataclass(frozen=True)
class Guess:
    """How a file is read."""

    fields: Fields
    header: bool | None
    file_format: str
    reasons: dict[str, str] = field(default_factory=dict)
    """by role: why this column; nothing where it was said"""

    def sentence(self) -> str:
        """Return which column is what, and why."""
        told = [
            f"{role} = {f'column {column}' if isinstance(column, int) else column}"
            + (f" ({self.reasons[role]})" if role in self.reasons else "")
            for role, column in self.fields.items()
        ]
        return ", ".join(told) or "each line is a text"


@dataclass
class _Column:
    """Values of one column of some rows."""

    name: str | int
    values: list[Any]

    @property
    def texts(self) -> list[str]:
        return [value for value in self.values if isinstance(value, str)]

    @property
    def mean_length(self) -> float:
        return sum(map(len, self.texts)) / max(1, len(self.texts))

    @property
    def distinct(self) -> int:
        return len({str(value) for value in self.values})

    def holds(self, kind: type) -> bool:
        return bool(self.values) and sum(isinstance(value, kind) for value in self.values) > len(self.values) / 2

    def holds_texts(self) -> bool:
        """Whether it holds lists of texts."""
        return self.holds(list) and all(isinstance(item, str) for item in self._items())

    def holds_tags(self) -> bool:
        """Whether it holds lists of tags, of which some begin a span."""
        return self.holds_texts() and all(map(TAG.fullmatch, self._items())) and set(self._items()) != {"O"}

    def _items(self) -> Iterator[Any]:
        return (item for value in self.values if isinstance(value, list) for item in value)

    def is_prose(self) -> bool:
        """Whether it may hold texts: few of them twice, and no numbers."""
        numbers = sum(NUMBER.fullmatch(text.strip()) is not None for text in self.texts)
        return self.holds(str) and numbers < len(self.values) / 2 and self.distinct > 0.3 * len(self.values)

    def may_be_label(self) -> bool:
        few = self.distinct <= MOST_CLASSES and (self.distinct <= 0.5 * len(self.values) or len(self.values) < 8)
        return few and self.distinct > 1 and not self.holds(dict)


def guess(path: Path, file_format: str, header: bool | None, dialect: Dialect = PLAIN) -> Guess:
    """Return how a file seems to be read; `header` null: looked for.

    Raises DataError where the file is empty, cannot be read or has no column of texts.
    """
    try:
        chosen = _format(path, file_format)
        if chosen == "lines":
            return Guess({}, None, chosen)
        if chosen == "conll":
            return _of_conll(path)
        columns, header = _columns(path, chosen, header, dialect)
    except UnicodeDecodeError as error:
        raise not_utf_8(path, error) from None
    if not columns or not columns[0].values:
        raise DataError(f"{path} holds no row; give a file with rows")
    fields, reasons = _roles(columns)
    if not {"text", "text_a", "tokens"} & fields.keys():
        shown = ", ".join(str(column.name) for column in columns[:12])
        raise DataError(
            f"{path}: no column seems to hold texts; it has {shown}; say which one does by --fields text=COLUMN "
            "label=COLUMN"
        )
    return Guess(fields, header, chosen, reasons)


def _format(path: Path, file_format: str) -> str:
    """The format by the suffix; a .txt whose lines are a token and a tag is CoNLL, one without tabs is lines."""
    chosen = format_of(path, file_format)
    if file_format != "auto" or path.suffix.lower() != ".txt":
        return chosen
    with open(path, encoding="utf-8-sig") as lines:
        sample = [line.strip() for line in islice(lines, SAMPLED_ROWS)]
    filled = [line for line in sample if line]
    tagged = [line for line in filled if len(line.split()) > 1 and any(map(TAG.fullmatch, line.split()[1:]))]
    if len(filled) < len(sample) and len(tagged) > 0.9 * len(filled):
        return "conll"
    return chosen if any("\t" in line for line in filled) else "lines"


def _of_conll(path: Path) -> Guess:
    with open(path, encoding="utf-8-sig") as lines:
        cells = [line.split() for line in islice(lines, SAMPLED_ROWS) if len(line.split()) > 1]
    width = max(map(len, cells), default=0)
    share = [sum(len(row) > place and bool(TAG.fullmatch(row[place])) for row in cells) for place in range(width)]
    if width < 2:
        raise DataError(f"{path} holds no line of a token and its tag; give a file with rows, or another --format")
    place = max(range(1, width), key=lambda one: share[one])
    reasons = {"tokens": "the first of a line", "tags": "it looks like tags"}
    return Guess({"tokens": 0, "tags": place}, None, "conll", reasons)


def _columns(path: Path, chosen: str, header: bool | None, dialect: Dialect) -> tuple[list[_Column], bool | None]:
    names = column_names(path, chosen, dialect)
    if chosen not in ("csv", "tsv"):
        rows = list(islice(_values(path, chosen, {name: name for name in names}, None, dialect), SAMPLED_ROWS))
        return [_Column(name, [row.get(name) for row in rows]) for name in names], None
    if len(names) == 1 and dialect.separator is None:
        _require_own_separator(path, chosen)
    elif remedy := dialect.remedy(names, chosen):
        raise DataError(f"{path}:1: {remedy}")
    numbers: Fields = {str(place): place for place in range(len(names))}
    rows = list(islice(_values(path, chosen, numbers, False, dialect), SAMPLED_ROWS + 1))
    by_place = [[row[key] for row in rows] for key in numbers]
    if header is None:
        header = bool(rows) and _is_header(by_place)
    if not header:
        return [_Column(place, values) for place, values in enumerate(by_place)], False
    return [
        _Column(name if names.count(name) == 1 else place, values[1:])
        for place, (name, values) in enumerate(zip(names, by_place, strict=True))
    ], True


def _require_own_separator(path: Path, chosen: str) -> None:
    """Raise DataError where the rows of a table of one column seem to be separated by what separates other tables."""
    with open(path, encoding="utf-8-sig") as lines:
        sample = [line for line in islice(lines, SAMPLED_ROWS) if line.strip()]
    for separator in OTHER_SEPARATORS[chosen]:
        cells = [line.strip("\n").split(separator) for line in sample]
        widths = {len(row) for row in cells}
        is_table = len(sample) >= LEAST_LINES and len(widths) == 1 and 1 not in widths
        if is_table and all(cell.strip() and '"' not in cell for row in cells for cell in row):
            raise DataError(
                f"{path}: a {chosen} file of one column, whose lines all hold {separator!r}; say that this "
                f"separates the cells by {_flag(separator)}, or that it is one column by --fields text=0"
            )


def _flag(separator: str) -> str:
    return "--format tsv" if separator == "\t" else f"--separator '{separator}'"


def _values(path: Path, chosen: str, fields: Fields, header: bool | None, dialect: Dialect) -> Iterator[dict[str, Any]]:
    return (row.values for row in read_rows(path, chosen, fields, header, dialect=dialect) if isinstance(row, Row))


def _is_header(columns: Sequence[Sequence[str]]) -> bool:
    """Whether the first row names the columns: it has a usual name, or is of another kind than the rows below."""
    first = [column[0].strip() for column in columns]
    known = {*TEXTS, *LABELS, *(name for pair in PAIRS for name in pair)}
    if any(not cell or len(cell) > MOST_HEADER for cell in first) or len(set(first)) < len(first):
        return False
    if any(cell.lower() in known for cell in first):
        return True
    below = [[cell.strip() for cell in column[1:]] for column in columns]
    return any(
        cells and not NUMBER.fullmatch(name) and all(map(NUMBER.fullmatch, cells))
        for name, cells in zip(first, below, strict=True)
    )


def _roles(columns: list[_Column]) -> tuple[Fields, dict[str, str]]:
    """The role of columns and why each has it: the text or texts, then what a row is to give."""
    fields: Fields = {}
    reasons: dict[str, str] = {}

    def take(role: str, column: _Column | None, reason: str) -> None:
        if column is not None:
            fields[role], reasons[role] = column.name, reason

    def called(names: Sequence[str], fits: Callable[[_Column], bool]) -> _Column | None:
        free = [column for column in columns if column.name not in fields.values() and fits(column)]
        return next((column for name in names for column in free if str(column.name).lower() == name), None)

    by_name = {str(column.name).lower(): column for column in columns if column.holds(str)}
    pair = next(((by_name[a], by_name[b]) for a, b in PAIRS if a in by_name and b in by_name), None)
    tags = called((*TAGS, *LABELS), _Column.holds_tags) or next(filter(_Column.holds_tags, columns), None)
    if tags is not None:
        take("tags", tags, "lists of tags")
    take("tokens", called((*TOKENS, *TEXTS), _Column.holds_texts), "by its name")
    if tags is not None and "tokens" not in fields:
        take("tokens", next((column for column in columns if column.holds_texts() and column is not tags), None),
             "lists of texts")  # fmt: skip
    if "tokens" in fields:
        if tags is None:
            take("tags", called(TAGS, lambda column: column.holds(list)), "by its name")
        return fields, reasons
    fields.clear()
    reasons.clear()
    if pair is not None:
        take("text_a", pair[0], "by its name")
        take("text_b", pair[1], "by its name")
    else:
        take("text", called(TEXTS, lambda column: column.holds(str)), "by its name")
    if not fields:
        _take_prose(columns, take)
    spans = called(("spans", "entities", *LABELS), lambda column: column.holds(dict))
    if spans is not None:
        take("spans", spans, "its values name types and places")
        return fields, reasons
    label = called(LABELS, lambda column: not column.holds(dict))
    take("label", label, "by its name")
    if label is None:
        free = [column for column in columns if column.name not in fields.values() and column.may_be_label()]
        fewest = min(free, key=lambda column: column.distinct, default=None)
        take("label", fewest, f"{fewest.distinct} different values" if fewest else "")
    return fields, reasons


def _take_prose(columns: list[_Column], take: Callable[[str, _Column | None, str], None]) -> None:
    prose = sorted((column for column in columns if column.is_prose()), key=lambda column: -column.mean_length)
    if len(prose) > 1 and prose[0].mean_length <= LIKE_LENGTHS * prose[1].mean_length:
        first, second = sorted(prose[:2], key=columns.index)
        take("text_a", first, "texts of like length")
        take("text_b", second, "texts of like length")
    elif prose:
        take("text", prose[0], "the longest texts")
