"""How an operation that failed temporarily is tried again.

A failure is temporary if the same operation may succeed later without any change to the command. The code that raises
an error decides this by its class (`nlu.config.errors.Temporary`). Every use is bounded, by count or by time;
after that the error is raised, and a job leaves its work to be continued (exit status 75).
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


def retried(call: Callable[[], T], pauses_s: Iterable[float], is_transient: Callable[[Exception], bool]) -> T:
    """Return the result of `call`, called again after each pause if its error `is_transient`; raises the last one."""
    remaining_s = iter(pauses_s)
    while True:
        try:
            return call()
        except Exception as error:
            if not is_transient(error) or (pause_s := next(remaining_s, None)) is None:
                raise
            log.debug("%s; trying again in %g s", error, pause_s)
        time.sleep(pause_s)
