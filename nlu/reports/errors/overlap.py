"""Which scored rows stand among the training texts, the same or nearly so, and which occur several times.

Axes: N records.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from nlu.config.errors import DataError, UserError
from nlu.config.signature import read_constants
from nlu.config.targets import TARGET, build
from nlu.config.words import called
from nlu.data.dataset import Files, SourceFile
from nlu.data.layouts import LAYOUTS, SEPARATOR, Layout
from nlu.data.readers import Dialect, Row
from nlu.data.reading import Reading, fields_of
from nlu.data.seeds import text_hash
from nlu.reports.errors.near import NearTexts, normalised
from nlu.reports.errors.subject import Subject
from nlu.reports.errors.tokens import has_text
from nlu.runs.predictions import Record, predictions_of
from nlu.sweeps.repeats import HELD_OUT

NOWHERE = -1


@dataclass
class Overlap:
    """Of each record its likest training text, and whether its own text stands in the set several times."""

    similarity_N: np.ndarray
    """1 for the same text, below for a near one, 0 where there is none"""
    file_N: np.ndarray
    """number of the training file; -1 where there is none"""
    row_N: np.ndarray
    is_exact_N: np.ndarray
    is_contrary_N: np.ndarray
    """whether the same text stands in train with another label; false where labels are no single names"""
    is_repeated_N: np.ndarray
    conflicts: int
    """normalised texts that stand in the set with several labels"""
    sources: list[SourceFile] = field(default_factory=list)
    """training files"""
    label_of: dict[int, str] = field(default_factory=dict)
    """by record the label of its likest training text, where it is a single name"""

    def place_of(self, number: int) -> str | None:
        """Return file:row of the likest training text of a record."""
        if self.file_N[number] == NOWHERE:
            return None
        return f"{called(self.sources[self.file_N[number]].path)}:{self.row_N[number]}"


class Texts:
    """The texts of a set's records, to which the training texts are held."""

    def __init__(self, layout: Layout, threshold: float):
        self.layout, self.near = layout, NearTexts(threshold)
        self._text_N: list[int] = []
        """number of each record's text; -1 where it kept none"""
        self._part_N: list[int] = []
        self._label_N: list[str | None] = []
        self._labels: dict[int, set[str]] = defaultdict(set)

    def add(self, record: Record) -> None:
        """Take in a record."""
        number = NOWHERE
        if has_text(record, self.layout):
            number = self.near.add(_normal(self.layout, record))
            self._labels[number].add(repr(record["label"]))
        self._text_N.append(number)
        self._part_N.append(record.get("fold", NOWHERE))
        self._label_N.append(record["label"] if isinstance(record["label"], str) else None)

    @property
    def are_kept(self) -> bool:
        return len(self.near) > 0

    def overlap(self, training: "TrainingTexts | None") -> Overlap:
        """Hold every training text to the records; None: only look for what occurs several times."""
        text_N, count = np.array(self._text_N, np.int64), len(self._text_N)
        times = np.bincount(text_N[text_N != NOWHERE], minlength=1)
        is_repeated_N = np.where(text_N == NOWHERE, False, times[text_N] > 1)
        found = Overlap(
            np.zeros(count), np.full(count, NOWHERE), np.full(count, NOWHERE), np.zeros(count, bool),
            np.zeros(count, bool), is_repeated_N, sum(len(labels) > 1 for labels in self._labels.values()),
        )  # fmt: skip
        if training is None:
            return found
        found.sources = training.sources
        rows_of: dict[int, list[int]] = defaultdict(list)
        for row, text in enumerate(self._text_N):
            rows_of[text].append(row)
        self.near.build()
        for one in training.texts():
            for text, similarity, is_same in self.near.near(one.normal):
                for row in rows_of[text]:
                    # The fold that holds a text out was not trained on it; it is no training text of that fold.
                    if one.part == NOWHERE or one.part != self._part_N[row]:
                        self._compare(found, row, one, similarity, is_same)
        return found

    def _compare(self, found: Overlap, row: int, one: "TrainingText", similarity: float, is_same: bool) -> None:
        own = self._label_N[row]
        found.is_contrary_N[row] |= is_same and own is not None and one.label not in (None, own)
        # Another text may have the same trigrams in another order.
        if (is_same, similarity) > (found.is_exact_N[row], found.similarity_N[row]):
            found.is_exact_N[row], found.similarity_N[row] = is_same, similarity
            found.file_N[row], found.row_N[row] = one.file, one.row
            if own is not None and one.label is not None:
                found.label_of[row] = one.label


class TrainingText(NamedTuple):
    """A text that was trained on."""

    file: int
    row: int
    normal: str
    part: int
    """the fold that holds it out; -1 for none"""
    label: str | None
    """where it is a single name"""


@dataclass
class TrainingTexts:
    """The texts of the training files, read again, less those that were held out."""

    sources: list[SourceFile]
    reading: Reading
    layout: Layout
    part_of: dict[int, int]
    """by the hash of a text that was held out: the fold, or -1 where it never is a training text"""
    seen: set[int] = field(default_factory=set)
    """of those the ones that still stand in the files, once `texts` has ended"""

    def texts(self) -> Iterator[TrainingText]:
        """Yield all of them, in the order of the files."""
        for file, source in enumerate(self.sources):
            for row in self.reading.rows(source):
                if not isinstance(row, Row) or self.layout.problem(row.values) is not None:
                    continue
                hashed = text_hash(self.layout.identity(row.values))
                part = self.part_of.get(hashed)
                if part is not None:
                    self.seen.add(hashed)
                if part is None or part != NOWHERE:
                    value = row.values.get("label")
                    label = str(value).strip() if isinstance(value, (str, int)) else None
                    normal = _normal(self.layout, row.values)
                    yield TrainingText(file, row.number, normal, NOWHERE if part is None else part, label)


def _normal(layout: Layout, values: Record) -> str:
    """The texts of a row, each normalised."""
    if "tokens" in values:
        return normalised("".join(values["tokens"]))
    return SEPARATOR.join(map(normalised, layout.shown(values).values()))


def training_texts(subject: Subject, layout: Layout) -> TrainingTexts:
    """Find the training texts of a run. Raises UserError with a sentence where its files are gone or not known."""
    files = files_of(subject)
    sources = files.sets(["train"])["train"]
    constants = read_constants(subject.config["task"][TARGET])
    roles = read_constants(constants.get("target", "")).get("roles", ())
    reading = Reading(
        fields_of(files, sources, roles), files.format, files.header, files.max_rows, None, Dialect(files.separator)
    )
    return TrainingTexts(sources, reading, layout, _held_out(subject, layout))


def files_of(subject: Subject) -> Files:
    """Return the files of a run. Raises UserError where its data are of a kind of their own."""
    node = subject.config["data"]
    files = build(node, trusted=subject.config.get("trusted_packages") or ())
    if not isinstance(files, Files):
        raise UserError(f"data is {node[TARGET]}, of which no files are known")
    return files


def _held_out(subject: Subject, layout: Layout) -> dict[int, int]:
    """Return which texts of the training files were held out: equal texts share a side of every split."""
    if subject.joined is None:
        if subject.run.fold is None and subject.config["data"].get("dev") is not None:
            return {}
        records = iter(predictions_of(subject.run.folder, HELD_OUT))
        return dict.fromkeys(_hashes(records, layout), NOWHERE)
    return {hashed: fold for fold, part in subject.joined.parts.items() for hashed in _hashes(iter(part), layout)}


def _hashes(records: Iterator[Record], layout: Layout) -> Iterator[int]:
    for record in records:
        if not has_text(record, layout):
            raise DataError("some held-out rows kept no text, so that the training texts cannot be told from them")
        yield text_hash(layout.identity(record))


def layout_named(name: str | None) -> Layout | None:
    """Return the layout that data.json names; None for runs of earlier versions that do not tell."""
    return LAYOUTS.get(name or "")
