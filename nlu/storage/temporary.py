"""Which failures are temporary, and after which pauses an operation is tried again.

A failure is temporary if the same operation may succeed later without any change to the command: a service that does
not respond, or credentials that are absent or expired. It is permanent if the user must change something: a rejected
key, a bucket that does not exist, a wrong value. The code that raises an error decides this once, by the error's class;
all other code asks `nlu.config.errors.is_temporary`.

Temporary failures are retried after pauses that double up to a limit and are spread at random, so that many processes
do not return at the same moment. Every use is bounded, by count or by time. After that the error is raised: a job then
leaves its work to be continued (exit status 75), and what restarts it counts how often it returns without progress.

Waiting for something in progress elsewhere is different: a lock, the instant between two renames, a job, a state of a
service. Nothing failed there, so it is polled at its own intervals.
"""

import itertools
import logging
import random
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

log = logging.getLogger(__name__)

T = TypeVar("T")
_SPREAD = 0.5
_random = random.SystemRandom()
"""A seeded generator would give the same numbers to all forks, which would then return together."""


@dataclass(frozen=True)
class Pauses:
    """The pauses between tries, in seconds. Iterating yields one pause for each failed try.

    The first is `first_s`; they double up to `longest_s`, and each is spread by half of its length. There are `count`
    pauses, or infinitely many if it is None: the caller then sets a bound in time.
    """

    first_s: float
    longest_s: float
    count: int | None = None

    def __iter__(self) -> Iterator[float]:
        pause_s = self.first_s
        for _ in itertools.count() if self.count is None else range(self.count):
            # Only the yielded value is spread, so that the spread does not add up.
            yield pause_s * _random.uniform(1 - _SPREAD, 1 + _SPREAD)
            pause_s = min(2 * pause_s, self.longest_s)


def _log_retry(error: Exception, pause_s: float) -> None:
    log.debug("%s; trying again in %g s", error, pause_s)


def retried(
    call: Callable[[], T],
    pauses_s: Iterable[float],
    is_transient: Callable[[Exception], bool],
    *,
    report: Callable[[Exception, float], None] = _log_retry,
) -> T:
    """Return the result of `call`, which is called again after each pause if its error `is_transient`.

    `report` is given the error and the pause before each further try. Raises the last error.
    """
    remaining_s = iter(pauses_s)
    while True:
        try:
            return call()
        except Exception as error:
            if not is_transient(error) or (pause_s := next(remaining_s, None)) is None:
                raise
            report(error, pause_s)
        time.sleep(pause_s)
