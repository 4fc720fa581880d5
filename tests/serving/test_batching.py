"""How the model's thread handles waiting requests. The predictors are doubles that count their calls."""

import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager
from typing import Any

import pytest

from nlu.serving.batching import Batcher, Busy


class Doubling:
    """Answers a number by its double, and waits before each batch until it may continue."""

    def __init__(self, *, is_open: bool = True):
        self.batches: list[list[int]] = []
        self.begun, self.may_go = threading.Semaphore(0), threading.Event()
        if is_open:
            self.may_go.set()

    def encode(self, values: Any) -> list[int]:
        return [row["n"] for row in values]

    def try_out(self) -> None:
        self.may_go.wait()

    def predict(self, numbers: list[int], with_logits: bool) -> list[dict[str, Any]]:
        if 99 in numbers:
            # Like a panic of native code.
            raise KeyboardInterrupt
        self.begun.release()
        self.may_go.wait()
        self.batches.append(numbers)
        if 13 in numbers:
            raise ValueError("13")
        return [{"double": 2 * n, "logits": with_logits} for n in numbers]


def rows(*numbers: int) -> list[dict[str, int]]:
    return [{"n": number} for number in numbers]


def doubles(answer: Any) -> list[int]:
    return [one["double"] for one in answer.result(20)]


@contextmanager
def batcher(batch_size: int = 4, most_waiting: int = 100) -> Iterator[Batcher]:
    made = Batcher(batch_size=batch_size, most_waiting=most_waiting)
    yield made
    made.close()


def test_waiting_requests_share_batches_in_order_of_arrival() -> None:
    predictor: Any = Doubling(is_open=False)
    with batcher() as waiting:
        first = waiting.submit(predictor, rows(1))
        predictor.begun.acquire()
        others = [waiting.submit(predictor, rows(*some)) for some in ((2, 3), (4,), (5, 6, 7, 8, 9), (10,))]
        assert waiting.waiting_rows == 9
        predictor.may_go.set()
        assert [doubles(one) for one in (first, *others)] == [[2], [4, 6], [8], [10, 12, 14, 16, 18], [20]]
        assert waiting.waiting_rows == 0
    assert predictor.batches == [[1], [2, 3, 4], [5, 6, 7, 8], [9, 10]]


def test_rows_of_another_predictor_are_never_in_the_same_batch() -> None:
    old: Any = Doubling(is_open=False)
    new: Any = Doubling()
    with batcher() as waiting:
        answers = [waiting.submit(one, rows(number)) for number, one in enumerate((old, old, new, old))]
        old.may_go.set()
        assert [doubles(one) for one in answers] == [[0], [2], [4], [6]]
    assert new.batches == [[2]] and sorted(sum(old.batches, [])) == [0, 1, 3]


def test_more_than_may_wait_is_refused_and_a_lone_large_request_is_not() -> None:
    predictor: Any = Doubling(is_open=False)
    with batcher(most_waiting=3) as waiting:
        first = waiting.submit(predictor, rows(1))
        predictor.begun.acquire()
        large = waiting.submit(predictor, rows(2, 3, 4, 5, 6))
        with pytest.raises(Busy, match="5 rows waiting, of at most 3"):
            waiting.submit(predictor, rows(7))
        predictor.may_go.set()
        assert doubles(first) == [2] and doubles(large) == [4, 6, 8, 10, 12]


def test_rows_of_cancelled_requests_are_not_computed() -> None:
    predictor: Any = Doubling(is_open=False)
    with batcher() as waiting:
        first = waiting.submit(predictor, rows(1))
        predictor.begun.acquire()
        left, kept = waiting.submit(predictor, rows(2)), waiting.submit(predictor, rows(3))
        left.cancel()
        predictor.may_go.set()
        assert doubles(first) == [2] and doubles(kept) == [6]
        with pytest.raises(CancelledError):
            left.result()
    assert predictor.batches == [[1], [3]]


def test_a_row_that_cannot_be_computed_fails_only_its_request() -> None:
    predictor: Any = Doubling(is_open=False)
    with batcher() as waiting:
        first = waiting.submit(predictor, rows(1))
        predictor.begun.acquire()
        good, bad, last = (waiting.submit(predictor, rows(number)) for number in (2, 13, 3))
        predictor.may_go.set()
        assert doubles(first) == [2] and doubles(good) == [4] and doubles(last) == [6]
        with pytest.raises(ValueError, match="13"):
            bad.result(20)


def test_longer_work_is_done_to_its_end_in_parts_and_its_failure_is_its_askers() -> None:
    predictor: Any = Doubling(is_open=False)
    done: list[str] = []

    def long(name: str, parts: int) -> Any:
        for part in range(parts):
            done.append(f"{name}{part}")
            yield
        return threading.current_thread().name

    def failing() -> Any:
        yield
        raise ZeroDivisionError

    with batcher() as waiting:
        first = waiting.submit(predictor, rows(1))
        predictor.begun.acquire()
        answers = [waiting.submit_long(long("a", 2)), waiting.submit_long(long("b", 3)), waiting.submit_long(failing())]
        left = waiting.submit_long(long("c", 100))
        later = waiting.submit(predictor, rows(2))
        left.cancel()
        predictor.may_go.set()
        assert doubles(first) == [2] and doubles(later) == [4]
        assert [answers[0].result(20), answers[1].result(20)] == ["model", "model"]
        with pytest.raises(ZeroDivisionError):
            answers[2].result(20)
        assert doubles(waiting.submit(predictor, rows(1))) == [2]
        assert waiting.submit(predictor, []).result(20) == []
    assert done == ["a0", "a1", "b0", "b1", "b2"] and predictor.batches[1] == [2]


def test_a_batcher_whose_model_fails_every_row_is_not_alive_until_one_succeeds() -> None:
    class Failing(Doubling):
        is_broken = False

        def try_out(self) -> None:
            if self.is_broken:
                raise RuntimeError("no memory is left on the device")

    predictor: Any = Failing()
    with batcher() as waiting:
        for is_broken in (False, True):
            predictor.is_broken = is_broken
            with pytest.raises(ValueError, match="13"):
                waiting.submit(predictor, rows(13)).result(20)
            # What is said comes behind the answer, before the next one.
            waiting.submit(predictor, []).result(20)
            while waiting.is_alive == is_broken:
                pass
        assert doubles(waiting.submit(predictor, rows(1))) == [2] and waiting.is_alive


def test_closing_finishes_what_waits() -> None:
    predictor: Any = Doubling(is_open=False)
    waiting = Batcher(batch_size=1, most_waiting=100)
    answer = waiting.submit(predictor, rows(1, 2, 3))
    predictor.may_go.set()
    waiting.close()
    assert answer.done() and doubles(answer) == [2, 4, 6]
