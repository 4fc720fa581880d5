"""Requests to a service of PAI: the keys that sign them, how they fail, and which of them are repeated."""

import importlib
import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeVar

from nlu.config.errors import UserError
from nlu.storage.environment import name_of
from nlu.storage.redaction import HIDDEN, hide
from nlu.storage.temporary import Pauses, Temporary

log = logging.getLogger(__name__)

T = TypeVar("T")
ID, SECRET, TOKEN = (name_of("alibaba cloud", role) for role in ("key", "secret", "token"))
WAITS_S = Pauses(0.5, 20.0, 6)
"""the pauses between the attempts at one request"""
OURS = (TypeError, AttributeError, NameError, LookupError, ImportError, AssertionError)
"""errors that a bug of this package raises, never the service"""


@dataclass(frozen=True)
class Credentials:
    """The keys that sign requests; `repr` hides them."""

    id: str = field(repr=False)
    secret: str = field(repr=False)
    token: str | None = field(default=None, repr=False)

    @classmethod
    def from_environment(cls) -> "Credentials":
        """Return the keys of the environment. Raises UserError that names every variable that is not set."""
        if absent := [name for name in (ID, SECRET) if not os.environ.get(name)]:
            is_one = len(absent) == 1
            raise UserError(
                f"hydra/launcher=pai signs its requests, but {' and '.join(absent)} {'is' if is_one else 'are'} not "
                f"set; set {'it' if is_one else 'them'} in the environment, and in no configuration"
            )
        return cls(os.environ[ID], os.environ[SECRET], os.environ.get(TOKEN))

    def hidden(self, text: str) -> str:
        """Return a text of the service without these keys, which it may repeat."""
        for value in (self.secret, self.token, self.id):
            if value:
                text = text.replace(value, HIDDEN)
        return hide(text)


KEYS_REFUSED = f"the service does not accept the keys of {ID} and {SECRET}; correct these variables"
"""the message for unknown keys and wrong signatures"""


class Fate(Enum):
    """What became of a request that failed."""

    REFUSED = "refused"
    """the service read it and will not do it"""
    NOT_DONE = "not done"
    """the service is overloaded: it did nothing, and the request may be repeated"""
    UNKNOWN = "unknown"
    """no answer, or a broken one: the request may have been carried out"""


class RequestFailure(Exception):
    """A request that failed, in one sentence without secrets."""

    def __init__(self, fate: Fate, sentence: str, status: int | None = None):
        self.fate, self.sentence, self.status = fate, sentence, status
        super().__init__(sentence)


class ServiceUnavailable(OSError, Temporary):
    """The service did not answer any of the attempts; try again later."""


def asked(call: Callable[[], T], what: str) -> T:
    """Return the answer to a question, which changes nothing and can therefore be repeated.

    Raises RequestFailure where the service refuses, ServiceUnavailable where it does not answer.
    """
    return done_once(call, lambda: None, what)[0]


def done_once(do: Callable[[], T], find: Callable[[], T | None], what: str) -> tuple[T, bool]:
    """Carry out a request that must not be carried out twice; returns its result, and whether it may exist twice.

    If an attempt got no answer, it may have been carried out, so `find` looks for its result before the next attempt.
    The service may list a result late, so the caller looks once more if it must be sure. Raises as `asked` does.
    """
    in_doubt = False
    for wait_s in (*WAITS_S, None):
        try:
            return do(), in_doubt
        except RequestFailure as failure:
            if failure.fate is Fate.REFUSED:
                raise
            # One attempt without an answer is enough: a later refusal or success says nothing about it.
            in_doubt |= failure.fate is Fate.UNKNOWN
            error = ServiceUnavailable(f"{what}: {failure.sentence}")
        if wait_s is not None:
            log.info("%s; trying again", error)
            time.sleep(wait_s)
        # After the pause, since the service may list a job late.
        if in_doubt and (found := asked(find, what)) is not None:
            return found, False
    raise error


def import_or_say(module: str, package: str, what: str) -> None:
    """Import a package of the extra `pai`. Raises UserError with the command that installs it."""
    try:
        importlib.import_module(module)
    except ImportError as error:
        raise UserError(
            f"{what} needs the package {package}, which is not installed ({error}); pip install {package}, or "
            "pip install 'nlu[pai]'"
        ) from None
