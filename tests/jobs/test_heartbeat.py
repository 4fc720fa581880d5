"""What a job does with the files of its former start before it works."""

import time

import pytest

from nlu.jobs.queue import Job
from nlu.jobs.submitit_jobs import WithHeartbeat, beat_file, beating


@pytest.fixture
def start(tmp_path, monkeypatch):
    """A function that starts a task of the job 57, which returns what files there were while it worked."""
    monkeypatch.setenv("SUBMITIT_EXECUTOR", "slurm")
    monkeypatch.setenv("SUBMITIT_FOLDER", str(tmp_path))
    monkeypatch.setenv("SLURM_JOB_ID", "57")
    monkeypatch.setenv("SLURM_NTASKS", "2")

    def started(task: int) -> list[str]:
        monkeypatch.setenv("SLURM_PROCID", str(task))
        work = WithHeartbeat(lambda job: sorted(path.name for path in tmp_path.iterdir() if "beat" not in path.name))
        return work(Job(3, str(tmp_path), ()))["returned"]

    return started


@pytest.mark.parametrize("task", [0, 1])
def test_a_result_that_was_cut_off_is_removed(start, tmp_path, task):
    (tmp_path / f"57_{task}_result.pkl.save_tmp").touch()
    assert start(task) == []


def test_a_restarted_job_has_another_heartbeat_even_with_the_same_process_number(start, tmp_path, monkeypatch):
    signs = []
    for count in ("0", "1"):
        monkeypatch.setenv("SLURM_RESTART_COUNT", count)
        with beating(beat_file(tmp_path, count)):
            deadline_s = time.monotonic() + 60
            while not beat_file(tmp_path, count).exists() and time.monotonic() < deadline_s:
                time.sleep(0.005)
        signs.append(beat_file(tmp_path, count).read_text())
    assert signs[0] != signs[1] and signs[0].split()[0] == signs[1].split()[0]
