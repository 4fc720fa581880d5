"""Which scored rows have the same text as a training row, or nearly the same, and which occur several times.

Texts are compared in Unicode's NFKC form and lower case, by their letters and digits only. Two texts are near if the
sets of their character trigrams have a Jaccard similarity, |x and y| / |x or y|, of at least a threshold (the
resemblance of Broder, "On the resemblance and containment of documents", 1997). The search is exact: with trigrams
ordered by rarity, two near sets share one of the first |x| - ceil(t |x|) + 1 trigrams of each (prefix filtering;
Bayardo, Ma and Srikant, "Scaling up all pairs similarity search", WWW 2007), so only texts that do are compared.

Axes: N records.
"""

import math
import unicodedata
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from nlu.config.errors import DataError, UserError
from nlu.config.keys import facts_of
from nlu.config.targets import TARGET, build
from nlu.config.words import called
from nlu.data.dataset import Files, SourceFile
from nlu.data.layouts import LAYOUTS, SEPARATOR, Layout
from nlu.data.reader import Row
from nlu.data.reading import Reading, fields_of
from nlu.data.seeds import text_hash
from nlu.metrics.repeats import HELD_OUT
from nlu.reports.errors.subject import ErrorSource, has_text
from nlu.runs.predictions import Record, predictions_of

NOWHERE = -1
GRAM = 3
"""characters of a gram; a shorter text is a single gram"""


class NearTexts:
    """A set of texts that finds those near a given one. Memory: some 10 bytes a character."""

    def __init__(self, threshold: float):
        """`threshold`: the lowest similarity of near texts, above 0 and at most 1."""
        self.threshold = threshold
        self._number_of: dict[str, int] = {}
        self._pending: list[set[str]] = []
        self._grams: list[array[int]] = []
        """of each text the ranks of its grams, rarest first"""
        self._rank_of: dict[str, int] = {}
        self._having: dict[int, array[int]] = {}
        """by rank of a gram, the texts that have it in their prefix"""

    def __len__(self) -> int:
        return len(self._number_of)

    def add(self, normal: str) -> int:
        """Add a normalised text and return its number, which equal texts share. Add all texts before `build`."""
        number = self._number_of.setdefault(normal, len(self._number_of))
        if number == len(self._pending):
            self._pending.append(grams_of(normal))
        return number

    def build(self) -> None:
        """Build the index that `near` reads, after all texts were added."""
        counts = Counter(gram for grams in self._pending for gram in grams)
        self._rank_of = {gram: rank for rank, gram in enumerate(sorted(counts, key=lambda gram: (counts[gram], gram)))}
        # Arrays take 4 bytes an entry, lists of Python integers about ten times as much.
        having: dict[int, array[int]] = defaultdict(lambda: array("i"))
        for number, grams in enumerate(self._pending):
            ranks = array("i", sorted(self._rank_of[gram] for gram in grams))
            self._grams.append(ranks)
            for rank in ranks[: self._prefix(len(ranks))]:
                having[rank].append(number)
        # A plain dict: looking up a rank in a defaultdict would add it.
        self._having, self._pending = dict(having), []

    def near(self, normal: str) -> Iterator[tuple[int, float, bool]]:
        """Yield the texts equal to a normalised text or near it: number, similarity, and whether it is equal."""
        same = self._number_of.get(normal)
        if same is not None:
            yield same, 1.0, True
        grams = grams_of(normal)
        size = len(grams)
        known = {rank for gram in grams if (rank := self._rank_of.get(gram)) is not None}
        # Grams that occur in none of the texts are the rarest and come first.
        prefix = self._prefix(size) - (size - len(known))
        if prefix <= 0:
            return
        # A set, since a text may share several rare trigrams.
        candidates = {number for rank in sorted(known)[:prefix] for number in self._having.get(rank, ())}
        candidates.discard(-1 if same is None else same)
        for number in sorted(candidates):
            ranks = self._grams[number]
            # The similarity is at most the ratio of the sizes, which is cheaper to compute.
            if min(len(ranks), size) < self.threshold * max(len(ranks), size):
                continue
            common = len(known.intersection(ranks))
            similarity = common / (len(ranks) + size - common)
            if similarity >= self.threshold:
                yield number, similarity, False

    def _prefix(self, size: int) -> int:
        # Rounding may put a product such as 0.7 * 10 above the whole number that it is.
        return size - math.ceil(self.threshold * size - 1e-9) + 1


@dataclass
class Overlap:
    """For each record the most similar training text, and whether its own text occurs several times in the set."""

    similarity_N: np.ndarray
    """1 for an equal text, less for a near one, 0 without either"""
    file_N: np.ndarray
    """number of the training file; -1 without one"""
    row_N: np.ndarray
    is_exact_N: np.ndarray
    is_contrary_N: np.ndarray
    """whether train has an equal text with another label; False for labels that are not single names"""
    is_repeated_N: np.ndarray
    conflicts: int
    """normalised texts that occur in the set with several labels"""
    sources: list[SourceFile] = field(default_factory=list)
    """training files"""
    label_of: dict[int, str] = field(default_factory=dict)
    """by record the label of its most similar training text, if that is a single name"""

    def place_of(self, number: int) -> str | None:
        """Return file:row of the training text most similar to a record."""
        if self.file_N[number] == NOWHERE:
            return None
        return f"{called(self.sources[self.file_N[number]].path)}:{self.row_N[number]}"


class SetTexts:
    """The texts of a set's records, which are compared with the training texts."""

    def __init__(self, layout: Layout, threshold: float):
        self.layout, self.near = layout, NearTexts(threshold)
        self._text_N: list[int] = []
        """number of each record's text; -1 if it kept none"""
        self._part_N: list[int] = []
        self._label_N: list[str | None] = []
        self._labels: dict[int, set[str]] = defaultdict(set)

    def add(self, record: Record) -> None:
        """Add the text of a record."""
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
        """Compare every training text with the records; with None only find the texts that occur several times."""
        text_N, count = np.array(self._text_N, np.int64), len(self._text_N)
        times = np.bincount(text_N[text_N != NOWHERE], minlength=1)
        is_repeated_N = np.where(text_N == NOWHERE, False, times[text_N] > 1)
        found = Overlap(
            np.zeros(count),
            np.full(count, NOWHERE),
            np.full(count, NOWHERE),
            np.zeros(count, bool),
            np.zeros(count, bool),
            is_repeated_N,
            sum(len(labels) > 1 for labels in self._labels.values()),
        )
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
                    # The fold that holds a text out was not trained on it.
                    if one.part == NOWHERE or one.part != self._part_N[row]:
                        self._compare(found, row, one, similarity, is_same)
        return found

    def _compare(self, found: Overlap, row: int, one: "TrainingText", similarity: float, is_same: bool) -> None:
        own = self._label_N[row]
        # Kept even if a later training text is nearer: one contrary label is enough to look at the row.
        found.is_contrary_N[row] |= is_same and own is not None and one.label not in (None, own)
        # A different text may have the same trigrams in another order, and so a similarity of 1.
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
    """if it is a single name"""


@dataclass
class TrainingTexts:
    """The texts of the training files, read again, without those that were held out."""

    sources: list[SourceFile]
    reading: Reading
    layout: Layout
    part_of: dict[int, int]
    """by the hash of a held-out text: its fold, or -1 if no fold trains on it"""
    seen: set[int] = field(default_factory=set)
    """those hashes that are still in the files, after `texts` has ended"""

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
                # A text that no fold trains on is left out here; one that a fold holds out is compared row by row.
                if part is None or part != NOWHERE:
                    value = row.values.get("label")
                    label = str(value).strip() if isinstance(value, (str, int)) else None
                    normal = _normal(self.layout, row.values)
                    yield TrainingText(file, row.number, normal, NOWHERE if part is None else part, label)


def training_texts(source: ErrorSource, layout: Layout) -> TrainingTexts:
    """Return the training texts of a run. Raises UserError if its files are not there or not known."""
    files = files_of(source)
    sources = files.sets(["train"])["train"]
    constants = facts_of(source.config["task"][TARGET])
    roles = facts_of(constants.get("target", "")).get("roles", ())
    reading = Reading(fields_of(files, sources, roles), files.format, files.header, files.max_rows, None, files.dialect)
    return TrainingTexts(sources, reading, layout, _held_out(source, layout))


def files_of(source: ErrorSource) -> Files:
    """Return the files of a run. Raises UserError if its data is of a class that does not name files."""
    node = source.config["data"]
    files = build(node)
    if not isinstance(files, Files):
        raise UserError(f"data is {node[TARGET]}, of which no files are known")
    return files


def layout_named(name: str | None) -> Layout | None:
    """Return the layout with the name in data.json; None without a name."""
    return LAYOUTS.get(name or "")


def normalised(text: str) -> str:
    """Return the letters and digits of a text in NFKC form and lower case, or all of it if it has neither."""
    folded = unicodedata.normalize("NFKC", text).casefold()
    return "".join(filter(str.isalnum, folded)) or folded


def grams_of(text: str) -> set[str]:
    """Return the distinct trigrams of a normalised text."""
    return {text[place : place + GRAM] for place in range(max(1, len(text) - GRAM + 1))}


def _normal(layout: Layout, values: Record) -> str:
    """Return the normalised texts of a row."""
    if "tokens" in values:
        return normalised("".join(values["tokens"]))
    return SEPARATOR.join(map(normalised, layout.shown(values).values()))


def _held_out(source: ErrorSource, layout: Layout) -> dict[int, int]:
    """Return which texts of the training files were held out. Equal texts are on the same side of every split."""
    if source.joined is None:
        if source.run.fold is None and source.config["data"].get("dev") is not None:
            return {}
        records = iter(predictions_of(source.run.folder, HELD_OUT))
        return dict.fromkeys(_hashes(records, layout), NOWHERE)
    return {hashed: fold for fold, part in source.joined.parts.items() for hashed in _hashes(iter(part), layout)}


def _hashes(records: Iterator[Record], layout: Layout) -> Iterator[int]:
    for record in records:
        if not has_text(record, layout):
            raise DataError("some held-out rows kept no text, so they cannot be left out of the training texts")
        yield text_hash(layout.identity(record))
