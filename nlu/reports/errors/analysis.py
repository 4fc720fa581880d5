"""The errors of a run: one pass over its predictions, then the tables by what the rows are like.

Axes: N records.
"""

import heapq
import shlex
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice

import numpy as np

from nlu.config.errors import UserError
from nlu.config.words import called, path_text
from nlu.data.dataset import SourceFile
from nlu.reports.errors.judges import Judge, judge_of
from nlu.reports.errors.label_errors import LabelErrors, Probabilities, RankBy, Suspect, find_label_errors
from nlu.reports.errors.overlap import Overlap, Texts, files_of, layout_named, training_texts
from nlu.reports.errors.slices import Slice, by_bounds, slice_of
from nlu.reports.errors.subject import Subject
from nlu.reports.errors.tokens import TokenCounter, token_counter
from nlu.reports.runs import Run
from nlu.runs.predictions import Record
from nlu.storage.cache import read_json

BY = ("class", "length", "unknown", "overlap")
LENGTHS = tuple(1 << power for power in range(3, 14))
"""upper ends of the parts by length, in tokens; the run's data.max_len is one more"""
UNKNOWN_SHARES = (0.0, 0.02, 0.05, 0.1, 0.25)
PARTS_OF_NUMBERS = 5
CHUNK_RECORDS = 2048


@dataclass(frozen=True)
class Options:
    """What is asked for."""

    rows: int = 20
    """mistakes that are kept"""
    by: tuple[str, ...] = BY
    near: float = 0.7
    """similarity from which on two texts are near"""
    rank_by: RankBy = "self-confidence"


@dataclass(frozen=True)
class Shown:
    """A row that is shown."""

    number: int
    """of the record, in their order"""
    record: Record
    sureness: float
    tokens: int


@dataclass
class Report:
    """What was found."""

    subject: Subject
    judge: Judge
    whole: Slice
    mistakes: list[Shown]
    """the surest first"""
    tables: dict[str, tuple[str, list[Slice]]] = field(default_factory=dict)
    """by what they go by: title and parts"""
    overlap: Overlap | None = None
    label_errors: LabelErrors | None = None
    suspects: list[tuple[Suspect, Record]] = field(default_factory=list)
    """the records of the suspected labels, as far as these are shown"""
    sources: list[SourceFile] = field(default_factory=list)
    """the files of the set"""
    remarks: list[str] = field(default_factory=list)
    """what was left out, and why"""

    def place_of(self, record: Record) -> str:
        """Return file:row of a record, as errors in data name it."""
        number = record.get("file", 0)
        name = called(self.sources[number].path) if number < len(self.sources) else f"file {number}"
        return f"{name}:{record.get('row', record['id'])}"


def analyse(subject: Subject, options: Options) -> Report:
    """Look into the predictions of a subject. Raises UserError for predictions of which nothing can be said."""
    first = next(subject.records(), None)
    if first is None:
        raise UserError(f"{subject.name} of {path_text(subject.folder)} holds no predictions; give another set")
    return _Pass(subject, first, options).report()


class _Pass:
    """One pass over the records, with what is kept of each."""

    def __init__(self, subject: Subject, first: Record, options: Options):
        self._subject, self._options, self._remarks = subject, options, list(subject.remarks)
        self._judge = judge_of(first, subject.threshold_of)
        layout = self._layout = layout_named((read_json(subject.run.folder / "data.json") or {}).get("layout"))
        if layout is None:
            self._remarks.append("by length, unknown tokens and overlap: the run's data.json does not tell its layout")
        self._counter = self._token_counter()
        self._texts = Texts(layout, options.near) if layout is not None and "overlap" in options.by else None
        self._has_probabilities = "probabilities" in first
        self._known = Probabilities(first) if subject.joined is not None and self._has_probabilities else None
        self._value, self._right = array("d"), array("d")
        self._tokens, self._unknown = array("q"), array("q")
        self._mistakes: list[tuple[float, int, Shown]] = []

    def _token_counter(self) -> TokenCounter | None:
        if self._layout is None or not {"length", "unknown"} & set(self._options.by):
            return None
        counter = token_counter(self._subject.run.folder, self._layout.name)
        if counter is None:
            self._remarks.append(
                "by length and unknown tokens: no checkpoint of the run is left, which held its tokenizer"
            )
        return counter

    def report(self) -> Report:
        records = self._subject.records()
        while chunk := list(islice(records, CHUNK_RECORDS)):
            self._take(chunk)
        judge, value_N = self._judge, np.array(self._value)
        shown = [one for _, _, one in sorted(self._mistakes, key=lambda entry: entry[:2], reverse=True)]
        found = Report(self._subject, judge, slice_of("all", value_N, judge.is_rate), shown, remarks=self._remarks)
        tables = {
            "class": self._by_class, "length": self._by_length, "unknown": self._by_unknown,
            "overlap": self._by_overlap,
        }  # fmt: skip
        for name in self._options.by:
            tables[name](found, value_N)
        found.sources = self._sources()
        self._label_errors(found)
        return found

    def _take(self, chunk: Sequence[Record]) -> None:
        tokens, unknown = [0] * len(chunk), [0] * len(chunk)
        if self._counter is not None:
            tokens, unknown = (counts_B.tolist() for counts_B in self._counter.count(chunk))
        self._tokens.extend(tokens)
        self._unknown.extend(unknown)
        for record, count in zip(chunk, tokens, strict=True):
            number = len(self._value)
            value, sureness = self._judge.add(record)
            self._value.append(value)
            if not self._judge.is_rate:
                self._right.append(record["label"])
            if value:
                self._keep(Shown(number, record, sureness, count))
            if self._texts is not None:
                self._texts.add(record)
            if self._known is not None:
                self._known.add(record)

    def _keep(self, shown: Shown) -> None:
        """Keep a mistake if it is among the surest; of equally sure ones the first."""
        entry = (shown.sureness, -shown.number, shown)
        if len(self._mistakes) < self._options.rows:
            heapq.heappush(self._mistakes, entry)
        elif self._mistakes and entry[:2] > self._mistakes[0][:2]:
            heapq.heapreplace(self._mistakes, entry)

    def _by_class(self, found: Report, value_N: np.ndarray) -> None:
        if self._judge.is_rate:
            found.tables["class"] = (self._judge.by_class, self._judge.classes())
            return
        right_N = np.array(self._right)
        bounds = sorted(set(np.quantile(right_N, np.arange(1, PARTS_OF_NUMBERS) / PARTS_OF_NUMBERS).tolist()))
        names = [f"up to {bound:.6g}" for bound in bounds] + ["above"]
        found.tables["class"] = (
            "by the right number, in fifths", by_bounds(value_N, right_N, bounds, names, is_rate=False)
        )  # fmt: skip
        found.remarks.append("numbers are near or far, not right or wrong: distances stand in the place of error rates")

    def _by_length(self, found: Report, value_N: np.ndarray) -> None:
        if (tokens_N := self._counted()) is None:
            return
        # Of texts that are encoded apart each has max_len tokens, so that their sum does not tell what was cut.
        is_apart = self._layout is not None and self._layout.name == "sides"
        most = 0 if is_apart else int(self._subject.config["data"].get("max_len") or 0)
        bounds = sorted({*LENGTHS, most} - {0})
        starts = [1, *(bound + 1 for bound in bounds)]
        names = [
            f"{start}-{bound}{' (cut)' if most and start > most else ''}"
            for start, bound in zip(starts, bounds, strict=False)
        ] + [f"{starts[-1]} and more"]
        counted_N = tokens_N > 0
        parts = by_bounds(value_N[counted_N], tokens_N[counted_N], [*bounds], names, self._judge.is_rate)
        found.tables["length"] = ("by length in tokens", parts)

    def _by_unknown(self, found: Report, value_N: np.ndarray) -> None:
        if (tokens_N := self._counted()) is None:
            return
        counted_N = tokens_N > 0
        share_N = np.array(self._unknown)[counted_N] / tokens_N[counted_N]
        ends = [f"{end:.0%}" for end in UNKNOWN_SHARES]
        names = ["none", *(f"up to {end}" for end in ends[1:]), f"above {ends[-1]}"]
        parts = by_bounds(value_N[counted_N], share_N, [*UNKNOWN_SHARES], names, self._judge.is_rate)
        found.tables["unknown"] = ("by share of unknown tokens", parts)

    def _counted(self) -> np.ndarray | None:
        tokens_N = np.array(self._tokens)
        if self._counter is not None and not tokens_N.any():
            sentence = "by length, unknown tokens and overlap: the predictions keep no texts"
            self._remarks += [sentence] if sentence not in self._remarks else []
            return None
        return tokens_N if self._counter is not None else None

    def _by_overlap(self, found: Report, value_N: np.ndarray) -> None:
        if self._texts is None or not self._texts.are_kept:
            return
        training = None
        try:
            training = training_texts(self._subject, self._texts.layout)
            overlap = self._texts.overlap(training)
        except (UserError, OSError) as error:
            said = error.sentences[0] if isinstance(error, UserError) else str(error)
            found.remarks.append(f"overlap with training texts: they cannot be read ({said})")
            training = None
            overlap = self._texts.overlap(None)
        found.overlap = overlap
        parts = []
        if training is not None:
            is_near_N = (overlap.similarity_N > 0) & ~overlap.is_exact_N
            parts += [
                ("the same text in train", overlap.is_exact_N),
                *[("the same text in train, with another label", overlap.is_contrary_N)] * bool(overlap.label_of),
                (f"a near one in train ({self._options.near:g} or more)", is_near_N),
                ("neither", overlap.similarity_N == 0),
            ]
            if gone := len(training.part_of) - len(training.seen):
                found.remarks.append(
                    f"the training files have changed: {gone:,} of {len(training.part_of):,} held-out texts "
                    f"{'is' if gone == 1 else 'are'} no longer in them"
                )
        parts.append((f"occurs several times in {self._subject.name}", overlap.is_repeated_N))
        slices = [slice_of(name, value_N[mask_N], self._judge.is_rate) for name, mask_N in parts]
        found.tables["overlap"] = ("by overlap with training texts", slices)
        if overlap.conflicts:
            stand = "text stands" if overlap.conflicts == 1 else "texts stand"
            found.remarks.append(f"{overlap.conflicts:,} {stand} in {self._subject.name} with several labels")

    def _sources(self) -> list[SourceFile]:
        """The files of the set, by which places are named; none where they are gone."""
        name = "train" if self._subject.is_held_out else self._subject.set_name
        try:
            return files_of(self._subject).sets([name])[name]
        except (UserError, OSError, KeyError):
            return []

    def _label_errors(self, found: Report) -> None:
        if not self._has_probabilities:
            # Nor would folds help.
            found.remarks.append(
                f"suspected label errors: there are none, since {_NOT_FOR[self._judge.kind]}; read the first mistakes, "
                f"those with the largest {self._judge.ranked_by}"
            )
            return
        if self._known is None:
            found.remarks.append(
                "suspected label errors: they need predictions of every training row by a model that did not see it; "
                + _how_to_fold(self._subject.run)
            )
            return
        try:
            errors = find_label_errors(self._known, self._options.rank_by, self._judge.kind == "label sets")
        except UserError as error:
            found.remarks.append(f"suspected label errors: {error.sentences[0]}")
            return
        found.label_errors = errors
        wanted = {suspect.number for suspect in errors.suspects}
        records = {number: record for number, record in enumerate(self._subject.records()) if number in wanted}
        found.suspects = [(suspect, records[suspect.number]) for suspect in errors.suspects]


_NOT_FOR = {
    "classes": "these predictions keep no probability of each class",
    "label sets": "these predictions keep no probability of each label",
    "numbers": "a number has no probability of being another",
    "spans": "predictions of spans keep no probability of each tag",
}
"""why confident learning does not apply"""


def _how_to_fold(run: Run) -> str:
    """Say where the out-of-fold predictions are, or which command makes them."""
    if run.fold is not None:
        return f"give the folder of all folds, {path_text(run.folder.parent)}"
    kept = {key: value for key, value in run.overrides.items() if key not in ("folds", "fold", "resume", "data.dev")}
    command = ["python", "-m", "nlu.train", *(f"{key}={value}" for key, value in kept.items()), "folds=5"]
    return f"run {shlex.join(command)}, then report errors on its folder"
