"""Where the log of a run goes: one file per process, and the console for the first process.

Only one process prints, and a second call does not duplicate handlers, so that the console stays readable. The last
record of a run that is not complete says why it ended.
"""

import logging
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from logging.handlers import MemoryHandler
from pathlib import Path
from typing import Literal

from nlu.config.console import traceback_of
from nlu.config.errors import UserError
from nlu.config.redaction import hide
from nlu.config.sentences import with_origins
from nlu.display.progress_bars import console, on_terminal

LOGGER_NAMES = ("nlu", "py.warnings")
HANDLER_PREFIX = "nlu:"
EARLY_RECORDS = 10_000
LOG = "log.txt"
STOPPED = logging.INFO + 1
"""the level of the record that says how a run that has stopped continues"""
logging.addLevelName(STOPPED, "STOPPED")
RECORD = re.compile(r"\d{4}-\d\d-\d\dT\S+ (?P<level>[A-Z]+) (?P<message>.*)")
"""the first line of a record"""


class HidingFormatter(logging.Formatter):
    """Hides secrets that libraries put into messages and tracebacks.

    Paths of copies in the cache are replaced by the addresses that they were copied from.
    """

    def format(self, record: logging.LogRecord) -> str:
        return hide(with_origins(super().format(record)))


IN_FILE = HidingFormatter("%(asctime)s %(levelname)s %(message)s", datefmt="%Y-%m-%dT%H:%M:%S%z")


class LineFormatter(HidingFormatter):
    """Formats the message only, with the level before it if it is above INFO."""

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record).rstrip()
        return text if record.levelno < logging.WARNING else f"{record.levelname.lower()}: {text}"


class SharedConsoleHandler(logging.Handler):
    """Prints above the live progress bar, through the console that draws it."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            style = (
                "yellow" if record.levelno == logging.WARNING else "red" if record.levelno > logging.WARNING else None
            )
            console().print(self.format(record), style=style, soft_wrap=True)
        except Exception:
            self.handleError(record)


def set_up(run_dir: Path | None, rank: int, *, on_console: bool = True) -> None:
    """Send the logger "nlu" and Python's warnings to the log file of this process and, for rank 0, to standard error.

    Without `on_console`, standard error is not used. The file is `log.txt` (rank 0) or `log.rank1.txt`, ..., in
    `run_dir`; it is appended to. If `run_dir` is None, records are kept until a later call names the folder. A later
    call replaces the handlers of the former. Records do not reach the root logger, whose handlers would repeat them.
    """
    # Records that an earlier call kept until the folder was known.
    early = [record for handler in logging.getLogger("nlu").handlers for record in getattr(handler, "buffer", [])]
    handlers = _handlers(run_dir, rank, early, on_console)
    logging.captureWarnings(True)
    for name in LOGGER_NAMES:
        logger = logging.getLogger(name)
        _remove_handlers(logger)
        for handler in handlers:
            logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        logger.propagate = False


def begin(run_dir: Path, rank: int, *, standalone: bool) -> None:
    """Set up logging for a run whose folder may turn out to belong to another run: records wait until that is known.

    A job of a search (not `standalone`) has its own folder, and logs only to the file there: on the console the search
    prints one line for each event.
    """
    set_up(None if standalone else run_dir, rank, on_console=standalone)


@dataclass(frozen=True)
class End:
    """How a run ended that is not complete."""

    state: Literal["failed", "stopped"]
    """a run that stopped continues, as after a signal"""
    reason: str


def end_of(run_dir: Path, rank: int = 0) -> End | None:
    """Return the end that the last record of a log tells, of a traceback only its last line; None without one.

    Raises OSError if the log cannot be read.
    """
    log = run_dir / _file_name(rank)
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.is_file() else []
    # An error in the middle of a log was survived; only the last record tells how the run ended.
    last = next((place for place in reversed(range(len(lines))) if RECORD.fullmatch(lines[place])), None)
    record = RECORD.fullmatch(lines[last]) if last is not None else None
    if record is None or record["level"] not in ("ERROR", "CRITICAL", "STOPPED"):
        return None
    reason = _reason("\n".join([record["message"], *lines[last:][1:]]))
    return End("stopped" if record["level"] == "STOPPED" else "failed", reason)


def record_end(run_dir: Path, end: Exception | str, rank: int = 0, *, level: int = logging.ERROR) -> None:
    """Append why a run ended to its log, unless the log ends with that already. The console has it anyway.

    `end` is an error or a sentence. A log that cannot be written, as on a full disk, stays as it is.
    """
    if isinstance(end, UserError):
        text = " ".join("; ".join(end.sentences).splitlines())
    else:
        text = (end if isinstance(end, str) else traceback_of(end)).rstrip()
    line = IN_FILE.format(logging.LogRecord("nlu", level, "", 0, "%s", (text,), None))
    with suppress(OSError):
        known = end_of(run_dir, rank)
        if known is not None and known.reason == _reason(line.split(" ", 2)[2]):
            return
        run_dir.mkdir(parents=True, exist_ok=True)
        with open(run_dir / _file_name(rank), "a", encoding="utf-8") as file:
            file.write(f"{line}\n")


@contextmanager
def end_stays_last(run_dir: Path) -> Iterator[None]:
    """Repeat the end that a log tells, as its last record, if the block logs something after it."""
    end = None
    with suppress(OSError):
        end = end_of(run_dir)
    try:
        yield
    finally:
        if end is not None:
            record_end(run_dir, end.reason, level=STOPPED if end.state == "stopped" else logging.ERROR)


def _reason(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()] or [""]
    return lines[-1] if lines[0].startswith("Traceback") else lines[0]


def tear_down() -> None:
    """Close the log file: later records of this process do not belong to the run."""
    logging.captureWarnings(False)
    for name in LOGGER_NAMES:
        _remove_handlers(logging.getLogger(name))


def _remove_handlers(logger: logging.Logger) -> None:
    for handler in [old for old in logger.handlers if (old.name or "").startswith(HANDLER_PREFIX)]:
        logger.removeHandler(handler)
        handler.close()


def _handlers(
    run_dir: Path | None, rank: int, early: list[logging.LogRecord], on_console: bool
) -> list[logging.Handler]:
    # Without any handler, logging itself would print warnings of higher ranks to standard error.
    handlers: list[logging.Handler] = [logging.NullHandler()]
    if run_dir is None:
        # Never flushed by level or on close: the next call of `set_up` takes the records over.
        memory = MemoryHandler(capacity=EARLY_RECORDS, flushLevel=logging.CRITICAL + 1, flushOnClose=False)
        memory.buffer.extend(early)
        handlers.append(memory)
    else:
        file = _file_handler(run_dir, rank)
        for record in early:
            file.handle(record)
        handlers.append(file)
    if rank == 0 and on_console:
        handler: logging.Handler = SharedConsoleHandler() if on_terminal() else logging.StreamHandler(sys.stderr)
        handler.setFormatter(LineFormatter())
        handlers.append(handler)
    for number, each in enumerate(handlers):
        each.set_name(f"{HANDLER_PREFIX}{number}")
    return handlers


def _file_handler(run_dir: Path, rank: int) -> logging.Handler:
    run_dir.mkdir(parents=True, exist_ok=True)
    handler = logging.FileHandler(run_dir / _file_name(rank), mode="a", encoding="utf-8")
    handler.setFormatter(IN_FILE)
    return handler


def _file_name(rank: int) -> str:
    return LOG if rank == 0 else f"log.rank{rank}.txt"
