"""The rule for failures: which of them are temporary, and how often and after which pauses anything is tried again.

A failure is temporary where the same may succeed another time although nobody changed the command: a store or a service
that does not answer, credentials that are absent or have expired. It is final where somebody must change something: a
key that is refused, a bucket that does not exist, a value that is wrong. Whoever raises an error decides that once, by
its class; everybody else asks `is_temporary`.

What is temporary is tried again after pauses that double up to a limit and are spread at random, so that many processes
do not come back at the same moment. Each use has a bound, by number or by time. After it the error is told: a job then
leaves its work to be continued (status 75), and whoever starts it again counts how often it comes back without having
got any further.

Waiting for what is under way elsewhere is another thing: a lock, an instant between two renames, a job, a state of a
service. Nothing failed, so it is looked at in intervals of its own.
"""

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass

_SPREAD = 0.5
_random = random.SystemRandom()
"""forks would all draw the same numbers from another generator, and come back together"""


class Temporary(Exception):
    """Marks the classes of errors that are temporary."""


def is_temporary(error: BaseException | None) -> bool:
    """Whether an error is temporary, or was raised from one that is."""
    return any(isinstance(each, Temporary) for each in causes(error))


def causes(error: BaseException | None, *, with_context: bool = False) -> Iterator[BaseException]:
    """Yield an error and what it was raised from; `with_context` also what was handled when it was raised."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        implied = None if error.__suppress_context__ or not with_context else error.__context__
        error = error.__cause__ or implied


@dataclass(frozen=True)
class Pauses:
    """The pauses between tries, in seconds: iterating over it gives one after each try that failed.

    They begin at `first_s` and double up to `longest_s`, each spread by half of it. There are `count`, or no end of
    them: then whoever pauses has a bound in time.
    """

    first_s: float
    longest_s: float
    count: int | None = None

    def __iter__(self) -> Iterator[float]:
        pause_s = self.first_s
        for _ in itertools.count() if self.count is None else range(self.count):
            yield pause_s * _random.uniform(1 - _SPREAD, 1 + _SPREAD)
            pause_s = min(2 * pause_s, self.longest_s)
