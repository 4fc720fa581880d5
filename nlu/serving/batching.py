"""Rows of concurrent requests to packed batches that they share.

One thread owns the model. It takes what waits, as many rows as a batch holds, and never waits for more: a lone request
is computed at once, and under load batches fill by themselves. The answer for a row depends only on that row, so
sharing changes no answer. Longer work, such as an explanation, is done in parts between the batches, one piece of work
after another: rows wait for one part at most.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from nlu.config.words import counted
from nlu.data.layouts import Values
from nlu.inference.predictor import Predictor

log = logging.getLogger(__name__)

Found = dict[str, Any]
Parts = Generator[None, None, Any]
"""work that gives way wherever it yields, and returns what it found"""
MOST_LONG = 16
"""longer pieces of work that may wait"""
MOST_BATCHES = 8
"""batches that are computed before a part of longer work that waits, so that many rows delay it and do not stop it"""


class Busy(Exception):
    """As much waits as may wait."""


@dataclass
class _Request:
    """Rows that are answered together."""

    predictor: Predictor
    values: Sequence[Values]
    with_logits: bool
    answer: "Future[list[Found]]" = field(default_factory=Future)
    found: list[Found] = field(default_factory=list)

    def take(self, found: list[Found]) -> None:
        """Keep the answers of the next rows; with the last ones all are handed over."""
        self.found += found
        if len(self.found) == len(self.values):
            _settle(self.answer, self.found)


@dataclass
class _Piece:
    """Some rows of a request, at most a batch."""

    request: _Request
    values: Sequence[Values]


@dataclass
class _Long:
    """Other work that the model's thread does."""

    parts: Parts
    answer: "Future[Any]" = field(default_factory=Future)


class Batcher:
    """Computes rows in one thread, those of several requests together."""

    def __init__(self, *, batch_size: int, most_waiting: int, on_batch: Callable[[int], None] = lambda rows: None):
        """`batch_size` and `most_waiting` count rows; `on_batch` is told the rows of each batch."""
        self._batch_size, self._most_waiting, self._on_batch = batch_size, most_waiting, on_batch
        self._pieces: deque[_Piece] = deque()
        self._long: deque[_Long] = deque()
        self._begun: _Long | None = None
        """the longer work of which some parts are done; the next begins when it has ended"""
        self._rows = self._batches_since_part = 0
        self._changed = threading.Condition()
        self._is_closed = self._is_broken = False
        self._thread = threading.Thread(target=self._work, name="model", daemon=True)
        self._thread.start()

    @property
    def waiting_rows(self) -> int:
        """Rows that wait to be computed."""
        return self._rows

    @property
    def is_alive(self) -> bool:
        """Whether the model's thread works and computes rows."""
        return self._thread.is_alive() and not self._is_broken

    def submit(
        self, predictor: Predictor, values: Sequence[Values], *, with_logits: bool = False
    ) -> "Future[list[Found]]":
        """Have rows predicted by a predictor; the answers come in the order of the rows.

        Cancelling the future leaves out what is not computed yet. Raises Busy where too many rows wait.
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
            # A request that is larger than all that may wait is let in alone.
            if self._rows and self._rows + len(values) > self._most_waiting:
                raise Busy(f"{counted(self._rows, 'row')} waiting, of {self._most_waiting:,} that may")
            self._pieces += pieces
            self._rows += len(values)
            self._changed.notify()
        return request.answer

    def submit_long(self, parts: Parts) -> "Future[Any]":
        """Have longer work done; rows that wait are computed before each part of it.

        Cancelling the future ends it before its next part. Raises Busy where too much of it waits.
        """
        long = _Long(parts)
        with self._changed:
            # What nobody waits for any more takes no place.
            self._long = deque(one for one in self._long if not one.answer.cancelled())
            if (waiting := len(self._long) + (self._begun is not None)) >= MOST_LONG:
                raise Busy(f"{waiting} explanations wait, of {MOST_LONG} that may")
            self._long.append(long)
            self._changed.notify()
        return long.answer

    def close(self) -> None:
        """Finish what waits and end the thread."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        self._thread.join()

    def _work(self) -> None:
        while (taken := self._next()) is not None:
            if isinstance(taken, _Long):
                self._do_part(taken)
                continue
            live = [piece for piece in taken if not piece.request.answer.done()]
            if live:
                self._predict(live)

    def _next(self) -> list[_Piece] | _Long | None:
        """Wait for work; None once the batcher is closed and nothing waits."""
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
            # Rows of another predictor, as after a reload, wait for a batch of their own.
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
        predictor = pieces[0].request.predictor
        values = [dict(row) for piece in pieces for row in piece.values]
        try:
            self._on_batch(len(values))
            with_logits = any(piece.request.with_logits for piece in pieces)
            found = predictor.predict(predictor.encode(values), with_logits=with_logits)
        # A panic of a library's native code is no Exception; without this thread nobody would be answered.
        except BaseException as error:
            if len(pieces) == 1:
                log.exception("a request could not be computed")
                _fail(pieces[0].request.answer, error)
                self._is_broken = not _works(predictor)
                return
            # One of them is to blame; the others are not to suffer for it.
            for piece in pieces:
                self._predict([piece])
            return
        self._is_broken = False
        start = 0
        for piece in pieces:
            piece.request.take(found[start : start + len(piece.values)])
            start += len(piece.values)

    def _do_part(self, long: _Long) -> None:
        """Do the next part of longer work, the last of which makes place for other work."""
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


def _works(predictor: Predictor) -> bool:
    """Whether a row that any run can read is computed, where another could not be."""
    try:
        predictor.try_out()
    except BaseException:
        log.exception("no row can be computed")
        return False
    return True


def _settle(answer: "Future[Any]", found: Any) -> None:
    # Whoever asked may have given up meanwhile.
    with suppress(InvalidStateError):
        answer.set_result(found)


def _fail(answer: "Future[Any]", error: BaseException) -> None:
    with suppress(InvalidStateError):
        answer.set_exception(error)
