"""A job of a grid that was refused or lost is a sentence; one that raised an error shows its traceback."""

import signal
import subprocess

import pytest
from submitit.core.utils import FailedJobError, UncompletedJobError

from nlu.config import stopping
from nlu.config.submitted import grid_problems, run_while_time_lasts


def test_a_lost_job_is_named_with_its_state_and_its_folder():
    error = UncompletedJobError(
        "Job 57_1 (task: 0) with path /s/.submitit/57_1/57_1_0_result.pkl\nhas not produced any output "
        "(state: CANCELLED by 0)\nError stream produced:\nsrun: (state: forced)"
    )
    (told,) = grid_problems(error)
    assert told.startswith("job 57_1 ended without a result (CANCELLED by 0); its output is in /s/.submitit/57_1; ")


def test_a_refusal_is_the_last_line_of_the_output_of_the_command():
    error = FailedJobError("a\nb")
    error.__cause__ = subprocess.CalledProcessError(1, ["sbatch"], stderr="a\nb\n")
    assert grid_problems(error) == ["the jobs were refused: b; correct what hydra.launcher sets"]


def test_errors_of_the_jobs_themselves_keep_their_traceback():
    assert grid_problems(FailedJobError("Job (task=0) failed during processing with trace:\nx")) == []
    assert grid_problems(RuntimeError("x")) == []


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


def test_a_job_whose_time_is_up_before_its_first_state_ends_with_the_reason(asked_again):
    with pytest.raises(UncompletedJobError) as raised:
        run_while_time_lasts(lambda: signal.raise_signal(signal.SIGUSR2))
    assert grid_problems(raised.value)[0].startswith("a job reached its time limit before it had anything to save")
