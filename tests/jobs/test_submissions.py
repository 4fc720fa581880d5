"""Submitted jobs are found again in their folder after a kill of the command at any time; it holds no secret."""

import json

import pytest

from nlu.config.errors import DataError, UserError
from nlu.config.redaction import command_text
from nlu.jobs.queue import Job, Ticket
from nlu.jobs.submissions import (
    FILE,
    FOLDER,
    Submissions,
    new_tokens,
    without_resume,
)
from tests.disk import followed


def submit(record: Submissions, *numbers: int) -> list[Ticket]:
    tokens = new_tokens(len(numbers))
    jobs = [Job(number, f"/runs/{number}", ("seed=1",), token) for number, token in zip(numbers, tokens, strict=True)]
    record.begin(jobs, "slurm", {"partition": "gpu", "setup": ["export X=1"]}, "train seed=1")
    return [Ticket(job, f"57_{job.number}", f"/log/{job.number}") for job in jobs]


def test_a_job_keeps_its_ticket_and_its_end_is_recorded(tmp_path):
    record = Submissions(tmp_path)
    tickets = submit(record, 0, 1)
    assert [one.ticket for one in record.read()] == [None, None]
    record.submitted(tickets)
    record.ended(tickets[1].job.token, "done")
    found = Submissions(tmp_path).read()
    assert [one.ticket for one in found] == tickets and [one.ended for one in found] == [None, "done"]
    assert found[0].settings == {"partition": "gpu"} and found[0].command == "train seed=1"


def test_a_record_of_jobs_is_synced_before_they_are_submitted(tmp_path):
    record = Submissions(tmp_path)
    with followed() as disk:
        tickets = submit(record, 0, 1)
        assert all(map(disk.is_synced, (tmp_path / FOLDER / FILE, tmp_path / FOLDER, tmp_path)))
        record.submitted(tickets)
        assert disk.is_synced(tmp_path / FOLDER / FILE)


def test_refused_jobs_are_removed_from_the_record(tmp_path):
    record = Submissions(tmp_path)
    record.refused([ticket.job for ticket in submit(record, 0, 1)])
    record.submitted(submit(record, 2))
    assert [one.job.number for one in record.read()] == [2]


def test_a_job_that_was_forgotten_while_it_was_handed_over_is_known_again(tmp_path):
    record = Submissions(tmp_path)
    (ticket,) = submit(record, 0)
    record.refused([ticket.job])
    record.submitted([ticket])
    record.ended(ticket.job.token, "done")
    assert [(one.ticket, one.ended) for one in record.read()] == [(ticket, "done")]


@pytest.mark.parametrize("kept", [1, 30])
def test_a_line_that_a_kill_cut_is_passed_over_also_where_others_follow(tmp_path, kept):
    record = Submissions(tmp_path)
    tickets = submit(record, 0)
    file = tmp_path / FOLDER / FILE
    before = file.read_bytes()
    record.submitted(tickets)
    line = file.read_bytes()[len(before) :]
    file.write_bytes(before + line[:kept])
    assert record.read()[0].ticket is None
    record.submitted(tickets)
    assert record.read()[0].ticket == tickets[0]


def test_a_damaged_record_is_named_with_its_line(tmp_path):
    record = Submissions(tmp_path)
    record.submitted(submit(record, 0))
    file = tmp_path / FOLDER / FILE
    file.write_text(file.read_text() + json.dumps({"event": "ended", "token": "other"}) + "\n")
    with pytest.raises(DataError, match=rf"{FILE}:3 is not an event of a submission"):
        record.read()


def test_no_secret_is_written_down_anywhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    overrides = ("tracker.api_key=hunter2", "data.train=https://me:hunter2@host/x")
    job = Job(0, str(tmp_path), overrides, "t")
    record = Submissions(tmp_path)
    command = command_text(["train", *overrides])
    record.begin([job], "dlc", {"endpoint": "https://me:hunter2@host"}, command)
    written = (tmp_path / FOLDER / FILE).read_text()
    assert "hunter2" not in written and "***" in written
    # The same command is known again all the same.
    assert without_resume(record.read()[0].job.overrides) == without_resume([*overrides, "resume=auto"])


def test_two_commands_do_not_submit_into_one_folder_and_nothing_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr("nlu.jobs.submissions.WAIT_S", 0.05)
    folder = tmp_path / "run"
    with Submissions(folder).held():
        with pytest.raises(UserError, match="another command is submitting into .*run; try again once it is done"):
            with Submissions(folder).held():
                pass
        assert (folder / FOLDER).is_dir()
    assert not folder.exists()
    folder.mkdir()
    with Submissions(folder).held():
        assert Submissions(folder).name() is None
    assert folder.is_dir() and not list(folder.iterdir()), "a folder that was there stays"
    with Submissions(folder).held():
        submit(Submissions(folder), 0)
    with Submissions(folder).held():
        pass
    assert [one.job.number for one in Submissions(folder).read()] == [0]
