"""What is known of Slurm's jobs where Slurm does not answer; tests/slurm asks a real one."""

import re
import threading
import time
from pathlib import Path

import pytest

from nlu.config.errors import is_temporary
from nlu.jobs import slurm
from nlu.jobs.queue import Job, JobRefused, JobState, QueueAway, QueueContext, QueueFull, Ticket
from nlu.jobs.slurm import SlurmQueue
from nlu.jobs.slurm_folders import SUBMITTED
from nlu.jobs.submitit_jobs import beat_file

ID = "57_3"


@pytest.fixture
def queue(tmp_path, monkeypatch):
    """A queue of a machine without Slurm's commands."""
    monkeypatch.setenv("PATH", str(tmp_path / "no-programs"))
    return SlurmQueue(QueueContext({}, tmp_path, work=print))


@pytest.fixture
def folder(tmp_path) -> Path:
    """Where the files of a job lie that was submitted."""
    found = tmp_path / ".submitit/token"
    found.mkdir(parents=True)
    (found / f"{ID}{SUBMITTED}").touch()
    return found


def test_without_slurms_commands_a_job_is_refused_with_the_remedy(queue, tmp_path):
    with pytest.raises(
        JobRefused, match="Slurm is not installed here: .*run this where srun and sbatch are on the PATH"
    ):
        queue.submit([Job(0, str(tmp_path), ())])


def test_a_refusal_is_reported_even_if_earlier_jobs_cannot_be_cancelled(queue, tmp_path, monkeypatch):
    monkeypatch.setattr(slurm, "_largest_array", lambda: 1)
    parts = iter([[Ticket(Job(0, "0", ()), "57")], JobRefused("no such partition")])

    def submit(jobs):
        if isinstance(part := next(parts), JobRefused):
            raise part
        return part

    monkeypatch.setattr(queue, "_submit", submit)
    with pytest.raises(JobRefused, match="no such partition\njobs 57 were taken before, and could not be cancelled"):
        queue.submit([Job(number, str(tmp_path), ()) for number in range(2)])


def test_a_job_that_beats_runs_and_one_that_stands_still_is_lost(queue, folder, monkeypatch):
    monkeypatch.setattr(slurm, "SILENCE_S", 0.2)
    assert queue.look([ID])[ID].state is JobState.WAITING, "it has not begun"
    for number in range(20):
        beat_file(folder, ID).write_text(f"n1 0 7 {number}\n")
        look = queue.look([ID])[ID]
        assert (look.state, look.node) == (JobState.RUNNING, "n1")
        time.sleep(0.02)
    time.sleep(0.25)
    look = queue.look([ID])[ID]
    assert look.state is JobState.LOST and "no sign of life" in str(look.reason)


def test_a_job_that_slurm_has_forgotten_is_lost_even_to_commands_that_poll_once(tmp_path, folder, monkeypatch):
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in ("squeue", "sacct"):
        (programs / name).write_text("#!/bin/sh\necho 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1\n")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    monkeypatch.setattr(slurm, "GRACE_S", 0.5)

    def look():
        return SlurmQueue(QueueContext({}, tmp_path)).look([ID])[ID]

    assert (look().state, look().reason) == (JobState.RUNNING, "its result is awaited")
    threading.Event().wait(0.6)
    assert (look().state, look().reason) == (JobState.LOST, "Slurm does not know it any more")
    # It was queued again, so what was missed before counts no more.
    (programs / "squeue").write_text(f"#!/bin/sh\necho '{ID}|RUNNING|n1|None'\n")
    assert look().state is JobState.RUNNING
    (programs / "squeue").write_text(f"#!/bin/sh\necho '{ID}|COMPLETED|n1|None'\n")
    assert (look().state, look().reason) == (JobState.RUNNING, "its result is awaited")
    assert {path.name for path in folder.iterdir()} == {f"{ID}{SUBMITTED}", f"{ID}_missed"}


def programs_of(folder, monkeypatch, **texts):
    """Write the commands of Slurm as these lines of shell."""
    programs = folder / "programs"
    programs.mkdir()
    for name, text in {"srun": "", **texts}.items():
        (programs / name).write_text(f"#!/bin/sh\n{text}\n")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")


POLICY = "echo 'sbatch: error: Batch job submission failed: Job violates accounting/QOS policy (job submit limit)' >&2"


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (f"echo 'sbatch: error: QOSMaxSubmitJobPerUserLimit' >&2\n{POLICY}", "QOSMaxSubmitJobPerUserLimit"),
        (f"echo 'sbatch: error: AssocMaxSubmitJobLimit' >&2\n{POLICY}", "AssocMaxSubmitJobLimit"),
        (POLICY, "the job violates accounting/QOS policy"),
    ],
)
def test_a_temporary_limit_neither_refuses_nor_cancels_jobs(tmp_path, monkeypatch, capfd, lines, said):
    ran = tmp_path / "ran"
    programs_of(
        tmp_path, monkeypatch, scancel=f"echo cancelled >> {ran}",
        sbatch=f"[ -e {ran} ] || {{ touch {ran}; echo Submitted batch job 57; exit 0; }}\n{lines}\nexit 1",
    )  # fmt: skip
    monkeypatch.setattr(slurm, "_largest_array", lambda: 1)
    jobs = [Job(number, str(tmp_path), (), f"token-{number}") for number in range(2)]
    full = SlurmQueue(QueueContext({}, tmp_path, work=print))
    with pytest.raises(QueueFull, match=f"Slurm takes no more jobs now: {said}"):
        full.submit(jobs)
    assert ran.read_text() == "", "nothing was cancelled"
    # It is asked for again and again, and the search says once that trials wait.
    assert "sbatch: error" not in capfd.readouterr().err
    first, second = full.find(jobs)
    assert first is not None and first.id == "57" and second is None


@pytest.mark.parametrize(
    "said",
    [
        "Unable to contact slurm controller (connect failure)", "Socket timed out on send/recv operation",
        "Slurm controller in standby mode", "Zero Bytes were transmitted or received",
    ],
)  # fmt: skip
def test_a_controller_that_is_away_refuses_no_job(tmp_path, monkeypatch, said):
    programs_of(tmp_path, monkeypatch, sbatch=f"echo 'sbatch: error: Batch job submission failed: {said}' >&2\nexit 1")
    with pytest.raises(QueueAway, match=re.escape(f"Batch job submission failed: {said}")) as raised:
        SlurmQueue(QueueContext({}, tmp_path, work=print)).submit([Job(0, str(tmp_path), (), "token")])
    assert is_temporary(raised.value)


def test_a_job_that_is_submitted_from_within_another_inherits_what_the_user_set_only(tmp_path, monkeypatch):
    programs = tmp_path / "programs"
    programs.mkdir()
    for name, text in {"sbatch": f"env > {tmp_path}/inherited; echo Submitted batch job 57", "srun": ""}.items():
        (programs / name).write_text(f"#!/bin/sh\n{text}\n")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    for name in ("SLURM_JOB_ID", "SLURM_NTASKS", "RANK", "MASTER_ADDR", "SLURM_CONF", "SBATCH_ACCOUNT", "HF_HOME"):
        monkeypatch.setenv(name, "7")
    SlurmQueue(QueueContext({}, tmp_path, work=print)).submit([Job(0, str(tmp_path), (), "token")])
    names = {line.partition("=")[0] for line in (tmp_path / "inherited").read_text().splitlines()}
    assert {"SLURM_CONF", "SBATCH_ACCOUNT", "HF_HOME"} <= names
    assert not names & {"SLURM_JOB_ID", "SLURM_NTASKS", "RANK", "MASTER_ADDR"}
