"""Predict the rows of a file and write them with their predictions, on this rank.

Rows are read in chunks of CHUNK_ROWS, so memory does not grow with their number. Rank r predicts every chunk whose
number is r modulo the number of ranks. Each chunk is a piece of the output, which is kept if the command is killed.
Several jobs claim chunks one by one (`nlu.inference.claimed`).
"""

import json
import logging
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Protocol, TypeVar

from nlu.config.command_keys import STANDARD, Encode, Predict
from nlu.config.console import leave_output
from nlu.config.errors import DataError, UserError, keys_called
from nlu.config.sentences import counted
from nlu.data.dialect import KEYS as DIALECT_KEYS
from nlu.data.dialect import PLAIN
from nlu.data.examples import in_memory
from nlu.data.fields import idle_keys
from nlu.data.layouts import Values
from nlu.data.originals import Original, Originals, Start
from nlu.data.reader import BadRow, Row
from nlu.data.store import EncodedRows
from nlu.data.windows import Lengths
from nlu.display.progress_bars import Bar, Progress
from nlu.inference.cells import Columns, OutputFormat, PredictedRow, VectorColumns, columns_of, require_predicting
from nlu.inference.claimed import Claimed, Team, claimed, piece_names, require_shareable
from nlu.inference.input_rows import bad_row, found, originals_for, require_usable
from nlu.inference.locate import Located
from nlu.inference.output_formats import output_of
from nlu.inference.output_pieces import Pieces, pairs_of, pieces_of
from nlu.inference.predictor import Predictor
from nlu.inference.ranking import RankingKind, joined
from nlu.inference.ranking import pairs_of as pairs_of_row
from nlu.inference.text_vectors import VectorForm
from nlu.inference.trained import load_trained
from nlu.runs import logs
from nlu.storage.cache import file_digest
from nlu.storage.files import json_text
from nlu.training.ranks import Ranks, process_group

log = logging.getLogger(__name__)

CHUNK_ROWS = 4096
INDEX = "index"
"""the piece with the places of all chunks"""
SLOWEST_BYTES_S = 1e6
"""bytes of a file that are read and checked in a second, at the slowest"""
KEYS = {f"data.{key}": f"input.{key}" for key in ("fields", "format", "header", *DIALECT_KEYS)}
"""the names of keys in errors of the readers of training rows, and their names in this command"""
LISTED_CUT = 3
Rows = TypeVar("Rows", Predict, Encode)
Chunk = list[tuple[Row | BadRow, Original]]


class Computes(Protocol):
    """What adds something to rows, as `Predictor` does, whose methods these are."""

    @property
    def shown(self) -> str: ...
    @property
    def lengths(self) -> Lengths: ...
    @property
    def can_window(self) -> bool: ...
    def settings(self) -> dict[str, object]: ...
    def problem(self, values: Values) -> tuple[str, str] | None: ...
    def encode(self, rows: Sequence[Values]) -> EncodedRows: ...
    def predict(
        self, encoded: EncodedRows, *, with_logits: bool = False, form: VectorForm | None = None,
        advance: Callable[[int], None] = lambda rows: None,
    ) -> list[dict[str, Any]]: ...  # fmt: skip


def run_prediction(config: Predict, located: Located) -> int:
    """Predict all rows of the input; returns the exit status.

    Raises UserError for the user's mistakes.
    """

    def begin(ranks: Ranks) -> Callable[[Predict, Path], Work]:
        trained = load_trained(located, precision=config.precision, long=config.long)
        # Before any row is looked at: a run that predicts none may read no rows of this kind.
        require_predicting(trained)
        predictor = Predictor(trained, ranks.device, batch_size=config.batch_size, owns=True, compile=config.compile)
        return partial(work_of, predictor=predictor)

    return over_files(config, begin)


def over_files(config: Rows, begin: Callable[[Ranks], Callable[[Rows, Path], "Work"]]) -> int:
    """Do the work of every file of the input; returns the exit status.

    `begin` loads what computes rows, and returns the function that makes the work of a file. Raises UserError for the
    user's mistakes.
    """
    with process_group(config.device, keys="") as ranks:
        logs.set_up(None, ranks.rank)
        pairs = pairs_of(config.input.path, config.output)
        for _, output in pairs:
            require_shareable(Team.of(config), ranks.world_size, output)
        if ranks.world_size > 1 and STANDARD in (config.input.path, config.output):
            raise UserError("input or output is -, which only a single process can use; set devices=1, or name files")
        outputs = [pieces_of(output) for _, output in pairs if output != STANDARD and config.jobs == 1]
        # Before the checkpoint is loaded, which takes longer than this check.
        for pieces in outputs if ranks.is_first else ():
            pieces.require_place()
        make = begin(ranks)
        with ExitStack() as held, keys_called(KEYS):
            works = []
            # All rows of all files are read before the first one is predicted.
            for name, output in pairs:
                own = replace(config, input=replace(config.input, path=name), output=output)
                path = held.enter_context(found(name, config.input.format))
                works.append(make(own, path))
            if idle := list(idle_keys(vars(config.input), {work.source.file_format for work in works}, "input")):
                raise UserError(*idle)
            for work in works:
                work.check(held)
            for work in works:
                work.plan()
            for work in works:
                work.run(ranks)
        for pieces in outputs if ranks.is_first else ():
            pieces.clear()
    return 0


def work_of(config: Predict, path: Path, predictor: Predictor) -> "Work":
    """Return the work of a file. Raises UserError for the user's mistakes."""
    trained, form = predictor.trained, None
    source = originals_for(trained, config.input, path)
    if config.vectors:
        if trained.layout.name == "sides":
            raise UserError(
                "vectors is true, but this run encodes the two texts of a row apart; encode each of them by python -m "
                "nlu.encode with input.fields={text: COLUMN}"
            )
        form = VectorForm(config.dims, False, config.dtype)
    elif config.dims is not None or config.dtype != "float32":
        raise UserError("dims and dtype are of vectors, but vectors is false; set vectors=true, or leave them out")
    columns = columns_of(
        trained, prefix=config.prefix, scores=config.scores, logits=config.logits, spans=config.spans, form=form
    )
    if "candidates" in source.fields:
        if config.logits or form is not None:
            raise UserError(f"logits or vectors is true, but rows of {path} have candidates; leave out both")
        columns = replace(columns, kind=RankingKind())
    label_separator = trained.config.data.get("label_separator", "|")
    output = output_of(config.output, source, columns, label_separator, keeps=config.columns)
    return Work(predictor, source, columns, output, config, label_separator)


@dataclass
class Work:
    """Predicts a file chunk by chunk, and counts its rows."""

    predictor: Computes
    source: Originals
    columns: Columns | VectorColumns
    output: OutputFormat
    config: Predict | Encode
    separator: str = "|"
    """of several labels in a cell"""
    rows: int = 0
    starts: list[Start | None] = field(default_factory=list)
    """with several jobs: the place of each chunk in the file; None: all rows before it must be read"""
    shared: Claimed | None = None
    """with several jobs: the pieces of the output"""
    began_s: float = 0.0
    predicted: int = 0
    empty: int = 0
    cut: int = 0
    first_cut: list[int] = field(default_factory=list)
    """the first rows that were cut"""
    is_output_closed: bool = False
    """whether the reader of standard output has closed it"""
    bar: Bar = field(init=False)

    def check(self, held: ExitStack) -> None:
        """Read all rows once, before any is predicted: a bad row in the last line is reported within seconds, and
        nothing is written then. Of several jobs only one does so, and the others get what it found."""
        if self.config.jobs == 1:
            self.rows = self._require_usable()
            return
        self.plan()
        output = self.config.output
        pieces = claimed(output, self._plan(), Team.of(self.config), pieces_of(output).require_place)
        self.shared = held.enter_context(pieces)
        self.shared.run([INDEX], self._index, self.source.path.stat().st_size / SLOWEST_BYTES_S)
        if (index := self.shared.get(INDEX)) is None:
            return
        found = json.loads(index)
        if found["problems"]:
            raise DataError(*found["problems"])
        self.rows, self.starts = found["rows"], [start and Start(*start) for start in found["starts"]]

    def _index(self, _: str) -> bytes:
        """Check all rows; return their number and the place of each chunk, or what is wrong, as JSON."""
        starts: list[Start | None] = []
        try:
            rows, problems = self._require_usable(self.source.rows_and_starts(CHUNK_ROWS, starts)), []
        except DataError as error:
            rows, problems = 0, error.problems
        return json_text({"rows": rows, "starts": starts, "problems": problems}).encode()

    def _require_usable(self, rows: Iterable[tuple[Row | BadRow, Original]] | None = None) -> int:
        may_skip, most = self.config.on_bad_row == "skip", self.config.max_rows
        writable = self.output.require_writable
        problem = self.predictor.problem
        return require_usable(self.source, problem, writable, may_skip=may_skip, max_rows=most, rows=rows)

    def plan(self) -> None:
        """With compile=true, choose the shapes of batches by the first rows, whatever was predicted before a kill."""
        predictor = self.predictor
        if not isinstance(predictor, Predictor) or predictor.compiled is None or predictor.compiled.scored.shapes:
            return
        if first := next(filter(None, map(self._usable, self._chunks())), None):
            encoded = predictor.encode([pair for _, row in first for pair in pairs_of_row(row.values)])
            predictor.plan(in_memory(encoded, predictor.trained.layout))

    def run(self, ranks: Ranks) -> None:
        """Predict all rows and write them. All ranks must call it."""
        where = f"{ranks.world_size} x {ranks.device.type}"
        log.info("%s; %s on %s", self.predictor.shown, counted(self.rows, "row"), where)
        self.began_s = time.monotonic()
        with Progress(enabled=ranks.is_first) as progress, progress.task("predicting", self.rows) as self.bar:
            if self.config.output == STANDARD:
                self.to_standard_output()
            elif self.shared is not None:
                if self.shared.is_done:
                    log.info("%s is complete; other jobs wrote it", self.config.output)
                    return
                names = piece_names(len(self.starts))
                self.shared.run(names, lambda name: self.piece(self._chunk(int(name))))
                self.shared.join(names, self.output)
            else:
                pieces = pieces_of(self.config.output)
                if ranks.from_first(ranks.is_first and pieces.is_finished(self._plan())):
                    if ranks.is_first:
                        log.info("%s is complete; the same command wrote it", pieces.shown)
                    return
                self.to_file(pieces, ranks)
        if ranks.is_first:
            self.log_result(self.rows)

    def to_file(self, pieces: Pieces, ranks: Ranks) -> None:
        with pieces.held(self._plan()) if ranks.is_first else nullcontext(0) as there:
            if there:
                log.info("continuing: %d pieces of %d rows exist", there, CHUNK_ROWS)
            # The other ranks may write once the first has checked the plan.
            ranks.barrier()
            count = 0
            # Each rank reads the whole file and keeps its chunks: reading is cheap beside predicting, and no rank waits
            # for another to hand out rows.
            for number, chunk in enumerate(self._chunks()):
                count += 1
                # Pieces are written atomically, so a piece that exists is complete, even if another rank wrote it
                # before a kill.
                if pieces.has(number):
                    self.bar.advance(len(chunk))
                elif number % ranks.world_size == ranks.rank:
                    pieces.write(number, self.piece(chunk))
                else:
                    self.bar.advance(len(chunk))
            ranks.barrier()
            if ranks.is_first:
                pieces.finish(count, self.output)
            ranks.barrier()

    def to_standard_output(self) -> None:
        try:
            sys.stdout.buffer.write(self.output.head())
            for chunk in self._chunks():
                sys.stdout.buffer.write(self.piece(chunk))
                # A reader such as `head` sees each chunk when it is predicted, and a closed pipe is noticed before the
                # next one.
                sys.stdout.buffer.flush()
        except BrokenPipeError:
            leave_output()
            self.is_output_closed = True

    def log_result(self, rows: int) -> None:
        """Log how many rows were predicted, cut and left out."""
        whose = "" if self.predicted + self.empty == rows else ", of those that this process predicted"
        if self.empty:
            log.warning("no prediction for %s that cannot be used%s", counted(self.empty, "row"), whose)
        if self.cut:
            first = ", ".join(map(str, self.first_cut)) + (", ..." if self.cut > LISTED_CUT else "")
            remedy = "; long=windows reads such rows whole" if self.predictor.can_window else ""
            what = f"{counted(self.cut, 'row')}{whose} ({self.source.path}:{first})"
            log.info("cut to data.max_len, %d tokens: %s%s", self.predictor.lengths.max_len, what, remedy)
        if self.is_output_closed:
            log.info("standard output was closed before %s were written", counted(rows, "row"))
            return
        speed = self.predicted / (time.monotonic() - self.began_s)
        place = "standard output" if self.config.output == STANDARD else self.config.output
        shown = f"{speed:,.0f}" if speed >= 10 else f"{speed:.2g}"
        own = f"{self.predicted:,}"
        log.info("%s: %s, %s predicted by this process, %s rows/s", place, counted(rows, "row"), own, shown)

    def _chunks(self) -> Iterator[Chunk]:
        rows = islice(self.source.rows(), self.config.max_rows)
        while chunk := list(islice(rows, CHUNK_ROWS)):
            yield chunk

    def _chunk(self, number: int) -> Chunk:
        """Return a chunk by its number, from 0, for one of several jobs."""
        start, first = self.starts[number], number * CHUNK_ROWS
        rows = self.source.rows(start)
        skipped = 0 if start is not None else first
        return list(islice(rows, skipped, skipped + min(CHUNK_ROWS, self.rows - first)))

    def piece(self, chunk: Chunk) -> bytes:
        """Predict a chunk; returns it in the format of the output."""
        usable, ranks = self._usable(chunk), "candidates" in self.source.fields
        cells = [self.columns.empty() for _ in chunk]
        if usable:
            numbered = [(row.number, pair) for _, row in usable for pair in pairs_of_row(row.values)]
            encoded = self.predictor.encode([pair for _, pair in numbered])
            found = self.predictor.predict(
                encoded,
                with_logits=self.columns.logits,
                form=self.columns.form,
                advance=lambda rows: self.bar.advance(0 if ranks else rows),
            )
            for (place, row), one in zip(usable, joined([row.values for _, row in usable], found), strict=True):
                cells[place] = self.columns.cells(row.values, one)
            cut = dict.fromkeys(row for (row, _), is_cut in zip(numbered, encoded.cut_N, strict=True) if is_cut)
            self.cut += len(cut)
            self.first_cut += islice(cut, LISTED_CUT - len(self.first_cut))
        self.predicted += len(usable)
        self.empty += len(chunk) - len(usable)
        # The rows of predictions are pairs where rows have candidates.
        self.bar.advance(len(chunk) if ranks else len(chunk) - len(usable))
        path = self.source.path
        return self.output.piece(
            [
                PredictedRow(original, own, f"{path}:{row.number}")
                for (row, original), own in zip(chunk, cells, strict=True)
            ]
        )

    def _usable(self, chunk: Chunk) -> list[tuple[int, Row]]:
        """Return the rows that can be used, with their places in a chunk."""
        # That was checked in the first pass, but 8 bytes for each row of a large file were not kept.
        return [
            (place, row)
            for place, (row, _) in enumerate(chunk)
            if isinstance(row, Row) and bad_row(row, self.source, self.predictor.problem) is None
        ]

    def _plan(self) -> dict[str, object]:
        """Return everything that determines the bytes of the output."""
        config = self.config
        form = {} if self.columns.form is None else {"vectors": asdict(self.columns.form)}
        return {
            **self.predictor.settings(),
            **form,
            "separator": self.separator,
            "input": file_digest(self.source.path),
            "reading": [
                self.source.file_format,
                self.source.fields,
                self.source.header,
                *([] if self.source.dialect == PLAIN else [self.source.dialect.settings()]),
            ],
            "columns": self.columns.holds,
            "input columns": config.columns,
            "on_bad_row": config.on_bad_row,
            "max_rows": config.max_rows,
            "chunk_rows": CHUNK_ROWS,
        }
