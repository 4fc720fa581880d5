"""Combine the rows of concurrent requests into packed batches.

One thread owns the model. It takes waiting rows up to the size of a batch and never waits for more, so a single request
is computed at once, and batches fill up under load. The answer for a row depends only on that row, so batching changes
no answer. Longer work, such as an explanation, is done in parts between batches, one task after another, so rows wait
for at most one part.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

from nlu.config.sentences import counted
from nlu.data.layouts import Values

log = logging.getLogger(__name__)

Found = dict[str, Any]


class Model(Protocol):
    """What computes rows; rows of one and the same model share batches."""

    def encode(self, rows: Sequence[Values]) -> Any:
        """Return the tokens of rows, which must be valid."""

    def predict(self, encoded: Any, *, with_logits: bool = False) -> list[Found]:
        """Return a record for each row."""

    def try_out(self) -> None:
        """Compute a simple row."""


Parts = Generator[None, None, object]
"""a longer task: a generator that yields between its parts, and returns its result"""
MOST_LONG = 16
"""the number of longer tasks that may wait"""
MOST_BATCHES = 8
"""the number of batches after which a part of a longer task is due, so that many rows delay it but do not stop it"""


class Busy(Exception):
    """Too many rows or tasks are waiting."""


@dataclass
class _Request:
    """The rows of a request, which are answered together."""

    predictor: Model
    values: Sequence[Values]
    with_logits: bool
    answer: "Future[list[Found]]" = field(default_factory=Future)
    found: list[Found] = field(default_factory=list)

    def take(self, found: list[Found]) -> None:
        """Add the results of the next rows; after the last ones, the request is answered."""
        self.found += found
        if len(self.found) == len(self.values):
            _settle(self.answer, self.found)


@dataclass
class _Piece:
    """A part of the rows of a request, at most a batch."""

    request: _Request
    values: Sequence[Values]
    since_s: float = field(default_factory=time.perf_counter)


@dataclass
class _Long:
    """A longer task for the thread of the model."""

    parts: Parts
    answer: "Future[object]" = field(default_factory=Future)


class Batcher:
    """Computes the rows of all requests in one thread."""

    def __init__(
        self,
        *,
        batch_size: int,
        most_waiting: int,
        on_batch: Callable[[int], None] = lambda rows: None,
        on_phase: Callable[[str, float], None] = lambda phase, seconds: None,
    ):
        """`batch_size` and `most_waiting` count rows; `on_batch` is called with the number of rows of each batch, and
        `on_phase` with the seconds that its pieces have waited, and that it was tokenized and computed."""
        self._batch_size, self._most_waiting = batch_size, most_waiting
        self._on_batch, self._on_phase = on_batch, on_phase
        self._pieces: deque[_Piece] = deque()
        self._long: deque[_Long] = deque()
        self._begun: _Long | None = None
        """the current longer task; the next one starts when it has ended"""
        # The condition guards the queues and counters. `found` of a request and the predictors belong to the thread of
        # the model.
        self._rows = self._batches_since_part = 0
        self._changed = threading.Condition()
        self._is_closed = self._is_broken = False
        # A daemon, so that a long batch cannot keep a process alive that ends by an error.
        self._thread = threading.Thread(target=self._work, name="model", daemon=True)
        self._thread.start()

    @property
    def waiting_rows(self) -> int:
        """The number of rows that wait to be computed."""
        # Without the lock: reading one integer is atomic, and the gauge may be one batch late.
        return self._rows

    @property
    def is_alive(self) -> bool:
        """Whether the thread of the model runs and can compute rows."""
        return self._thread.is_alive() and not self._is_broken

    def submit(self, predictor: Model, values: Sequence[Values], *, with_logits: bool = False) -> "Future[list[Found]]":
        """Predict rows; the result has the order of the rows.

        Cancelling the future skips rows that are not computed yet. Raises Busy if too many rows wait.
        """
        request = _Request(predictor, values, with_logits)
        if not values:
            request.answer.set_result([])
            return request.answer
        pieces = [
            _Piece(request, values[start : start + self._batch_size])
            for start in range(0, len(values), self._batch_size)
        ]
        with self._changed:
            # A request that is larger than the limit is accepted if no other rows wait.
            if self._rows and self._rows + len(values) > self._most_waiting:
                raise Busy(f"{counted(self._rows, 'row')} waiting, of at most {self._most_waiting:,}")
            self._pieces += pieces
            self._rows += len(values)
            self._changed.notify()
        return request.answer

    def submit_long(self, parts: Parts) -> "Future[object]":
        """Do a longer task in parts, with waiting rows between them.

        Cancelling the future ends it before its next part. Raises Busy if too many longer tasks wait.
        """
        long = _Long(parts)
        with self._changed:
            # Cancelled tasks do not count.
            self._long = deque(one for one in self._long if not one.answer.cancelled())
            if (waiting := len(self._long) + (self._begun is not None)) >= MOST_LONG:
                raise Busy(f"{waiting} explanations wait, of at most {MOST_LONG}")
            self._long.append(long)
            self._changed.notify()
        return long.answer

    def close(self) -> None:
        """Finish all waiting work and end the thread."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        self._thread.join()

    def _work(self) -> None:
        while (taken := self._next()) is not None:
            if isinstance(taken, _Long):
                self._do_part(taken)
                continue
            # Cancelled by a client that has gone, or failed by an earlier piece of the same request.
            live = [piece for piece in taken if not piece.request.answer.done()]
            if live:
                now_s = time.perf_counter()
                self._on_phase("waiting", sum(now_s - piece.since_s for piece in live))
                self._predict(live)

    def _next(self) -> list[_Piece] | _Long | None:
        """Wait for work and return it; None when the batcher is closed and no work is left."""
        with self._changed:
            while not self._pieces and not self._long and self._begun is None:
                if self._is_closed:
                    return None
                self._changed.wait()
            if self._begun is None and self._long:
                self._begun = self._long.popleft()
            if self._begun is not None and (not self._pieces or self._batches_since_part >= MOST_BATCHES):
                self._batches_since_part = 0
                return self._begun
            self._batches_since_part += 1
            first = self._pieces.popleft()
            taken, rows = [first], len(first.values)
            # After a reload, rows of the other predictor need a separate batch.
            while (
                self._pieces
                and rows + len(self._pieces[0].values) <= self._batch_size
                and self._pieces[0].request.predictor is first.request.predictor
            ):
                taken.append(self._pieces.popleft())
                rows += len(taken[-1].values)
            self._rows -= rows
            return taken

    def _predict(self, pieces: list[_Piece]) -> None:
        predictor: Any = pieces[0].request.predictor
        values = [dict(row) for piece in pieces for row in piece.values]
        try:
            self._on_batch(len(values))
            with_logits = any(piece.request.with_logits for piece in pieces)
            began_s = time.perf_counter()
            encoded = predictor.encode(values)
            encoded_s = time.perf_counter()
            found = predictor.predict(encoded, with_logits=with_logits)
            self._on_phase("tokenizing", encoded_s - began_s)
            self._on_phase("computing", time.perf_counter() - encoded_s)
        # A panic in native code of a library derives from BaseException only, and this thread must survive it.
        except BaseException as error:
            if len(pieces) == 1:
                log.exception("a request could not be computed")
                _fail(pieces[0].request.answer, error)
                # One bad row must not take the server out of a load balancer, but a device that is lost should.
                self._is_broken = not _works(predictor)
                return
            # Compute them one by one, so that only the request that causes the error fails.
            for piece in pieces:
                self._predict([piece])
            return
        self._is_broken = False
        start = 0
        for piece in pieces:
            piece.request.take(found[start : start + len(piece.values)])
            start += len(piece.values)

    def _do_part(self, long: _Long) -> None:
        """Do the next part of the current longer task."""
        try:
            if not long.answer.cancelled():
                next(long.parts)
                return
            long.parts.close()
        except StopIteration as end:
            _settle(long.answer, end.value)
        except BaseException as error:
            _fail(long.answer, error)
        with self._changed:
            self._begun = None


def _works(predictor: Model) -> bool:
    """Return whether a simple row can be computed, after another row has failed."""
    try:
        predictor.try_out()
    except BaseException:
        log.exception("the model cannot compute any row")
        return False
    return True


def _settle(answer: "Future[Any]", found: object) -> None:
    # The request may have been cancelled.
    with suppress(InvalidStateError):
        answer.set_result(found)


def _fail(answer: "Future[list[Found]] | Future[object]", error: BaseException) -> None:
    with suppress(InvalidStateError):
        answer.set_exception(error)
