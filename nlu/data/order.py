"""The order of examples as a pure function of (seed, epoch, position): nothing is replayed on resume.

Axes: N examples, W examples of a window, B a batch.

Micro-batches of as many examples as fit into a number of tokens, and the clock that counts their examples.

Axes: N examples, M micro-batches of an epoch.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Protocol, TypeVar

import numpy as np

from nlu.config.durations import Clock, Duration
from nlu.data.seeds import generator

Key = TypeVar("Key")
Value = TypeVar("Value")
REMEMBERED = 2
"""windows whose order is kept: the one that steps are taken from, and the one before, which is still asked about"""


def remember(known: dict[Key, Value], key: Key, value: Value) -> None:
    """Keep a value, and forget the oldest beyond REMEMBERED: steps are taken in order, so it is not needed again."""
    while len(known) >= REMEMBERED:
        known.pop(next(iter(known)))
    known[key] = value


class Manifest(Protocol):
    """Examples that may still be written, in a fixed order: more are only added at the end."""

    lengths_N: np.ndarray
    """the number of tokens of each example that is there"""
    is_complete: bool
    """whether there will be no more"""

    def wait(self, rows: int) -> None:
        """Return once so many examples are there, or all are."""


class Whole:
    """A manifest to which nothing is added: the lengths of all examples of a set."""

    is_complete = True

    def __init__(self, lengths_N: np.ndarray):
        self.lengths_N = lengths_N

    def wait(self, rows: int) -> None:
        """Return at once."""


class Order:
    """The examples of each step, and the share of this rank.

    Every example is taken once in an epoch. Examples are shuffled within windows; without `window_rows` the whole set
    is one. In epoch 0 windows come in the order in which they are written, so that a step once taken stays the same
    while more is written; in later epochs they are shuffled too. A last window that is smaller than the others stays
    the last, so that only the last step of an epoch has fewer examples.
    """

    def __init__(
        self,
        examples: Manifest,
        *,
        seed: int,
        batch_size: int,
        accumulation: int = 1,
        bucket_batches: int = 64,
        window_rows: int | None = None,
        rank: int = 0,
        world_size: int = 1,
    ):
        """`window_rows` is rounded up to whole steps; None: one window, which needs all examples."""
        self._examples = examples
        self._seed = seed
        self._batch_size = batch_size
        self._accumulation = accumulation
        self._bucket_batches = bucket_batches
        self._rank, self._world_size = rank, world_size
        self._step_rows = batch_size * accumulation
        self._window_rows = None if window_rows is None else -(-window_rows // self._step_rows) * self._step_rows
        self._known: dict[tuple[int, int], np.ndarray] = {}

    def step(self, number: int) -> list[np.ndarray]:
        """Return this rank's share of each micro-batch of a step, counted from 0; a share may be empty."""
        # Every n-th example: a batch is sorted by length, so the shares have about the same number of tokens.
        return [batch[self._rank :: self._world_size] for batch in self.global_step(number)]

    def global_step(self, number: int) -> list[np.ndarray]:
        """Return the examples of each micro-batch over all ranks, once they are there."""
        epoch, position = self._place(number)
        if self._window_rows is None:
            return step_batches(self._window(epoch, 0), position, self._batch_size, self._accumulation)
        steps = self._window_rows // self._step_rows
        place, step = divmod(position, steps)
        window = self._windows_of(epoch)[place] if epoch else place
        return step_batches(self._window(epoch, window), step, self._batch_size, self._accumulation)

    @property
    def steps_per_epoch(self) -> int:
        """Steps that take every example once."""
        assert self._examples.is_complete
        return -(-len(self._examples.lengths_N) // self._step_rows)

    def member_of(self, number: int) -> str:
        """Return the set of a mixture that a step is taken from; empty, since this order has one set."""
        return ""

    def epoch_of(self, number: int) -> int:
        """Return the epoch, counted from 0, in which a step falls."""
        return self._place(number)[0]

    def _place(self, number: int) -> tuple[int, int]:
        """Return the epoch of a step, and the number of steps before it in that epoch."""
        if self._window_rows is not None:
            # Only whole windows can be taken as long as the end of the first epoch is unknown.
            self._examples.wait((number * self._step_rows // self._window_rows + 1) * self._window_rows)
        return divmod(number, self.steps_per_epoch) if self._examples.is_complete else (0, number)

    def _windows_of(self, epoch: int) -> Sequence[int]:
        """Return the windows in the order of an epoch after the first one."""
        assert self._window_rows is not None
        full = len(self._examples.lengths_N) // self._window_rows
        return [*generator(self._seed, "windows", epoch).permutation(full).tolist(), full]

    def _window(self, epoch: int, window: int) -> np.ndarray:
        """Return the examples of a window in their order."""
        if (epoch, window) not in self._known:
            begin = 0 if self._window_rows is None else window * self._window_rows
            end = len(self._examples.lengths_N) if self._window_rows is None else begin + self._window_rows
            order_W = epoch_order(
                self._examples.lengths_N[begin:end],
                seed=self._seed,
                epoch=epoch,
                batch_size=self._batch_size,
                bucket_batches=self._bucket_batches,
                window=None if self._window_rows is None else window,
            )
            # Four bytes for each example of an epoch are kept in memory, on every rank.
            narrow = np.int32 if end < 2**31 else np.int64
            remember(self._known, (epoch, window), (order_W + begin).astype(narrow))
        return self._known[epoch, window]


def epoch_order(
    lengths_N: np.ndarray,
    *,
    seed: int,
    epoch: int,
    batch_size: int,
    bucket_batches: int = 64,
    window: int | None = None,
) -> np.ndarray:
    """Return a permutation of range(N) whose consecutive runs of `batch_size` are the batches of this epoch.

    Examples are shuffled over the whole set, sorted by length within buckets of `bucket_batches` batches, cut into
    batches, and the batches are shuffled over the whole epoch. Every example occurs exactly once; only the last
    batch may be smaller. `bucket_batches=1` switches the sorting off. `window`: which of several windows these are.
    """
    count = len(lengths_N)
    rng = generator(seed, "order", *([epoch] if window is None else [epoch, window]))
    # All ranks draw the same permutation and take their shares of it, so nothing is sent between them.
    order_N = rng.permutation(count)
    full = count // batch_size
    if bucket_batches > 1:
        # Buckets are cut from the shuffled order, so each has examples of all lengths.
        bucket_N = np.arange(count) // (batch_size * bucket_batches)
        order_N = order_N[np.lexsort((lengths_N[order_N], bucket_N))]
    # The incomplete batch stays last: the steps of an epoch differ only at its end.
    head = order_N[: full * batch_size].reshape(full, batch_size)
    return np.concatenate([head[rng.permutation(full)].reshape(-1), order_N[full * batch_size :]])


def step_batches(order_W: np.ndarray, step: int, batch_size: int, accumulation: int) -> list[np.ndarray]:
    """Return the micro-batches of a step, counted from 0 in this order; at its end there may be fewer, or smaller."""
    first = step * batch_size * accumulation
    last = min(first + batch_size * accumulation, len(order_W))
    return [order_W[start : min(start + batch_size, last)].astype(np.int64) for start in range(first, last, batch_size)]


def evaluation_batches(lengths_N: np.ndarray, *, batch_size: int, rank: int, world_size: int) -> list[np.ndarray]:
    """Return this rank's batches for scoring: longest first, each example on exactly one rank, none repeated."""
    # The longest first, so that a lack of memory shows at once. Every rank gets about the same lengths.
    order_N = np.argsort(-lengths_N, kind="stable")
    per_rank = _per_rank(batch_size, world_size)
    mine = order_N[rank::world_size]
    return [mine[start : start + per_rank] for start in range(0, len(mine), per_rank)]


def _per_rank(batch_size: int, world_size: int) -> int:
    return max(1, batch_size // world_size)


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
