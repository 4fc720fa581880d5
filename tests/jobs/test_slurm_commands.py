"""The arguments of Slurm's commands and the parsing of their answers; scripts stand for them here."""

from collections.abc import Callable
from pathlib import Path

import cloudpickle
import pytest

from nlu.jobs import slurm
from nlu.jobs.queue import Job, JobState, QueueContext
from nlu.jobs.slurm import SlurmQueue

COUNTS = 'n=$(($(cat count 2>/dev/null || echo 56) + 1)); echo $n > count; echo "Submitted batch job $n"'


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


def queue(tmp_path: Path, **settings) -> SlurmQueue:
    return SlurmQueue(QueueContext(settings, tmp_path, work=print))


def jobs(tmp_path: Path, count: int) -> list[Job]:
    return [Job(number, str(tmp_path / str(number)), (), f"token-{number}") for number in range(count)]


def test_a_job_that_was_cancelled_after_it_had_ended_well_is_done(tmp_path, programs):
    programs(squeue="echo '57|CANCELLED|n1|None'; echo '58|CANCELLED|n1|None'; echo '59|TIMEOUT|n1|TimeLimit'")
    own = queue(tmp_path)
    done, *_ = (own.submit([job])[0] for job in jobs(tmp_path, 3))
    file = tmp_path / ".submitit/token-0/57_0_result.pkl"
    file.write_bytes(cloudpickle.dumps(("success", {"status": "COMPLETED", "returned": 3})))
    assert done.id == "57"
    looks = own.look(["57", "58", "59"])
    assert [look.state for look in looks.values()] == [JobState.DONE, JobState.CANCELLED, JobState.LOST]
    assert looks["59"].reason == "TIMEOUT"


def test_a_grid_is_cut_into_arrays_that_slurm_takes(tmp_path, programs):
    folder = programs(scontrol="echo 'MaxArraySize            = 3'")
    tickets = queue(tmp_path).submit(jobs(tmp_path, 7))
    assert [ticket.id for ticket in tickets] == ["57_0", "57_1", "57_2", "58_0", "58_1", "58_2", "59"]
    assert [ticket.job.number for ticket in tickets] == list(range(7))
    assert [line for line in (folder / "scripts").read_text().splitlines() if "--array" in line] == [
        "#SBATCH --array=0-2%3", "#SBATCH --array=0-2%3",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("settings", "has", "lacks"),
    [
        ({}, ["#SBATCH --requeue", f"--wait={slurm.LAST_TASK_S}"], []),
        ({"additional_parameters": {"no-requeue": True}}, ["#SBATCH --no-requeue"], ["#SBATCH --requeue"]),
        ({"srun_args": ["--wait=7", "--mpi=none"]}, ["--wait=7 --mpi=none"], [f"--wait={slurm.LAST_TASK_S}"]),
        ({"container": "i.sqsh"}, ["--container-image=i.sqsh", f"--wait={slurm.LAST_TASK_S}"], []),
    ],
)
def test_a_job_is_requeued_and_its_tasks_end_together_unless_settings_differ(tmp_path, programs, settings, has, lacks):
    folder = programs()
    queue(tmp_path, **settings).submit(jobs(tmp_path, 1))
    script = (folder / "scripts").read_text()
    assert all(text in script for text in has) and not any(text in script for text in lacks), script
