"""The files of each set of a survey, and how they are read: as given, or guessed from names and values of columns."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

from nlu.config.errors import DataError, UserError
from nlu.config.sentences import listed
from nlu.data.dataset import SourceFile, find_file
from nlu.data.dialect import PLAIN, Dialect, not_utf_8
from nlu.data.fields import NAMES_OF_TEXTS, TEXT_ROLES, USUAL_OF_TAGGING, chosen_layout
from nlu.data.layouts import Values
from nlu.data.lists_in_cells import read_lists
from nlu.data.reader import Row
from nlu.data.readers import Fields, column_names, format_of, read_rows
from nlu.data.reading import HEADER_WORDS, Reading
from nlu.data.survey.walk import Source
from nlu.data.targets.classes import NUMBER
from nlu.data.targets.span_tags import tags_of_spans
from nlu.storage.archives import unpacked
from nlu.storage.locations import files_like, is_pattern

SAID = "as given"
SAMPLED_ROWS, ROWS_OF_TAGS = 1000, 200
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
"""the largest ratio of the mean lengths of two columns that are a pair"""
MOST_HEADER = 40
"""characters of a column's name"""
FEWEST_BELOW = 10
"""rows below the first one from which a name that does not occur again is that of the column"""


@dataclass(frozen=True)
class Guess:
    """How a file is read."""

    fields: Fields
    header: bool | None
    file_format: str
    reasons: dict[str, str] = field(default_factory=dict)
    """why each role has its column; empty if the columns were given"""

    def sentence(self) -> str:
        """Return the column of each role, and why."""
        parts = [
            f"{role} = {_shown(column)}" + (f" ({self.reasons[role]})" if role in self.reasons else "")
            for role, column in self.fields.items()
        ]
        return ", ".join(parts) or "each line is a text"


def _shown(column: str | int | list[str | int]) -> str:
    if isinstance(column, list):
        return listed(list(map(_shown, column)))
    return f"column {column}" if isinstance(column, int) else column


def of_files(
    written: Sequence[str],
    fields: Fields | None,
    file_format: str,
    header: bool | None,
    max_rows: int | None,
    dialect: Dialect = PLAIN,
) -> list[Source]:
    """Return a set for each file, or one set if each file has the rows of one label.

    Raises DataError for a file that is missing, empty or lacks a column, and UserError for two sets of the same name.
    """
    named = [found for text in written for found in _named(text)]
    by_label = file_format == "lines" and all(name for name, _ in named)
    if by_label:
        reading = Reading({}, "lines", None, max_rows, None, dialect)
        files = [replace(file, label=name) for name, file in named]
        return [Source("texts", files, reading, "each line is a text, its file has the label")]
    sources = []
    for name, (_, file) in zip(_names(named), named, strict=True):
        how = _how(file.path, fields, file_format, header, dialect)
        reading = Reading(how.fields, how.file_format, how.header, max_rows, None, dialect)
        sources.append(Source(name, [file], reading, how.sentence()))
    return sources


def _named(text: str) -> list[tuple[str | None, SourceFile]]:
    """Return the name in an argument, if any, and each file that it names or matches."""
    name, equals, reference = text.partition("=")
    if not equals or "/" in name or "://" in name or Path(text).expanduser().is_file():
        name, reference = "", text
    if is_pattern(reference) and (found := files_like(reference)):
        return [(name or None, SourceFile(unpacked(path))) for path in found]
    # Errors of a download call the address what it is; a path is named by itself.
    key = "FILE" if "://" in reference else ""
    return [(name or None, SourceFile(find_file(key, reference), written=reference))]


def _names(named: Sequence[tuple[str | None, SourceFile]]) -> list[str]:
    """Return a name for each set: as given, else the file's name, with its folder if names would be equal."""
    names = [name or file.path.stem for name, file in named]
    if len(set(names)) < len(names):
        names = [name or f"{file.path.parent.name}/{file.path.name}" for name, file in named]
    if twice := [name for name in names if names.count(name) > 1]:
        raise UserError(f"two sets would be called {twice[0]}; give them names, such as first=FILE second=FILE")
    return names


def _how(path: Path, fields: Fields | None, file_format: str, header: bool | None, dialect: Dialect) -> Guess:
    if path.stat().st_size == 0:
        raise DataError(f"{path} is empty; give a file with rows")
    if fields is None:
        return guess(path, file_format, header, dialect)
    if file_format != "lines" and chosen_layout(list(TEXT_ROLES), fields) is None:
        raise UserError(
            f"--fields names {', '.join(fields)}, but a survey needs a column of texts; give text=COLUMN, "
            "text_a=COLUMN and text_b=COLUMN, or tokens=COLUMN"
        )
    return Guess(fields, header, file_format, dict.fromkeys(fields, SAID))


@dataclass
class _Column:
    """The values of one column in some rows."""

    name: str | int
    values: list[object]

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
        """Return whether most values are lists, and all items texts."""
        items = (item for value in self.values if isinstance(value, list) for item in value)
        return self.holds(list) and all(isinstance(item, str) for item in items)

    def fields_within(self) -> "list[_Column]":
        """Return the fields of the objects in a column, by dotted names, if they are texts or numbers; else itself."""
        first = next(iter(self.values), None)
        if not (isinstance(first, dict) and any(isinstance(value, str | int) for value in first.values())):
            return [self]
        rows = [value if isinstance(value, dict) else {} for value in self.values]
        return [_Column(f"{self.name}.{key}", [row.get(key) for row in rows]) for key in first]

    def is_flag(self) -> bool:
        """Return whether the values are 0 and 1."""
        return {str(value).strip() for value in self.values} == {"0", "1"}

    def has_spans(self, other: "_Column") -> bool:
        """Return whether the values of another column are spans of these texts, in most rows."""
        pairs = zip(map(str, self.values), other.values, strict=True)
        found = [tags_of_spans(text, spans)[0] for text, spans in pairs if spans]
        return 2 * sum(bool(tags) for tags in found) > len(found)

    def is_prose(self) -> bool:
        """Return whether the values may be texts: most are distinct and not numbers."""
        numbers = sum(NUMBER.fullmatch(text.strip()) is not None for text in self.texts)
        return self.holds(str) and numbers < len(self.values) / 2 and self.distinct > 0.3 * len(self.values)

    def may_be_label(self) -> bool:
        few = self.distinct <= MOST_CLASSES and (self.distinct <= 0.5 * len(self.values) or len(self.values) < 8)
        return few and self.distinct > 1 and not self.holds(dict)


def guess(path: Path, file_format: str, header: bool | None, dialect: Dialect = PLAIN) -> Guess:
    """Return how a file is probably read; `header=None`: guessed too.

    Raises DataError if the file is empty, cannot be read or lacks a column of texts.
    """
    try:
        chosen = _format(path, file_format, dialect)
        if chosen == "lines":
            return Guess({}, None, chosen)
        if chosen == "conll":
            return _of_conll(path, dialect)
        columns, header = _columns(path, chosen, header, dialect)
    except UnicodeDecodeError as error:
        raise not_utf_8(path, error) from None
    if not columns or not columns[0].values:
        raise DataError(f"{path} holds no row; give a file with rows")
    fields, reasons = _roles(columns)
    if not {"text", "text_a", "tokens"} & fields.keys():
        shown = listed([str(column.name) for column in columns])
        raise DataError(
            f"{path}: no column seems to hold texts; it has {shown}; name one by --fields text=COLUMN label=COLUMN"
        )
    return Guess(fields, header, chosen, reasons)


def _format(path: Path, file_format: str, dialect: Dialect) -> str:
    """Return the format by the suffix; a .txt file is CoNLL if lines are a token and a tag, lines if it lacks tabs."""
    chosen = format_of(path, file_format)
    if file_format != "auto" or path.suffix.lower() != ".txt":
        return chosen
    with open(path, encoding="utf-8-sig", errors=dialect.errors) as lines:
        sample = [line.strip() for line in islice(dialect.lines(lines), SAMPLED_ROWS)]
    filled = [line for line in sample if line]
    tagged = [line for line in filled if len(line.split()) > 1 and any(map(TAG.fullmatch, line.split()[1:]))]
    if len(filled) < len(sample) and len(tagged) > 0.9 * len(filled):
        return "conll"
    return chosen if any("\t" in line for line in filled) else "lines"


def _of_conll(path: Path, dialect: Dialect) -> Guess:
    with open(path, encoding="utf-8-sig", errors=dialect.errors) as lines:
        cells = [line.split() for line in islice(dialect.lines(lines), SAMPLED_ROWS) if len(line.split()) > 1]
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
        found = [_Column(name, [row.get(name) for row in rows]) for name in names]
        return [column for one in found for column in one.fields_within()], None
    if remedy := dialect.remedy(names, chosen):
        raise DataError(f"{path}:1: {remedy}; if the file has one column, give --fields text=0")
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


def _values(path: Path, chosen: str, fields: Fields, header: bool | None, dialect: Dialect) -> Iterator[Values]:
    return (row.values for row in read_rows(path, chosen, fields, header, dialect=dialect) if isinstance(row, Row))


def _is_header(columns: Sequence[Sequence[str]]) -> bool:
    """Return whether the first row is a header: it has a usual name, or no number above a column of numbers, or only
    names, none of which occurs again in its column, above a column whose values do."""
    first = [column[0].strip() for column in columns]
    known = {*NAMES_OF_TEXTS, *LABELS, *(name for pair in PAIRS for name in pair)}
    if any(not cell or len(cell) > MOST_HEADER for cell in first) or len(set(first)) < len(first):
        return False
    if any(cell.lower() in known for cell in first):
        return True
    below = [[cell.strip() for cell in column[1:]] for column in columns]
    if all(map(str.isidentifier, first)) and not any(name in cells for name, cells in zip(first, below, strict=True)):
        if any(len(cells) >= FEWEST_BELOW and len(set(cells)) <= len(cells) / 2 for cells in below):
            return True
    return any(
        cells and not NUMBER.fullmatch(name) and all(map(NUMBER.fullmatch, cells))
        for name, cells in zip(first, below, strict=True)
    )


def _roles(columns: list[_Column]) -> tuple[Fields, dict[str, str]]:
    """Return the column of each role and why it was chosen: first the text or texts, then the target."""
    fields: Fields = {}
    reasons: dict[str, str] = {}

    def take(role: str, column: _Column | None, reason: str) -> None:
        if column is not None:
            fields[role], reasons[role] = column.name, reason

    def called(names: Sequence[str], fits: Callable[[_Column], bool]) -> _Column | None:
        free = [column for column in columns if column.name not in fields.values() and fits(column)]
        return next((column for name in names for column in free if str(column.name).lower() == name), None)

    # Tagged tokens first, because tags are the surest sign of a file's task.
    if (tagged := _tagged(columns)) is not None:
        return dict(zip(("tokens", "tags"), tagged, strict=True)), {"tags": "tags of as many tokens"}
    take("tokens", called((*TOKENS, *NAMES_OF_TEXTS), _Column.holds_texts), "by its name")
    if "tokens" in fields:
        take("tags", called(TAGS, lambda column: column.holds(list)), "by its name")
        return fields, reasons
    by_name = {str(column.name).lower(): column for column in columns if column.holds(str)}
    pair = next(((by_name[a], by_name[b]) for a, b in PAIRS if a in by_name and b in by_name), None)
    # Else texts, by the names of their columns or, without usual names, by their values.
    if pair is not None:
        take("text_a", pair[0], "by its name")
        take("text_b", pair[1], "by its name")
    else:
        take("text", called(NAMES_OF_TEXTS, lambda column: column.holds(str)), "by its name")
    if not fields:
        _take_prose(columns, take)
    # Then the target: spans, a column with the usual name of a label, or the column with the fewest values.
    text = next((column for column in columns if column.name == fields.get("text")), None)
    spans = None if text is None else called(("spans", *USUAL_OF_TAGGING["spans"], *LABELS), text.has_spans)
    if spans is not None:
        take("spans", spans, "its values name types and places")
        return fields, reasons
    label = called(LABELS, lambda column: not column.holds(dict))
    take("label", label, "by its name")
    flags = [column.name for column in columns if column.is_flag() and column.name not in fields.values()]
    if label is None and len(flags) > 1:
        fields["label"], reasons["label"] = flags, "columns of 0 and 1"
    elif label is None:
        free = [column for column in columns if column.name not in fields.values() and column.may_be_label()]
        fewest = min(free, key=lambda column: column.distinct, default=None)
        take("label", fewest, f"{fewest.distinct} different values" if fewest else "")
    return fields, reasons


def _tagged(columns: Sequence[_Column]) -> tuple[str | int, str | int] | None:
    """Return the columns of tokens and tags, whose values are one of each, or as many of each, in any form."""

    def by_name(names: Sequence[str]) -> list[_Column]:
        known = [column for column in columns if column.holds(str) or column.holds(list)]
        place = {name: number for number, name in enumerate(names)}
        return sorted(known, key=lambda column: place.get(str(column.name).lower(), len(place)))

    for tags in by_name((*TAGS, *LABELS)):
        for tokens in (one for one in by_name((*TOKENS, *NAMES_OF_TEXTS)) if one is not tags):
            pairs = islice(zip(tokens.values, tags.values, strict=True), ROWS_OF_TAGS)
            rows: list[dict[str, Any]] = [{"tokens": a, "tags": b} for a, b in pairs if a and b]
            for row in rows:
                read_lists(row)
            if not all(isinstance(value, list) for row in rows for value in row.values()):
                continue
            if any(len(row["tags"]) != len(row["tokens"]) for row in rows):
                continue
            seen = {str(tag) for row in rows for tag in row["tags"]}
            if seen - {"O"} and all(map(TAG.fullmatch, seen)):
                return tokens.name, tags.name
    return None


def _take_prose(columns: list[_Column], take: Callable[[str, _Column | None, str], None]) -> None:
    prose = sorted((column for column in columns if column.is_prose()), key=lambda column: -column.mean_length)
    if len(prose) > 1 and prose[0].mean_length <= LIKE_LENGTHS * prose[1].mean_length:
        first, second = sorted(prose[:2], key=columns.index)
        take("text_a", first, "texts of like length")
        take("text_b", second, "texts of like length")
    elif prose:
        take("text", prose[0], "the longest texts")
