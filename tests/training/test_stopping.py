"""Signals that ask a run to stop: what they say of its exit status, and when they end it at once."""

import signal

import pytest

from nlu.training.stopping import StopSignals


def test_the_first_ctrl_c_asks_and_the_second_ends_the_run_at_once() -> None:
    before = signal.getsignal(signal.SIGINT)
    with StopSignals() as signals:
        assert not signals.asked
        signal.raise_signal(signal.SIGINT)
        assert signals.asked and signals.exit_code == 130
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_of_the_system_asks_and_wants_the_run_queued_again(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with StopSignals() as signals:
        for _ in range(2):
            signal.raise_signal(number)
        assert signals.asked and signals.exit_code == 75
    assert signal.getsignal(number) is before
