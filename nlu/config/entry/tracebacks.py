"""Tracebacks of errors that nobody caught, without the secrets of the addresses that others put into their texts."""

import sys
import threading
import traceback
from types import TracebackType

from nlu.storage.redaction import hide


def hide_tracebacks() -> None:
    """Have this process tell an error that ends it as Python does, but for secrets."""
    sys.excepthook = _tell
    threading.excepthook = _tell_of_thread


def print_traceback(error: BaseException) -> None:
    """Print an error and those that led to it, as Python does when it ends."""
    sys.stderr.write(hide("".join(traceback.format_exception(error))))
    sys.stderr.flush()


def _tell(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    print_traceback(error)


def _tell_of_thread(given: threading.ExceptHookArgs) -> None:
    if given.exc_value is None or isinstance(given.exc_value, SystemExit):
        return
    name = given.thread.name if given.thread is not None else "a thread"
    sys.stderr.write(f"Exception in thread {name}:\n")
    print_traceback(given.exc_value)
