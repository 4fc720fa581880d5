"""One pass over the rows of a set: counts, and a few numbers of each row.

Axes: N usable rows of a set.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from nlu.config.sentences import joined_tokens
from nlu.data import keys as schemas
from nlu.data.dataset import Files, SourceFile
from nlu.data.findings import Collector, Finding
from nlu.data.layouts import LAYOUTS, Layout, Values
from nlu.data.lists_in_cells import APPLIES, FLAGS, listed_labels
from nlu.data.pieces import PIECES
from nlu.data.reader import BadRows, Mark, Row
from nlu.data.reading import Chunk, Reading
from nlu.data.seeds import text_hashes
from nlu.data.survey.letters import Letters
from nlu.data.targets.classes import NUMBER
from nlu.data.targets.span_tags import tags_of_spans
from nlu.data.targets.tags import Tags, split_tag, to_bio
from nlu.data.tokenizing import Tokenizer
from nlu.data.windows import UNCUT

MOST_LABELS = 100_000
"""distinct labels that are counted; labels that are numbers may be as many as rows"""
MOST_CLASSES = 50
"""more distinct integers than these are numbers, not classes"""
NO_LABEL = "(none)"
Advance = Callable[[int], None]


@dataclass
class Source:
    """A set: its files and how they are read."""

    name: str
    files: Sequence[SourceFile]
    reading: Reading
    how: str
    """the column of each field, and why"""

    @cached_property
    def layout(self) -> Layout:
        fields = self.reading.fields
        if "text_a" in fields:
            return LAYOUTS["pair"]
        units = LAYOUTS["units" if {"tokens", "spans"} & fields.keys() else "single"]
        if "spans" not in fields:
            return units
        # As in training, the spans decide what the units are.
        return Tags(Files(schemas.Files(train=self.name))).look(units, self.reading.first_values(self.files, units))


@dataclass
class Unknown:
    """Unknown tokens."""

    tokens: int = 0
    rows: int = 0
    """with at least one such token"""


@dataclass
class Survey:
    """The counts of a set."""

    source: Source
    bad: BadRows = field(default_factory=BadRows)
    labels: Counter[str] = field(default_factory=Counter)
    """rows of each label, or spans of each type"""
    has_labels: bool = False
    is_numeric: bool = True
    """whether every label so far is a number"""
    is_several: bool = False
    """whether a row may have several labels"""
    letters: Letters = field(default_factory=Letters)
    seen: Collector | None = None
    """what is doubtful in the rows"""
    unknown: Unknown | None = None
    """None without tokenizer"""
    hash_N: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    """equal for equal texts"""
    target_N: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    """equal for equal labels"""
    characters_N: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int32))
    tokens_N: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int32))
    """tokens with the special ones; without a tokenizer words, with each Chinese character and mark as one"""
    numbers_N: np.ndarray = field(default_factory=lambda: np.zeros(0))
    """labels as numbers, NaN for other labels"""

    @property
    def name(self) -> str:
        return self.source.name

    def __len__(self) -> int:
        return len(self.hash_N)

    @property
    def kind(self) -> str:
        """The kind of target: classes, labels (several), spans, numbers or nothing."""
        fields = self.source.reading.fields
        if "tags" in fields or "spans" in fields:
            return "spans"
        if not self.has_labels:
            return "nothing"
        if self.is_numeric:
            is_whole = bool((self.numbers_N[np.isfinite(self.numbers_N)] % 1 == 0).all())
            if len(self.labels) > (MOST_CLASSES if is_whole else 10):
                return "numbers"
        return "labels" if self.is_several or self.separator is not None else "classes"

    @property
    def separator(self) -> str | None:
        """What seems to stand between several labels of a cell, else None."""
        return None if self.seen is None or self.is_several else self.seen.separator()

    def findings(self) -> list[Finding]:
        """Return what is doubtful in the labels and texts."""
        kinds = {"labels": "label_set", "spans": "tags"}
        return [] if self.seen is None else self.seen.found(kinds.get(self.kind, self.kind), self.source.files)


def walk(source: Source, tokenizer: Tokenizer | None, advance: Advance) -> Survey:
    """Read and count the rows of a set. Raises DataError as `Reading.rows` does."""
    seen = Collector(source.reading, source.files[0].path, listed_labels)
    survey = Survey(source, unknown=None if tokenizer is None else Unknown(), seen=seen)
    parts: dict[str, list[np.ndarray]] = {name: [] for name in ("hash", "target", "characters", "tokens", "numbers")}
    for chunk in source.reading.chunks(source.files):
        rows = []
        for file, row in usable(source, chunk, survey):
            seen.see((file, row.number), row.values)
            rows.append(row.values)
        if rows:
            for name, values in _count(survey, rows, tokenizer).items():
                parts[name].append(values)
        advance(len(chunk))
    # Only a few numbers of each row are kept, never its text.
    for name, pieces in parts.items():
        if pieces:
            setattr(survey, f"{name}_N", np.concatenate(pieces))
    return survey


def usable(source: Source, chunk: Chunk, survey: Survey | None = None) -> Iterator[tuple[int, Row]]:
    """Yield the rows with usable texts, each with the index of its file; count the others in `survey`."""
    for number, row in chunk:
        if isinstance(row, Mark):
            continue
        checked = source.reading.checked(row, source.layout)
        if isinstance(checked, Row):
            yield number, checked
        elif survey is not None:
            survey.bad.add(source.files[number].path, checked)


def _count(survey: Survey, rows: Sequence[Values], tokenizer: Tokenizer | None) -> dict[str, np.ndarray]:
    layout = survey.source.layout
    texts = [spoken_texts(layout, values) for values in rows]
    survey.letters.add(texts)
    labels = [label_of(values) for values in rows]
    _count_labels(survey, labels, rows)
    if tokenizer is None:
        counts = (sum(len(PIECES.findall(text)) for text in layout.texts(values)) for values in rows)
        tokens_N = np.fromiter(counts, np.int32, len(rows))
    else:
        tokens_N = _tokens(survey, rows, tokenizer)
    return {
        "hash": text_hashes(layout.identity(values) for values in rows),
        "target": text_hashes(labels),
        "characters": np.array([sum(map(len, some)) for some in texts], np.int32),
        "tokens": tokens_N,
        "numbers": np.array([float(label) if NUMBER.fullmatch(label) else np.nan for label in labels])
        if survey.is_numeric
        else np.full(len(labels), np.nan),
    }


def spoken_texts(layout: Layout, values: Values) -> list[str]:
    """Return the texts of a row for display; tokens are joined, by spaces unless some are Chinese characters."""
    if "tokens" in values:
        return [joined_tokens(values["tokens"])]
    return [values[role] for role in layout.roles_of(values)]


def label_of(values: Values) -> str:
    """Return the target of a row as one text that is equal for equal labels; `(none)` for a row without label."""
    for role in ("tags", "spans", "label"):
        if role in values:
            value = values[role]
            if isinstance(value, list):
                return " ".join(map(str, value)) if role == "tags" else " | ".join(sorted(map(str, value))) or NO_LABEL
            return NO_LABEL if value is None or not str(value).strip() else str(value).strip()
    return NO_LABEL


def _types(values: Values) -> list[str] | None:
    """Return the type of each span of a text; None for a row without spans that can be read."""
    if "spans" not in values or (tags := tags_of_spans(values["text"], values["spans"])[0]) is None:
        return None
    return [tag[2:] for tag in tags if tag.startswith("B-")]


def _count_labels(survey: Survey, labels: list[str], rows: Sequence[Values]) -> None:
    for label, values in zip(labels, rows, strict=True):
        named = _named(label, values)
        survey.is_several |= len(named) > 1 and "label" in values
        for name in named:
            if name in survey.labels or len(survey.labels) < MOST_LABELS:
                survey.labels[name] += 1
        survey.has_labels |= bool(named) and named != [NO_LABEL]
        survey.is_numeric &= label == NO_LABEL or NUMBER.fullmatch(label) is not None


def _named(label: str, values: Values) -> list[str]:
    """Return the labels of a row, or the type of each of its spans."""
    if isinstance(tags := values.get("tags"), list):
        return _begun(list(map(str, tags)))
    if (types := _types(values)) is not None:
        return types
    several = values.get("label")
    if isinstance(several, str):
        several = listed_labels(several)
    if isinstance(several, list):
        names = list(map(str, several))
        # A 0 or 1 for each label, which is called by its place.
        if len(set(names)) < len(names) and FLAGS.issuperset(map(str.lower, names)):
            names = [str(place) for place, name in enumerate(names) if APPLIES[name.lower()]]
        return names or [NO_LABEL]
    return [label] if "label" in values else []


def _begun(tags: list[str]) -> list[str]:
    """Return the type of each span in tags of any scheme, or each tag if they are of none."""
    parts = [split_tag(tag) for tag in tags]
    bio, _ = to_bio([part for part in parts if part is not None])
    return [tag for tag in tags if tag != "O"] if None in parts else [kind for letter, kind in bio if letter == "B"]


def _tokens(survey: Survey, rows: Sequence[Values], tokenizer: Tokenizer) -> np.ndarray:
    """Return the number of tokens of each row, (N,), and count unknown tokens."""
    encoded = survey.source.layout.encode(tokenizer, rows, UNCUT)
    assert survey.unknown is not None, "there is a tokenizer"
    is_unknown_T = tokenizer.is_unknown(encoded.tokens)
    row_T = np.repeat(np.arange(len(rows)), encoded.lengths_N)
    unknown_N = np.bincount(row_T[is_unknown_T], minlength=len(rows))
    survey.unknown.tokens += int(unknown_N.sum())
    survey.unknown.rows += int((unknown_N > 0).sum())
    return encoded.lengths_N.astype(np.int32)
