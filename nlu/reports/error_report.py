"""The errors of a run: one pass over its predictions, then tables of the error rate by properties of the rows.

Axes: N records.
"""

import heapq
import shlex
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import numpy as np

from nlu.config.errors import UserError
from nlu.config.sentences import called, counted, path_text, shortened
from nlu.data.dataset import SourceFile
from nlu.data.layouts import LAYOUTS
from nlu.display.console_tables import count_text, metric_text, numbers, print_table, table_of, texts
from nlu.metrics.kinds import KEPT, MANY, Kind
from nlu.reports.error_source import ErrorSource, files_of_set, token_counter
from nlu.reports.error_statistics import Parts, Probabilities, Slice, Suspect, by_bounds, find_label_errors, slice_of
from nlu.reports.flips import text_of
from nlu.reports.runs import RunRecord
from nlu.runs.predictions import Record
from nlu.storage.files import read_json

LENGTHS = tuple(1 << power for power in range(3, 14))
"""upper ends of the ranges of lengths, in tokens; data.max_len of the run is another"""
CHUNK_RECORDS = 2048

MAX_TEXT = 100
MOST_PARTS = 20
"""lines of the table by class"""
NUMBERS = frozenset({"probability", "similarity", "distance", "loss"})
"""headers of the columns of a mistake that hold numbers"""


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
    """title and slices, by `class` and `length`"""
    suspects: list[tuple[Suspect, Record]] | None = None
    """suspected labels with their records; None if they were not looked for"""
    files: list[SourceFile] = field(default_factory=list)
    """the files of the set"""
    remarks: list[str] = field(default_factory=list)
    """what was left out, and why"""

    def place_of(self, record: Record) -> str:
        """Return file:row of a record, as error messages about data name it."""
        number = record.get("file", 0)
        name = called(self.files[number].path) if number < len(self.files) else f"file {number}"
        return f"{name}:{record.get('row', record['id'])}"


def analyse(source: ErrorSource, rows: int = 20) -> ErrorReport:
    """Analyse predictions, keeping the `rows` most confident mistakes.

    Raises UserError without predictions, and if single records are neither right nor wrong.
    """
    first = next(source.records(), None)
    if first is None:
        raise UserError(f"{source.name} of {path_text(source.folder)} holds no predictions; give another set")
    if source.kind.unjudged:
        raise UserError(source.kind.unjudged)
    return _Pass(source, first, rows).report()


class _Pass:
    """One pass over the records, with what it keeps of each."""

    def __init__(self, source: ErrorSource, first: Record, rows: int):
        self._source, self._rows, self._remarks = source, rows, list(source.remarks)
        self._kind, self._parts = source.kind, Parts(source.kind)
        data = read_json(source.run.folder / "data.json") or {}
        layout = self._layout = LAYOUTS.get(data.get("layout") or "")
        if layout is None:
            self._remarks.append("by length: the run's data.json does not name its layout")
        self._counter = None if layout is None else token_counter(source.run.folder, layout)
        if layout is not None and self._counter is None:
            self._remarks.append("by length: the run has no checkpoint left, and so no tokenizer to count tokens")
        may_suspect = source.joined is not None and self._kind.has_probabilities
        self._are_cut = may_suspect and len(first["probabilities"]) < len(data.get("labels", ()))
        self._probabilities = Probabilities(first) if may_suspect and not self._are_cut else None
        self._error, self._tokens = array("d"), array("q")
        self._mistakes: list[tuple[float, int, Mistake]] = []

    def report(self) -> ErrorReport:
        records = self._source.records()
        while chunk := list(islice(records, CHUNK_RECORDS)):
            self._take(chunk)
        error_N = np.array(self._error)
        # Mistakes with equal confidence are ordered by their number, the second part of an entry.
        shown = [one for _, _, one in sorted(self._mistakes, key=lambda entry: entry[:2], reverse=True)]
        whole = slice_of("all", error_N, self._kind.is_binary)
        found = ErrorReport(self._source, self._kind, whole, shown, remarks=self._remarks)
        self._by_class(found)
        self._by_length(found, error_N)
        found.files = files_of_set(self._source)
        self._find_label_errors(found)
        return found

    def _take(self, chunk: Sequence[Record]) -> None:
        tokens = [0] * len(chunk) if self._counter is None else self._counter.count(chunk).tolist()
        self._tokens.extend(tokens)
        for record, count in zip(chunk, tokens, strict=True):
            number, error = len(self._error), self._kind.error(record)
            self._error.append(error)
            self._parts.add(self._kind.units(record))
            if error:
                confidence = self._kind.confidence(record, self._source.metrics_of(record))
                self._keep(Mistake(number, record, confidence, count))
            if self._probabilities is not None:
                self._probabilities.add(record)

    def _keep(self, mistake: Mistake) -> None:
        """Keep a mistake if it is one of the most confident; of equal ones the first."""
        # Entries are compared by their first two parts only; numbers differ, so a Mistake is never compared.
        entry = (mistake.confidence, -mistake.number, mistake)
        if len(self._mistakes) < self._rows:
            heapq.heappush(self._mistakes, entry)
        elif self._mistakes and entry[:2] > self._mistakes[0][:2]:
            heapq.heapreplace(self._mistakes, entry)

    def _by_class(self, found: ErrorReport) -> None:
        if self._kind.by_part and self._kind.is_binary:
            found.tables["class"] = (self._kind.by_part, self._parts.slices())
        if not self._kind.is_binary:
            found.remarks.append(f"{self._kind.plural} are near or far, so the tables show distances, not error rates")

    def _by_length(self, found: ErrorReport, error_N: np.ndarray) -> None:
        tokens_N = np.array(self._tokens)
        if self._counter is None or not tokens_N.any():
            if self._counter is not None:
                found.remarks.append("by length: the predictions keep no texts")
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

    def _find_label_errors(self, found: ErrorReport) -> None:
        if not self._kind.has_probabilities:
            # Training with folds would not help either.
            found.remarks.append(
                f"suspected label errors: there are none, since {self._kind.unsuspected}; read the first mistakes, "
                f"those with the largest {self._kind.ranked_by}"
            )
        elif self._are_cut:
            found.remarks.append(
                f"suspected label errors: there are none, since of more than {MANY} labels predictions keep the "
                f"probabilities of {KEPT}"
            )
        elif self._probabilities is None:
            found.remarks.append(
                "suspected label errors: they need predictions of every training row by a model that did not see it; "
                + _how_to_fold(self._source.run)
            )
        else:
            try:
                suspects = find_label_errors(self._probabilities, are_sets=not self._kind.is_one_label)
            except UserError as error:
                found.remarks.append(f"suspected label errors: {error.sentences[0]}")
                return
            wanted = {suspect.number for suspect in suspects}
            # The file is read once more, since which records are suspected is known only after all of them, and all
            # with their texts may not fit into memory.
            records = {number: record for number, record in enumerate(self._source.records()) if number in wanted}
            found.suspects = [(suspect, records[suspect.number]) for suspect in suspects]


def _how_to_fold(run: RunRecord) -> str:
    """Return where the out-of-fold predictions are, or the command that makes them."""
    if run.fold is not None:
        return f"give the folder of all folds, {path_text(run.folder.parent)}"
    kept = {key: value for key, value in run.overrides.items() if key not in ("folds", "fold", "resume", "data.dev")}
    command = ["python", "-m", "nlu.train", *(f"{key}={value}" for key, value in kept.items()), "folds=5"]
    return f"run {shlex.join(command)}, then report errors on its folder"


def print_report(found: ErrorReport, rows: int) -> None:
    """Print at most `rows` mistakes and suspected labels with their texts, the tables between them, and the remarks."""
    print_table(f"{path_text(found.source.folder)}  {headline(found)}", "")
    if found.mistakes and rows:
        _print_mistakes(found)
    for key, (title, slices) in found.tables.items():
        if slices:
            _print_slices(title, slices, MOST_PARTS if key == "class" else None, found.whole.rows)
    if found.suspects is not None:
        _print_suspects(found, rows)
    for remark in found.remarks:
        print_table(remark)


def headline(found: ErrorReport) -> str:
    """Return the error rate or mean distance of all rows, in a line."""
    whole = found.whole
    ends = "" if whole.low is None else f" (95 %: {metric_text(whole.low)} to {metric_text(whole.high)})"
    if whole.wrong is None:
        return f"{found.source.name}: {counted(whole.rows, 'row')}, mean distance {metric_text(whole.value)}{ends}"
    wrong = f"{whole.wrong:,} of {counted(whole.rows, 'row')} wrong"
    return f"{found.source.name}: {wrong}, {metric_text(whole.value)}{ends}"


def _print_mistakes(found: ErrorReport) -> None:
    described = [found.kind.described(one.record) for one in found.mistakes]
    headers = list(dict.fromkeys(header for cells in described for header in cells))
    table = table_of([*texts("row"), *((name, name in NUMBERS) for name in headers), *texts("text")])
    for one, cells in zip(found.mistakes, described, strict=True):
        shown = (shortened(cells.get(header, ""), MAX_TEXT) for header in headers)
        table.add_row(_place(found, one.record), *shown, text_of(one.record, MAX_TEXT))
    print_table(f"mistakes, the largest {found.kind.ranked_by} first", table, "")


def _print_slices(title: str, slices: Sequence[Slice], most: int | None, whole: int) -> None:
    is_rate = slices[0].wrong is not None
    more = list(dict.fromkeys(header for one in slices for header in one.more))
    counts = numbers("rows", *["wrong"] * is_rate, "error rate" if is_rate else "mean distance", "95 % from", "to")
    others = ((name, any(isinstance(one.more.get(name), int) for one in slices)) for name in more)
    table = table_of([*texts(title), *counts, *others])
    for one in slices[:most]:
        wrong = [count_text(one.wrong)] * is_rate
        values = map(metric_text, (one.value, one.low, one.high))
        table.add_row(one.name, count_text(one.rows), *wrong, *values, *(_cell(one.more.get(name)) for name in more))
    left = len(slices) - len(slices[:most])
    notes = [f"and {left:,} more with fewer errors"] * (left > 0)
    if not left and sum(one.rows for one in slices) > whole:
        notes.append("a row may stand in several of these lines")
    print_table(table, *notes, "")


def _cell(value: int | str | None) -> str:
    return "" if value is None else f"{value:,}" if isinstance(value, int) else shortened(value, MAX_TEXT)


def _print_suspects(found: ErrorReport, rows: int) -> None:
    suspects, count = found.suspects or [], found.whole.rows
    share = f"{len(suspects):,} of {counted(count, 'row')} ({len(suspects) / count:.1%})"
    table = table_of([*texts("row", "label", "likely"), *numbers("p of label"), *texts("text")])
    for suspect, record in suspects[:rows]:
        confidence, text = f"{suspect.self_confidence:.4f}", text_of(record, MAX_TEXT)
        table.add_row(_place(found, record), suspect.label, suspect.likely, confidence, text)
    left = len(suspects) - len(suspects[:rows])
    more = [f"and {left:,} more; --rows shows them"] * (left > 0 and bool(rows))
    title = f"suspected label errors, {share}, the likeliest first (confident learning)"
    print_table(title, *[table] * bool(suspects[:rows]), *more, "")


def _place(found: ErrorReport, record: Record) -> str:
    fold = f"fold {record['fold']}, " if "fold" in record else ""
    path, _, row = found.place_of(record).rpartition(":")
    return f"{fold}{Path(path).name}:{row}"
