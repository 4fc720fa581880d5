"""Micro-batches of as many examples as fit into a number of tokens, and the clock that counts their examples.

Axes: N examples, M micro-batches of an epoch.
"""

from bisect import bisect_right
from dataclasses import dataclass, field
from math import ceil

import numpy as np

from nlu.config.durations import Clock, Duration
from nlu.data.order import remember
from nlu.data.seeds import generator


class TokenOrder:
    """The examples of each step in micro-batches of at most `batch_tokens` tokens; otherwise as `Order`.

    The order of lengths is drawn once: examples are shuffled, sorted by length within buckets of about
    `bucket_batches` micro-batches, and cut where the next example would not fit. Every epoch has this order of
    lengths, so all epochs have the same number of steps, and the examples of any number of steps are counted without
    the epochs before. Which of the examples of a length stands at each of its places, and the order of the
    micro-batches, are drawn for each epoch. Every example is taken once in an epoch.
    """

    def __init__(
        self,
        lengths_N: np.ndarray,
        *,
        seed: int,
        batch_tokens: int,
        accumulation: int = 1,
        bucket_batches: int = 64,
        rank: int = 0,
        world_size: int = 1,
    ):
        """`lengths_N`: the tokens of each example, at most `batch_tokens`."""
        assert len(lengths_N) and int(lengths_N.max()) <= batch_tokens, "checked before"
        self._lengths_N, self._seed, self._accumulation = lengths_N, seed, accumulation
        self._rank, self._world_size = rank, world_size
        self._narrow = np.int32 if len(lengths_N) < 2**31 else np.int64
        drawn_N = lengths_drawn(lengths_N, seed=seed, batch_tokens=batch_tokens, bucket_batches=bucket_batches)
        # The places of an epoch by length: four bytes for each example, and as many for each epoch that is kept.
        self._places_N = np.argsort(drawn_N, kind="stable").astype(self._narrow)
        self._cuts = cuts(drawn_N, batch_tokens)
        self._orders: dict[int, np.ndarray] = {}
        self._shuffles: dict[int, np.ndarray] = {}
        self._seen: dict[int, np.ndarray] = {}

    @property
    def examples(self) -> int:
        """Examples of an epoch."""
        return len(self._lengths_N)

    @property
    def sizes_M(self) -> np.ndarray:
        """The number of examples of each micro-batch; the last one has those that are left."""
        return np.diff(self._cuts)

    @property
    def steps_per_epoch(self) -> int:
        """Steps that take every example once."""
        return -(-(len(self._cuts) - 1) // self._accumulation)

    def step(self, number: int) -> list[np.ndarray]:
        """Return this rank's share of each micro-batch of a step, counted from 0; a share may be empty."""
        # Every n-th example: a micro-batch is sorted by length, so the shares have about the same number of tokens.
        return [batch[self._rank :: self._world_size] for batch in self.global_step(number)]

    def global_step(self, number: int) -> list[np.ndarray]:
        """Return the examples of each micro-batch over all ranks; int64."""
        epoch, position = divmod(number, self.steps_per_epoch)
        first = position * self._accumulation
        order_N, chosen_M = self._order(epoch), self._shuffle(epoch)[first : first + self._accumulation]
        return [order_N[self._cuts[batch] : self._cuts[batch + 1]].astype(np.int64) for batch in chosen_M]

    def member_of(self, number: int) -> str:
        """Return the set of a mixture that a step is taken from; empty, since this order has one set."""
        return ""

    def epoch_of(self, number: int) -> int:
        """Return the epoch, counted from 0, in which a step falls."""
        return number // self.steps_per_epoch

    def seen(self, epoch: int) -> np.ndarray:
        """Return the number of examples that the first 0, 1, ... steps of an epoch take; (steps_per_epoch + 1,)."""
        if epoch not in self._seen:
            ends = np.concatenate([[0], np.cumsum(self.sizes_M[self._shuffle(epoch)])])
            # The last step may have fewer micro-batches.
            steps = np.minimum(np.arange(self.steps_per_epoch + 1) * self._accumulation, len(ends) - 1)
            remember(self._seen, epoch, ends[steps])
        return self._seen[epoch]

    def _shuffle(self, epoch: int) -> np.ndarray:
        """Return the numbers of the micro-batches in the order of an epoch; (M,)."""
        if epoch not in self._shuffles:
            # Drawn by itself, so that the clock need not order the examples. The rest stays last: the steps of an epoch
            # differ most at its end.
            full = len(self._cuts) - 2
            remember(self._shuffles, epoch, np.append(generator(self._seed, "batches", epoch).permutation(full), full))
        return self._shuffles[epoch]

    def _order(self, epoch: int) -> np.ndarray:
        """Return the examples of an epoch, so that those of each micro-batch are between its cuts; (N,)."""
        if epoch not in self._orders:
            # All ranks draw the same permutation and take their shares of it, so nothing is sent between them.
            order_N = generator(self._seed, "order", epoch).permutation(self.examples)
            by_length_N = order_N[np.argsort(self._lengths_N[order_N], kind="stable")]
            placed_N = np.empty(self.examples, self._narrow)
            placed_N[self._places_N] = by_length_N
            remember(self._orders, epoch, placed_N)
        return self._orders[epoch]


def lengths_drawn(lengths_N: np.ndarray, *, seed: int, batch_tokens: int, bucket_batches: int) -> np.ndarray:
    """Return the lengths in the order that every epoch has: sorted within buckets, unless `bucket_batches` is 1."""
    drawn_N = lengths_N[generator(seed, "lengths").permutation(len(lengths_N))].astype(np.int64)
    if bucket_batches == 1:
        return drawn_N
    # Buckets are cut from the shuffled lengths, so each has examples of all lengths.
    bucket_N = (np.cumsum(drawn_N) - drawn_N) // (batch_tokens * bucket_batches)
    # Every other bucket begins with the longest: a micro-batch that takes the end of a bucket and the beginning of the
    # next one has examples of about the same length too.
    rising_N = np.where(bucket_N % 2, -drawn_N, drawn_N)
    return drawn_N[np.lexsort((rising_N, bucket_N))]


def cuts(drawn_N: np.ndarray, batch_tokens: int) -> np.ndarray:
    """Return where micro-batches begin, and the end: each has as many consecutive examples as fit; (M + 1,)."""
    ends_N = np.cumsum(drawn_N, dtype=np.int64)
    found = [0]
    while (first := found[-1]) < len(drawn_N):
        before = int(ends_N[first - 1]) if first else 0
        # A micro-batch has at most `batch_tokens` examples, unless lengths are 0; the bound saves time.
        last = min(len(drawn_N), first + batch_tokens + 1)
        found.append(bisect_right(ends_N, before + batch_tokens, first, last))
    return np.array(found, np.int64)


@dataclass(frozen=True)
class TokenClock(Clock):
    """The clock of micro-batches by tokens, whose steps have different numbers of examples."""

    order: TokenOrder
    _steps: dict[Duration, int] = field(default_factory=dict, compare=False)

    @classmethod
    def of(cls, order: TokenOrder, accumulation: int) -> "TokenClock":
        """Return the clock of an order."""
        return cls(order.examples, int(order.sizes_M.max()) * accumulation, order)

    @property
    def steps_per_epoch(self) -> int:
        """Optimizer steps of one epoch."""
        return self.order.steps_per_epoch

    def examples(self, step: int) -> int:
        """Return the examples seen after `step` steps."""
        epochs, rest = divmod(step, self.steps_per_epoch)
        return epochs * self.num_examples + (int(self.order.seen(epochs)[rest]) if rest else 0)

    def steps(self, duration: Duration) -> int:
        """Return the smallest step, at least 1, at which `duration` is reached."""
        if duration.unit == "st":
            return int(duration.amount)
        # Schedules ask at every step, and a duration may end in an epoch that is not kept.
        if duration not in self._steps:
            epochs, rest = divmod(ceil(self._in_examples(duration)), self.num_examples)
            within = int(np.searchsorted(self.order.seen(epochs), rest)) if rest else 0
            self._steps[duration] = max(1, epochs * self.steps_per_epoch + within)
        return self._steps[duration]
