"""Signals that ask a command to stop: when they end it at once, when they are noted only, and what they say of its exit
status.
"""

import logging
import signal
import threading

import pytest

from nlu.config import stopping
from nlu.config.stopping import Stopped, asked, at_once, exit_code, listening, passed_on, polled, received


@pytest.mark.parametrize(
    ("number", "status", "said"),
    [
        (signal.SIGTERM, 75, "stopped by SIGTERM"),
        (signal.SIGUSR1, 75, "stopped by SIGUSR1"),
        (signal.SIGINT, 130, "interrupted"),
    ],
)
def test_a_signal_raises_at_once_unless_it_is_polled(number: signal.Signals, status: int, said: str) -> None:
    before = signal.getsignal(number)
    with listening():
        with pytest.raises(Stopped) as raised:
            signal.raise_signal(number)
        assert exit_code(raised.value) == exit_code() == status and stopping.sentence(raised.value) == said
    assert signal.getsignal(number) is before and received() is None


def test_a_polled_ctrl_c_is_recorded_and_the_second_one_raises() -> None:
    with polled():
        assert not asked()
        signal.raise_signal(signal.SIGINT)
        assert asked() and exit_code() == 130
        with pytest.raises(Stopped):
            signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_queue_may_send_several_signals_and_the_first_counts(number: signal.Signals) -> None:
    with polled():
        signal.raise_signal(number)
        signal.raise_signal(signal.SIGTERM)
        assert asked() and exit_code() == 75
        with pytest.raises(Stopped) as raised:
            signal.raise_signal(signal.SIGINT)
        assert exit_code(raised.value) == exit_code() == 75
        assert stopping.sentence(raised.value) == stopping.sentence() == f"stopped by {number.name}"


def test_after_the_polling_block_a_signal_that_it_noted_ends_what_must_not_wait() -> None:
    with listening():
        with polled():
            signal.raise_signal(signal.SIGTERM)
        with pytest.raises(Stopped), at_once():
            pytest.fail("it began")


def test_the_innermost_block_says_what_becomes_of_a_signal() -> None:
    heard: list[int] = []
    with polled():
        with passed_on(heard.append):
            signal.raise_signal(signal.SIGUSR1)
            signal.raise_signal(signal.SIGINT)
        assert heard == [signal.SIGUSR1, signal.SIGINT] and received() == signal.SIGUSR1
    with polled(), pytest.raises(Stopped), at_once():
        signal.raise_signal(signal.SIGTERM)


def test_the_log_tells_of_a_signal_once_and_not_from_the_handler(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "nlu")
    with polled():
        signal.raise_signal(signal.SIGTERM)
        assert not caplog.messages
        assert asked() and asked()
    assert caplog.messages == ["SIGTERM: stopping after this step"]


def test_another_thread_listens_to_nothing() -> None:
    handlers: list[object] = []

    def listen() -> None:
        with listening():
            handlers.append(signal.getsignal(signal.SIGTERM))

    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=listen)
    thread.start()
    thread.join()
    assert handlers == [before]


def test_a_saved_state_calls_the_registered_callback_only() -> None:
    told: list[int] = []
    stopping.tell_saved()
    with stopping.told_when_saved(lambda: told.append(1)):
        stopping.tell_saved()
    stopping.tell_saved()
    assert told == [1]
