"""The errors of a run: one pass over its predictions, then tables of the error rate by properties of the rows.

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
from nlu.metrics.kinds import KEPT, MANY, Kind
from nlu.reports.errors.label_errors import LabelErrors, Probabilities, RankBy, Suspect, find_label_errors
from nlu.reports.errors.overlap import Overlap, SetTexts, files_of, layout_named, training_texts
from nlu.reports.errors.slices import Parts, Slice, by_bounds, slice_of
from nlu.reports.errors.subject import ErrorSource, TokenCounter, token_counter
from nlu.reports.runs import RunRecord
from nlu.runs.predictions import Record
from nlu.storage.files import read_json

BY = ("class", "length", "unknown", "overlap")
LENGTHS = tuple(1 << power for power in range(3, 14))
"""upper ends of the ranges of lengths, in tokens; data.max_len of the run is another"""
UNKNOWN_SHARES = (0.0, 0.02, 0.05, 0.1, 0.25)
RANGES_OF_NUMBERS = 5
CHUNK_RECORDS = 2048


@dataclass(frozen=True)
class Options:
    """What to report."""

    rows: int = 20
    """number of mistakes to keep"""
    by: tuple[str, ...] = BY
    near: float = 0.7
    """lowest similarity of two texts that count as near"""
    rank_by: RankBy = "self-confidence"


@dataclass(frozen=True)
class Mistake:
    """A wrong prediction that is shown."""

    number: int
    """of the record in the file, from 0"""
    record: Record
    confidence: float
    tokens: int


@dataclass
class ErrorReport:
    """What was found."""

    source: ErrorSource
    kind: Kind
    whole: Slice
    mistakes: list[Mistake]
    """the most confident first"""
    tables: dict[str, tuple[str, list[Slice]]] = field(default_factory=dict)
    """title and slices, by the names in BY"""
    overlap: Overlap | None = None
    label_errors: LabelErrors | None = None
    suspects: list[tuple[Suspect, Record]] = field(default_factory=list)
    """suspected labels with their records"""
    files: list[SourceFile] = field(default_factory=list)
    """the files of the set"""
    remarks: list[str] = field(default_factory=list)
    """what was left out, and why"""

    def place_of(self, record: Record) -> str:
        """Return file:row of a record, as error messages about data name it."""
        number = record.get("file", 0)
        name = called(self.files[number].path) if number < len(self.files) else f"file {number}"
        return f"{name}:{record.get('row', record['id'])}"


def analyse(source: ErrorSource, options: Options) -> ErrorReport:
    """Analyse predictions. Raises UserError without predictions, and if single records are neither right nor wrong."""
    first = next(source.records(), None)
    if first is None:
        raise UserError(f"{source.name} of {path_text(source.folder)} holds no predictions; give another set")
    if source.kind.unjudged:
        raise UserError(source.kind.unjudged)
    return _Pass(source, first, options).report()


class _Pass:
    """One pass over the records, with what it keeps of each."""

    def __init__(self, source: ErrorSource, first: Record, options: Options):
        self._source, self._options, self._remarks = source, options, list(source.remarks)
        self._kind, self._parts = source.kind, Parts(source.kind)
        data = read_json(source.run.folder / "data.json") or {}
        layout = self._layout = layout_named(data.get("layout"))
        if layout is None:
            self._remarks.append("by length, unknown tokens and overlap: the run's data.json does not name its layout")
        self._counter = self._token_counter()
        self._texts = SetTexts(layout, options.near) if layout is not None and "overlap" in options.by else None
        may_suspect = source.joined is not None and self._kind.has_probabilities
        self._are_cut = may_suspect and len(first["probabilities"]) < len(data.get("labels", ()))
        self._probabilities = Probabilities(first) if may_suspect and not self._are_cut else None
        self._error, self._number = array("d"), array("d")
        self._tokens, self._unknown = array("q"), array("q")
        self._mistakes: list[tuple[float, int, Mistake]] = []

    def _token_counter(self) -> TokenCounter | None:
        if self._layout is None or not {"length", "unknown"} & set(self._options.by):
            return None
        counter = token_counter(self._source.run.folder, self._layout.name)
        if counter is None:
            self._remarks.append(
                "by length and unknown tokens: the run has no checkpoint left, and so no tokenizer to count tokens"
            )
        return counter

    def report(self) -> ErrorReport:
        records = self._source.records()
        while chunk := list(islice(records, CHUNK_RECORDS)):
            self._take(chunk)
        kind, error_N = self._kind, np.array(self._error)
        # Mistakes with equal confidence are ordered by their number, the second part of an entry.
        shown = [one for _, _, one in sorted(self._mistakes, key=lambda entry: entry[:2], reverse=True)]
        whole = slice_of("all", error_N, kind.is_binary)
        found = ErrorReport(self._source, kind, whole, shown, remarks=self._remarks)
        tables = {
            "class": self._by_class,
            "length": self._by_length,
            "unknown": self._by_unknown,
            "overlap": self._by_overlap,
        }
        for name in self._options.by:
            tables[name](found, error_N)
        found.files = self._files()
        self._find_label_errors(found)
        return found

    def _take(self, chunk: Sequence[Record]) -> None:
        tokens, unknown = [0] * len(chunk), [0] * len(chunk)
        if self._counter is not None:
            tokens, unknown = (counts_B.tolist() for counts_B in self._counter.count(chunk))
        self._tokens.extend(tokens)
        self._unknown.extend(unknown)
        for record, count in zip(chunk, tokens, strict=True):
            number, error = len(self._error), self._kind.error(record)
            self._error.append(error)
            self._parts.add(self._kind.units(record), error)
            if not self._kind.by_part:
                self._number.append(record["label"])
            if error:
                confidence = self._kind.confidence(record, self._source.metrics_of(record))
                self._keep(Mistake(number, record, confidence, count))
            if self._texts is not None:
                self._texts.add(record)
            if self._probabilities is not None:
                self._probabilities.add(record)

    def _keep(self, mistake: Mistake) -> None:
        """Keep a mistake if it is one of the most confident; of equal ones the first."""
        # Entries are compared by their first two parts only; numbers differ, so a Mistake is never compared.
        entry = (mistake.confidence, -mistake.number, mistake)
        if len(self._mistakes) < self._options.rows:
            heapq.heappush(self._mistakes, entry)
        elif self._mistakes and entry[:2] > self._mistakes[0][:2]:
            heapq.heapreplace(self._mistakes, entry)

    def _by_class(self, found: ErrorReport, error_N: np.ndarray) -> None:
        if self._kind.by_part:
            found.tables["class"] = (self._kind.by_part, self._parts.slices())
        else:
            label_N = np.array(self._number)
            ends = np.arange(1, RANGES_OF_NUMBERS) / RANGES_OF_NUMBERS
            # Quantiles are equal if many rows have one label, such as a number of stars.
            bounds = sorted(set(np.quantile(label_N, ends).tolist()))
            names = [f"up to {bound:.6g}" for bound in bounds] + ["above"]
            slices = by_bounds(error_N, label_N, bounds, names, self._kind.is_binary)
            found.tables["class"] = ("by the right number, in fifths", slices)
        if not self._kind.is_binary:
            found.remarks.append(f"{self._kind.plural} are near or far, so the tables show distances, not error rates")

    def _by_length(self, found: ErrorReport, error_N: np.ndarray) -> None:
        if (tokens_N := self._counted()) is None:
            return
        # With layout=sides each of two texts may have max_len tokens, so their sum does not show what was cut.
        is_apart = self._layout is not None and self._layout.name == "sides"
        data = self._source.config["data"]
        most = 0 if is_apart or data.get("long", "cut") != "cut" else int(data.get("max_len") or 0)
        bounds = sorted({*LENGTHS, most} - {0})
        starts = [1, *(bound + 1 for bound in bounds)]
        names = [
            f"{start}-{bound}{' (cut)' if most and start > most else ''}"
            for start, bound in zip(starts, bounds, strict=False)
        ] + [f"{starts[-1]} and more"]
        has_text_N = tokens_N > 0
        slices = by_bounds(error_N[has_text_N], tokens_N[has_text_N], [*bounds], names, self._kind.is_binary)
        found.tables["length"] = ("by length in tokens", slices)

    def _by_unknown(self, found: ErrorReport, error_N: np.ndarray) -> None:
        if (tokens_N := self._counted()) is None:
            return
        has_text_N = tokens_N > 0
        share_N = np.array(self._unknown)[has_text_N] / tokens_N[has_text_N]
        ends = [f"{end:.0%}" for end in UNKNOWN_SHARES]
        names = ["none", *(f"up to {end}" for end in ends[1:]), f"above {ends[-1]}"]
        slices = by_bounds(error_N[has_text_N], share_N, [*UNKNOWN_SHARES], names, self._kind.is_binary)
        found.tables["unknown"] = ("by share of unknown tokens", slices)

    def _counted(self) -> np.ndarray | None:
        """Return the number of tokens of each record, (N,); None if they could not be counted."""
        tokens_N = np.array(self._tokens)
        if self._counter is not None and not tokens_N.any():
            sentence = "by length, unknown tokens and overlap: the predictions keep no texts"
            self._remarks += [sentence] if sentence not in self._remarks else []
            return None
        return tokens_N if self._counter is not None else None

    def _by_overlap(self, found: ErrorReport, error_N: np.ndarray) -> None:
        if self._texts is None or not self._texts.are_kept:
            return
        training = None
        try:
            training = training_texts(self._source, self._texts.layout)
            overlap = self._texts.overlap(training)
        except (UserError, OSError) as error:
            reason = error.sentences[0] if isinstance(error, UserError) else str(error)
            found.remarks.append(f"overlap with training texts: they cannot be read ({reason})")
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
        parts.append((f"occurs several times in {self._source.name}", overlap.is_repeated_N))
        slices = [slice_of(name, error_N[mask_N], self._kind.is_binary) for name, mask_N in parts]
        found.tables["overlap"] = ("by overlap with training texts", slices)
        if overlap.conflicts:
            stand = "text stands" if overlap.conflicts == 1 else "texts stand"
            found.remarks.append(f"{overlap.conflicts:,} {stand} in {self._source.name} with several labels")

    def _files(self) -> list[SourceFile]:
        """Return the files of the set, which name the places of records; none if they are gone."""
        name = "train" if self._source.is_held_out else self._source.set_name
        try:
            return files_of(self._source).sets([name])[name]
        except (UserError, OSError, KeyError):
            return []

    def _find_label_errors(self, found: ErrorReport) -> None:
        if not self._kind.has_probabilities:
            # Training with folds would not help either.
            found.remarks.append(
                f"suspected label errors: there are none, since {self._kind.unsuspected}; read the first mistakes, "
                f"those with the largest {self._kind.ranked_by}"
            )
            return
        if self._are_cut:
            found.remarks.append(
                f"suspected label errors: there are none, since of more than {MANY} labels predictions keep the "
                f"probabilities of {KEPT}"
            )
            return
        if self._probabilities is None:
            found.remarks.append(
                "suspected label errors: they need predictions of every training row by a model that did not see it; "
                + _how_to_fold(self._source.run)
            )
            return
        try:
            errors = find_label_errors(self._probabilities, self._options.rank_by, are_sets=not self._kind.is_one_label)
        except UserError as error:
            found.remarks.append(f"suspected label errors: {error.sentences[0]}")
            return
        found.label_errors = errors
        wanted = {suspect.number for suspect in errors.suspects}
        # The file is read once more, since which records are suspected is known only after all of them, and all with
        # their texts may not fit into memory.
        records = {number: record for number, record in enumerate(self._source.records()) if number in wanted}
        found.suspects = [(suspect, records[suspect.number]) for suspect in errors.suspects]


def _how_to_fold(run: RunRecord) -> str:
    """Return where the out-of-fold predictions are, or the command that makes them."""
    if run.fold is not None:
        return f"give the folder of all folds, {path_text(run.folder.parent)}"
    kept = {key: value for key, value in run.overrides.items() if key not in ("folds", "fold", "resume", "data.dev")}
    command = ["python", "-m", "nlu.train", *(f"{key}={value}" for key, value in kept.items()), "folds=5"]
    return f"run {shlex.join(command)}, then report errors on its folder"
