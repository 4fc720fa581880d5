"""Asking a service that may be slow, away or full: what is asked again, and what may have been done already."""

import logging
import time
from collections.abc import Callable, Iterator
from enum import Enum
from typing import TypeVar

from nlu.config.errors import UserError
from nlu.storage.temporary import Pauses, Temporary

log = logging.getLogger(__name__)

T = TypeVar("T")
ATTEMPTS = 7
OURS = (TypeError, AttributeError, NameError, LookupError, ImportError, AssertionError)
"""what is never the service's fault"""
FIRST_WAIT_S, LONGEST_WAIT_S = 0.5, 20.0


class Fate(Enum):
    """What became of a request that failed."""

    REFUSED = "refused"
    """the service read it and will not do it"""
    NOT_DONE = "not done"
    """the service is full: it did nothing, and may be asked again"""
    UNKNOWN = "unknown"
    """no answer, or a broken one: it may have been done"""


class Failure(Exception):
    """A request that failed, in one sentence without secrets."""

    def __init__(self, fate: Fate, sentence: str, status: int | None = None):
        self.fate, self.sentence, self.status = fate, sentence, status
        super().__init__(sentence)


class Away(OSError, Temporary):
    """The service did not answer, however often it was asked: ask again later."""


def waits_s() -> Iterator[float]:
    """Return how long to wait before each further attempt."""
    return iter(Pauses(FIRST_WAIT_S, LONGEST_WAIT_S, ATTEMPTS - 1))


def asked(call: Callable[[], T], what: str) -> T:
    """Return the answer to a question, which changes nothing and may be asked any number of times.

    Raises Failure where the service refuses, Away where it does not answer.
    """
    delays_s = waits_s()
    while True:
        try:
            return call()
        except Failure as failure:
            if failure.fate is Fate.REFUSED:
                raise
            delay_s = next(delays_s, None)
            if delay_s is None:
                raise Away(f"{what}: {failure.sentence}") from None
            log.info("%s: %s; asking again", what, failure.sentence)
            time.sleep(delay_s)


def done_once(do: Callable[[], T], find: Callable[[], T | None], what: str) -> tuple[T, bool]:
    """Have something done that must not be done twice; returns its result, and whether it may be there twice.

    Where an attempt may have been done although no answer came, `find` looks for its result before it is tried again.
    A service may show late what it did, so whoever must be sure looks once more. Raises as `asked` does.
    """
    delays_s, in_doubt = waits_s(), False
    while True:
        try:
            return do(), in_doubt
        except Failure as failure:
            if failure.fate is Fate.REFUSED:
                raise
            delay_s = next(delays_s, None)
            in_doubt |= failure.fate is Fate.UNKNOWN
            if delay_s is not None:
                log.info("%s: %s; trying again", what, failure.sentence)
                time.sleep(delay_s)
            if in_doubt and (found := asked(find, what)) is not None:
                return found, False
            if delay_s is None:
                raise Away(f"{what}: {failure.sentence}") from None


def import_or_say(module: str, package: str, what: str) -> None:
    """Import a package of the extra `pai`. Raises UserError that names the command which installs it."""
    import importlib

    try:
        importlib.import_module(module)
    except ImportError as error:
        raise UserError(
            f"{what} needs the package {package}, which is not installed ({error}); pip install {package}, or "
            "pip install 'nlu[pai]'"
        ) from None
