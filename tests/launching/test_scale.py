"""What following jobs costs: in proportion to their number, and less and less while nothing changes."""

import os
import time
from pathlib import Path

import pytest

from nlu.launching.queue import Job, JobState, QueueContext, Ticket
from nlu.launching.slurm import SlurmQueue
from nlu.launching.slurm_folders import SUBMITTED, TOKENS
from nlu.launching.submissions import FILE, FOLDER, Submissions, new_tokens
from tests.launching.operations import counted


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    """A function that has Slurm run jobs that another command submitted one by one; returns their ids."""
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "squeue").write_text(f"#!/bin/sh\ncat {tmp_path}/answer\n")
    (programs / "squeue").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")

    def submitted(count: int) -> list[str]:
        ids = [str(57 + number) for number in range(count)]
        for id in ids:
            folder = tmp_path / f"search/.submitit/token-{id}"
            folder.mkdir(parents=True, exist_ok=True)
            (folder / TOKENS).write_text(f'{{"tokens": ["token-{id}"]}}')
            (folder / f"{id}{SUBMITTED}").touch()
        (tmp_path / "answer").write_text("".join(f"{id}|RUNNING|n1|None\n" for id in ids))
        return ids

    return submitted


@pytest.mark.parametrize("count", [10, 100])
def test_a_look_at_jobs_of_slurm_is_one_command_and_reads_each_folder_once(tmp_path, cluster, count):
    ids, queue = cluster(count), SlurmQueue(QueueContext({}, tmp_path / "search"))
    with counted(tmp_path) as first:
        assert {look.state for look in queue.look(ids).values()} == {JobState.RUNNING}
    # All are listed together, then each folder is listed, its list of tokens is read, and an old mark is removed.
    assert first == {"commands": 1, "listed": 1 + count, "opened": count, "removed": count}
    with counted(tmp_path) as later:
        for _ in range(3):
            queue.look(ids)
    assert later == {"commands": 3}


@pytest.mark.parametrize("count", [10, 100])
def test_the_folder_of_one_more_job_is_found_without_reading_those_of_the_others(tmp_path, cluster, count):
    queue = SlurmQueue(QueueContext({}, tmp_path / "search"))
    queue.look(cluster(count))
    more = cluster(count + 1)
    with counted(tmp_path) as counts:
        queue.look(more)
    assert counts == {"commands": 1, "listed": 2, "opened": 1, "removed": 1}


def test_a_trial_that_this_process_submitted_is_found_without_reading_a_folder(tmp_path, cluster, monkeypatch):
    programs = tmp_path / "programs"
    for name, text in {"sbatch": "echo Submitted batch job 57", "srun": ""}.items():
        (programs / name).write_text(f"#!/bin/sh\n{text}\n")
        (programs / name).chmod(0o755)
    place = QueueContext({}, tmp_path / "search", work=print)
    (ticket,) = SlurmQueue(place).submit([Job(0, str(tmp_path), (), "token-57")])
    (tmp_path / "answer").write_text("57|RUNNING|n1|None\n")
    other = SlurmQueue(place)
    with counted(tmp_path) as counts:
        assert other.look([ticket.id])[ticket.id].state is JobState.RUNNING
    assert counts == {"commands": 1, "removed": 1}


def test_a_cluster_that_counts_from_1_again_has_its_newest_job_looked_at(tmp_path, cluster):
    (id,) = cluster(1)
    again = tmp_path / "search/.submitit/again"
    again.mkdir()
    (again / TOKENS).write_text('{"tokens": ["again"]}')
    (again / f"{id}{SUBMITTED}").touch()
    old = time.time() - 3600
    os.utime(tmp_path / f"search/.submitit/token-{id}/{id}{SUBMITTED}", (old, old))
    assert SlurmQueue(QueueContext({}, tmp_path / "search"))._folder(id) == again


def test_jobs_of_a_submission_that_is_under_way_are_found_as_they_come(tmp_path):
    folder, queue = tmp_path / ".submitit/a", SlurmQueue(QueueContext({}, tmp_path))
    folder.mkdir(parents=True)
    (folder / TOKENS).write_text('{"tokens": ["a", "b"]}')
    jobs = [Job(number, "", (), token) for number, token in enumerate("ab")]
    for number, found in enumerate((["57_0", None], ["57_0", "57_1"])):
        (folder / f"57_{number}{SUBMITTED}").touch()
        assert [ticket and ticket.id for ticket in queue.find(jobs)] == found
    # Of an earlier version, or of a kill before the list was there.
    other = tmp_path / ".submitit/other"
    other.mkdir()
    (other / f"58_1{SUBMITTED}").touch()
    assert [ticket and ticket.id for ticket in queue.find([*jobs, Job(2, "", (), "c")])] == ["57_0", "57_1", None]
    assert queue._folder("58_1") == other


def events(record: Submissions, number: int) -> Ticket:
    (token,) = new_tokens(1)
    job = Job(number, f"/runs/{number}", ("seed=1",), token)
    record.begin([job], "pai", {}, "train")
    ticket = Ticket(job, f"dlc-{number}", None)
    record.submitted([ticket])
    return ticket


def test_only_the_new_lines_of_a_record_are_read_again(tmp_path):
    writer, reader = Submissions(tmp_path), Submissions(tmp_path)
    tickets = [events(writer, number) for number in range(3)]
    assert [one.ticket for one in reader.changed()] == tickets and reader.changed() == []
    file = tmp_path / FOLDER / FILE
    before = file.read_bytes()
    # If it were read again from its beginning, this would be an error.
    with open(file, "r+b") as stream:
        stream.write(b"x" * (len(before) - 1))
    fourth = events(writer, 3)
    writer.ended(fourth.job.token, "done")
    (found,) = reader.changed()
    assert found.ticket == fourth and found.ended == "done"
    assert [one.ticket for one in reader.read()] == [*tickets, fourth]


def test_a_record_that_was_moved_away_is_read_from_the_beginning(tmp_path):
    record, reader = Submissions(tmp_path), Submissions(tmp_path)
    for number in range(3):
        events(record, number)
    assert len(reader.read()) == 3
    file: Path = tmp_path / FOLDER / FILE
    file.rename(file.with_suffix(".old"))
    assert reader.read() == []
    tickets = [events(record, number) for number in range(9)]
    assert [one.ticket for one in reader.read()] == tickets
    file.rename(file.with_suffix(".older"))
    tickets = [events(record, number) for number in range(9, 20)]
    assert [one.ticket for one in reader.read()] == tickets
