"""What Slurm's commands are asked, and what follows from their answers; scripts stand for them here."""

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import cloudpickle
import pytest

from nlu.config.errors import is_temporary
from nlu.jobs import slurm
from nlu.jobs.queue import Job, JobRefused, JobState, Look, QueueAway, QueueContext, QueueFull, Ticket
from nlu.jobs.slurm import QueuedSlurmJob, SlurmQueue, SqueueWatcher

COUNTS = 'n=$(($(cat count 2>/dev/null || echo 56) + 1)); echo $n > count; echo "Submitted batch job $n"'
FORGOTTEN = "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1"


@pytest.fixture
def programs(tmp_path, monkeypatch) -> Callable[..., Path]:
    """A function that makes Slurm's commands; each writes down its arguments and sbatch its script, in a folder."""
    folder = tmp_path / "programs"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")

    def make(**texts: str) -> Path:
        for name, text in {"srun": "", "sbatch": f'cat "$1" >> scripts; {COUNTS}', **texts}.items():
            (folder / name).write_text(f'#!/bin/sh\ncd {folder}\necho "$@" >> {name}.said\n{text}\n')
            (folder / name).chmod(0o755)
        return folder

    return make


@pytest.fixture(autouse=True)
def new_process(monkeypatch):
    """As in a command that has asked Slurm nothing yet."""
    monkeypatch.setattr(QueuedSlurmJob, "watcher", SqueueWatcher())


def queue(tmp_path: Path, **settings) -> SlurmQueue:
    return SlurmQueue(QueueContext(settings, tmp_path, work=print))


def jobs(tmp_path: Path, count: int) -> list[Job]:
    return [Job(number, str(tmp_path / str(number)), (), f"token-{number}") for number in range(count)]


def ticket(tmp_path: Path, id: str) -> Ticket:
    """Return the ticket of a job of an earlier command."""
    return Ticket(Job(0, str(tmp_path), (), id), id, str(tmp_path / f"{id}_0_log.err"))


def test_without_slurms_commands_a_job_is_refused_with_the_remedy(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path / "no-programs"))
    remedy = "Slurm is not installed here: .*run this where srun and sbatch are on the PATH"
    with pytest.raises(JobRefused, match=remedy):
        queue(tmp_path).submit(jobs(tmp_path, 1))


@pytest.mark.parametrize(
    ("said", "remedy"),
    [
        ("Batch job submission failed: Invalid partition", "correct what hydra.launcher sets"),
        ("Batch job submission failed: Invalid job array specification", "divide the grid among several commands"),
    ],
)
def test_jobs_that_slurm_refuses_leave_nothing_and_the_remedy_is_named(tmp_path, programs, said, remedy):
    programs(sbatch=f"echo 'sbatch: error: {said}' >&2; exit 1")
    with pytest.raises(JobRefused, match=f"Slurm refused the jobs: {said}; {remedy}"):
        queue(tmp_path).submit(jobs(tmp_path, 2))
    assert [path.name for path in tmp_path.iterdir()] == ["programs"]


@pytest.mark.parametrize(
    ("answer", "state", "reason"),
    [
        ("echo '57_3|PENDING||N/A|Priority'", JobState.WAITING, "Priority"),
        ("echo '57_3|RUNNING|n1|N/A|None'", JobState.RUNNING, None),
        ("echo 57_3'|COMPLETED|n1|'$(date +%s)'|None'", JobState.RUNNING, "its result is awaited"),
        ("echo '57_3|COMPLETED|n1|1|None'", JobState.LOST, "it ended without a result"),
        ("echo '57_3|CANCELLED|n1|1|None'", JobState.CANCELLED, None),
        ("echo '57_3|TIMEOUT|n1|1|TimeLimit'", JobState.LOST, "TIMEOUT"),
        (FORGOTTEN, JobState.LOST, "Slurm does not know it any more"),
    ],
)
def test_each_answer_about_a_job_without_a_result_means_a_state(tmp_path, programs, answer, state, reason):
    programs(squeue=answer, sacct="exit 1")
    look = queue(tmp_path).look([ticket(tmp_path, "57_3")])["57_3"]
    assert (look.state, look.reason) == (state, reason)


def test_the_result_of_a_job_that_slurm_forgets_at_once_is_awaited(tmp_path, programs, monkeypatch):
    monkeypatch.setattr(slurm, "SHORTEST_POLL_S", 0.0)
    programs(squeue="echo '57|RUNNING|n1|N/A|None'")
    own = ticket(tmp_path, "57")
    assert queue(tmp_path).look([own])["57"].state is JobState.RUNNING
    programs(squeue=FORGOTTEN, sacct="exit 1")
    for _ in range(2):
        QueuedSlurmJob.watcher.hurry()
        assert queue(tmp_path).look([own])["57"] == Look(JobState.RUNNING, None, "its result is awaited")
    monkeypatch.setattr(slurm, "GRACE_S", 0.0)
    assert queue(tmp_path).look([own])["57"].state is JobState.LOST


def test_the_accounting_knows_a_job_that_squeue_has_forgotten(tmp_path, programs):
    programs(squeue=FORGOTTEN, sacct="echo '57|CANCELLED by 7|n1|1|0:15'")
    assert queue(tmp_path).look([ticket(tmp_path, "57")])["57"] == Look(
        JobState.CANCELLED, "n1", "CANCELLED by 7, exit 0:15"
    )


def test_a_job_that_was_cancelled_after_it_had_ended_well_is_done(tmp_path, programs):
    programs(squeue="echo '57|CANCELLED|n1|1|None'")
    content = ("success", {"status": "COMPLETED", "returned": 3})
    (tmp_path / "57_0_result.pkl").write_bytes(cloudpickle.dumps(content))
    assert queue(tmp_path).look([ticket(tmp_path, "57")])["57"].state is JobState.DONE


def test_while_slurm_does_not_answer_nothing_is_known_of_jobs(tmp_path, programs, monkeypatch):
    folder = programs(squeue="echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1")
    for _ in range(3):
        with pytest.raises(QueueAway, match="Unable to contact slurm controller") as raised:
            queue(tmp_path).look([ticket(tmp_path, "57")])
        assert is_temporary(raised.value)
    assert len((folder / "squeue.said").read_text().splitlines()) == 1, "nor is it asked more often"


def test_where_slurm_is_not_installed_its_jobs_are_unknown_and_that_is_said(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path / "no-programs"))
    with pytest.raises(QueueAway, match="squeue is not on the PATH here; run this where Slurm is installed"):
        queue(tmp_path).look([ticket(tmp_path, "57")])


def test_trials_that_begin_one_by_one_are_asked_for_together(tmp_path, programs, monkeypatch):
    folder = programs(squeue="for n in 1 2 3 4 5; do echo $n'|RUNNING|n1|N/A|None'; done")
    monkeypatch.setattr(slurm, "SHORTEST_POLL_S", 0.5)
    queue(tmp_path).look([ticket(tmp_path, "1")])
    with ThreadPoolExecutor() as threads:
        looks = list(threads.map(lambda id: queue(tmp_path).look([ticket(tmp_path, id)])[id], "2345"))
    assert looks == [Look(JobState.RUNNING, "n1")] * 4
    asked = (folder / "squeue.said").read_text().splitlines()
    assert [line.rpartition("=")[2] for line in asked] == ["1", "1,2,3,4,5"]


def test_a_cluster_that_counts_from_1_again_gives_the_id_of_an_ended_job_to_another(tmp_path, programs):
    programs(sbatch="echo Submitted batch job 1", squeue="echo '1|FAILED|n1|1|None'")
    own = queue(tmp_path)
    (before,) = own.submit(jobs(tmp_path, 1))
    assert own.look([before])["1"].state is JobState.LOST
    programs(sbatch="echo Submitted batch job 1", squeue="echo '1|PENDING||N/A|Priority'")
    (again,) = own.submit([Job(1, str(tmp_path / "1"), (), "other")])
    assert own.look([again])["1"].state is JobState.WAITING


POLICY = "echo 'sbatch: error: Batch job submission failed: Job violates accounting/QOS policy (job submit limit)' >&2"


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (f"echo 'sbatch: error: QOSMaxSubmitJobPerUserLimit' >&2\n{POLICY}", "QOSMaxSubmitJobPerUserLimit"),
        (f"echo 'sbatch: error: AssocMaxSubmitJobLimit' >&2\n{POLICY}", "AssocMaxSubmitJobLimit"),
    ],
)
def test_a_temporary_limit_refuses_no_job(tmp_path, programs, capfd, lines, said):
    programs(sbatch=f"{lines}\nexit 1")
    with pytest.raises(QueueFull, match=f"Slurm takes no more jobs now: {said}"):
        queue(tmp_path).submit(jobs(tmp_path, 2))
    # It is asked for again and again, and the search says once that trials wait.
    assert "sbatch: error" not in capfd.readouterr().err
    assert queue(tmp_path).find(jobs(tmp_path, 2)) == [None, None]


@pytest.mark.parametrize(
    "said",
    [
        "Unable to contact slurm controller (connect failure)", "Socket timed out on send/recv operation",
        "Slurm controller in standby mode", "Zero Bytes were transmitted or received",
    ],
)  # fmt: skip
def test_a_controller_that_is_away_refuses_no_job(tmp_path, programs, said):
    programs(sbatch=f"echo 'sbatch: error: Batch job submission failed: {said}' >&2\nexit 1")
    with pytest.raises(QueueAway, match=re.escape(f"Batch job submission failed: {said}")):
        queue(tmp_path).submit(jobs(tmp_path, 1))


@pytest.mark.parametrize("count", [1, 3])
def test_a_job_submitted_from_within_another_inherits_what_the_user_set_only(tmp_path, programs, monkeypatch, count):
    folder = programs(sbatch=f"env > inherited; echo 'sbatch: warning: job 99 is old' >&2; {COUNTS}")
    for name in ("SLURM_JOB_ID", "SLURM_NTASKS", "RANK", "MASTER_ADDR", "SLURM_CONF", "SBATCH_ACCOUNT", "HF_HOME"):
        monkeypatch.setenv(name, "7")
    tickets = queue(tmp_path).submit(jobs(tmp_path, count))
    assert tickets[0].id == ("57" if count == 1 else "57_0"), "whatever else sbatch says"
    names = {line.partition("=")[0] for line in (folder / "inherited").read_text().splitlines()}
    assert {"SLURM_CONF", "SBATCH_ACCOUNT", "HF_HOME"} <= names
    assert not names & {"SLURM_JOB_ID", "SLURM_NTASKS", "RANK", "MASTER_ADDR"}


def test_a_grid_is_one_array_and_another_command_finds_its_jobs(tmp_path, programs):
    folder = programs()
    tickets = queue(tmp_path, array_parallelism=2).submit(jobs(tmp_path, 3))
    assert [(one.id, one.job.number) for one in tickets] == [("57_0", 0), ("57_1", 1), ("57_2", 2)]
    assert "#SBATCH --array=0-2%2" in (folder / "scripts").read_text().splitlines()
    assert queue(tmp_path).find([*jobs(tmp_path, 4)[2:], *jobs(tmp_path, 1)]) == [tickets[2], None, tickets[0]]


@pytest.mark.parametrize(
    ("settings", "has", "lacks"),
    [
        ({}, ["#SBATCH --requeue", f"--wait={slurm.LAST_TASK_S}"], []),
        ({"additional_parameters": {"no-requeue": True}}, ["#SBATCH --no-requeue"], ["#SBATCH --requeue"]),
        ({"srun_args": ["--wait=7", "--mpi=none"]}, ["--wait=7 --mpi=none"], [f"--wait={slurm.LAST_TASK_S}"]),
        ({"srun_args": ["--mpi=none"]}, [f"--wait={slurm.LAST_TASK_S} --mpi=none"], []),
    ],
)
def test_a_job_is_requeued_and_its_tasks_end_together_unless_settings_differ(tmp_path, programs, settings, has, lacks):
    folder = programs()
    queue(tmp_path, **settings).submit(jobs(tmp_path, 1))
    script = (folder / "scripts").read_text()
    assert all(text in script for text in has) and not any(text in script for text in lacks), script
