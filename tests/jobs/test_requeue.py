"""A job whose time is up saves its state, and is queued again."""

import signal

import pytest
from submitit.core.utils import UncompletedJobError

from nlu.config import stopping
from nlu.jobs.requeue import run_while_time_lasts


@pytest.fixture
def asked_again(monkeypatch):
    """A job of submitit's; gives the signals that were handed on to it."""
    monkeypatch.setenv("SUBMITIT_EXECUTOR", "slurm")
    found = []

    def queue_again(number, frame):
        found.append(number)
        raise UncompletedJobError("Job not requeued because: timed-out too many times.")

    before = signal.signal(signal.SIGUSR2, queue_again), signal.signal(signal.SIGTERM, lambda *_: None)
    yield found
    signal.signal(signal.SIGUSR2, before[0])
    signal.signal(signal.SIGTERM, before[1])


def test_a_job_whose_time_is_up_saves_its_state_before_it_asks_to_be_requeued(asked_again):
    def run():
        with stopping.polled():
            signal.raise_signal(signal.SIGUSR2)
            assert stopping.asked() and not asked_again
        return stopping.exit_code()

    assert run_while_time_lasts(run) == 75 and asked_again == [signal.SIGUSR2]


def test_submitit_is_asked_as_soon_as_the_state_is_saved_and_once(asked_again):
    def run():
        with stopping.polled():
            signal.raise_signal(signal.SIGUSR2)
        stopping.tell_saved()
        assert asked_again == [signal.SIGUSR2], "it waited for later work, such as that of a mirror"
        # Slurm sends it to a job that is queued again.
        signal.raise_signal(signal.SIGTERM)
        return stopping.exit_code()

    assert run_while_time_lasts(run) == 75 and asked_again == [signal.SIGUSR2]


def test_a_job_that_another_signal_stopped_is_not_queued_again_by_submitit(asked_again):
    def run():
        with stopping.polled():
            signal.raise_signal(signal.SIGTERM)
        stopping.tell_saved()
        return stopping.exit_code()

    assert run_while_time_lasts(run) == 75 and not asked_again
