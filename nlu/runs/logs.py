"""Where the log of a run goes: one file per process, and the console for the first process.

Only one process prints, and a second call does not duplicate handlers, so that the console stays readable.
"""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from logging.handlers import MemoryHandler
from pathlib import Path

from nlu.config.console import traceback_of
from nlu.config.errors import UserError
from nlu.config.redaction import hide
from nlu.config.words import with_origins
from nlu.display.progress import console, on_terminal

LOGGER_NAMES = ("nlu", "py.warnings")
HANDLER_PREFIX = "nlu:"
EARLY_RECORDS = 10_000


class HidingFormatter(logging.Formatter):
    """Hides secrets that libraries put into messages and tracebacks.

    Paths of copies in the cache are replaced by the addresses that they were copied from.
    """

    def format(self, record: logging.LogRecord) -> str:
        return hide(with_origins(super().format(record)))


class LineFormatter(HidingFormatter):
    """Formats the message only, with the level before it if it is above INFO."""

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record).rstrip()
        return text if record.levelno <= logging.INFO else f"{record.levelname.lower()}: {text}"


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


@contextmanager
def failures_kept() -> Iterator[None]:
    """Write the traceback of an error of the block to the log file, unless it is the user's; the console has it
    anyway."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        record = logging.LogRecord("nlu", logging.ERROR, "", 0, "%s", (traceback_of(error).rstrip(),), None)
        for handler in logging.getLogger("nlu").handlers:
            if isinstance(handler, logging.FileHandler):
                handler.handle(record)
        raise


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
    name = "log.txt" if rank == 0 else f"log.rank{rank}.txt"
    handler = logging.FileHandler(run_dir / name, mode="a", encoding="utf-8")
    handler.setFormatter(HidingFormatter("%(asctime)s %(levelname)s %(message)s", datefmt="%Y-%m-%dT%H:%M:%S%z"))
    return handler
