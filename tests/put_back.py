"""What commands set in the process that runs them, put back: tests of other files share it."""

import logging
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

LOGGERS = ("nlu", "py.warnings")


@contextmanager
def process_put_back() -> Iterator[None]:
    """Put back the environment, the loggers, and the handlers of uncaught errors.

    The last would hide from pytest a thread of a later test that fails; the loggers, what a later test looks for.
    """
    loggers = [logging.getLogger(name) for name in LOGGERS]
    before = [(logger, logger.handlers[:], logger.level, logger.propagate) for logger in loggers]
    environment, hooks = dict(os.environ), (sys.excepthook, threading.excepthook)
    try:
        yield
    finally:
        sys.excepthook, threading.excepthook = hooks
        logging.captureWarnings(False)
        for logger, handlers, level, propagate in before:
            for handler in logger.handlers:
                if handler not in handlers:
                    handler.close()
            logger.handlers[:], logger.propagate = handlers, propagate
            logger.setLevel(level)
        # One by one: threads of servers read the environment meanwhile, and it is never empty.
        for name in os.environ.keys() - environment.keys():
            del os.environ[name]
        for name, value in environment.items():
            if os.environ.get(name) != value:
                os.environ[name] = value
