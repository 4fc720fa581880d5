"""Submitted jobs are found again in their folder after a kill of the command at any time; it holds no secret."""

import errno
import json
import subprocess

import pytest

from nlu.config.errors import DataError, UserError
from nlu.launching import submissions
from nlu.launching.queue import Job, Ticket
from nlu.launching.submissions import (
    FILE,
    FOLDER,
    Submissions,
    add_to_history,
    new_tokens,
    project_folder,
    read_history,
    submissions_below,
    without_resume,
)
from nlu.storage.redaction import command_text
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
    record.submitted([ticket := Ticket(job, "1", None)])
    add_to_history("dlc", [ticket], command)
    written = [(tmp_path / place).read_text() for place in (f"{FOLDER}/{FILE}", ".nlu/submissions.tsv")]
    assert all("hunter2" not in text and "***" in text for text in written)
    # The same command is known again all the same.
    assert without_resume(record.read()[0].job.overrides) == without_resume([*overrides, "resume=auto"])


@pytest.mark.parametrize(
    "argument",
    [
        "hydra.launcher.setup=[export HF_TOKEN=hunter2]", '+hydra.launcher.additional_parameters={export: "X=hunter2"}',
        "++hydra.launcher.additional_parameters.export=X=hunter2", "hydra.launcher.srun_args=[--export=X=hunter2]",
        "hydra.launcher={setup: [export X=hunter2]}",
    ],
)  # fmt: skip
def test_values_of_free_text_are_left_out_of_the_shown_command(argument):
    shown = command_text(["train", argument, "optimizer.lr=3e-5"])
    assert "hunter2" not in shown and argument.partition("=")[0] in shown and "lr=3e-5" in shown


def test_the_history_has_a_line_for_each_job_with_the_commit_and_is_left_out_of_it(tmp_path, monkeypatch):
    (tmp_path / ".git").mkdir()
    (tmp_path / "deep").mkdir()
    monkeypatch.chdir(tmp_path / "deep")
    tickets = [Ticket(Job(number, "run", (), str(number)), f"9_{number}", "/log") for number in range(2)]
    add_to_history("slurm", tickets, command_text(["train", "a='b\nc\td'"]))
    rows = read_history()
    assert [(row["job"], row["id"], row["folder"]) for row in rows] == [
        (str(number), f"9_{number}", f"{tmp_path}/deep/run") for number in range(2)
    ]
    assert read_history(tmp_path / "deep/run") == rows == read_history(tmp_path)
    assert read_history(tmp_path / "deep/r") == []
    assert "\\n" in rows[0]["command"] and (tmp_path / ".nlu/.gitignore").read_text() == "*\n"


def test_the_history_records_changed_files_and_keeps_its_columns(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "code.py").write_text("1")
    who = ("-c", "user.name=a", "-c", "user.email=a@b")
    for arguments in (["init", "-q"], ["add", "code.py"], [*who, "commit", "-q", "-m", "one"]):
        subprocess.run(["git", *arguments], check=True)
    commit = subprocess.run(["git", "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout
    for number, text in enumerate("12"):
        (tmp_path / "code.py").write_text(text)
        submissions._git_state.cache_clear()
        add_to_history("slurm", [Ticket(Job(number, "a\tb", (), str(number)), "9", "c\nd")], "train")
    rows = read_history()
    assert [row["changed"] for row in rows] == ["no", "yes"]
    assert {row["commit"] for row in rows} == {commit[:12]}
    assert {(row["folder"], row["log"], row["command"]) for row in rows} == {(f"{tmp_path}/a\\tb", "c\\nd", "train")}


def test_a_folder_has_one_name_on_all_machines_and_no_other_folder_has_it(tmp_path, monkeypatch):
    first = Submissions(tmp_path / "a").name()
    monkeypatch.setattr("socket.gethostname", lambda: "another-machine")
    assert Submissions(tmp_path / "a").name() == first != Submissions(tmp_path / "b").name()


def test_records_are_found_below_a_folder_but_not_within_hidden_ones(tmp_path):
    for place in ("a", "a/b", ".hidden/c"):
        (tmp_path / place).mkdir(parents=True, exist_ok=True)
        submit(Submissions(tmp_path / place), 0)
    assert [record.folder for record in submissions_below(tmp_path)] == [tmp_path / "a", tmp_path / "a/b"]


def test_without_locks_jobs_are_written_down_and_nothing_leaves_nothing(tmp_path, monkeypatch):
    def refused(descriptor, operation):
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr("fcntl.flock", refused)
    with Submissions(tmp_path / "run").held():
        submit(Submissions(tmp_path / "run"), 0)
    assert [known.job.number for known in Submissions(tmp_path / "run").read()] == [0]
    with Submissions(tmp_path / "nothing").held():
        pass
    assert not (tmp_path / "nothing").exists()


def test_changes_since_a_record_was_read_are_returned_once(tmp_path):
    record, other = Submissions(tmp_path), Submissions(tmp_path)
    tickets = submit(other, 0, 1)
    assert [one.job.number for one in record.changed()] == [0, 1] and record.changed() == []
    other.submitted(tickets[1:])
    other.ended(tickets[1].job.token, "done")
    (changed,) = record.changed()
    assert (changed.ticket, changed.ended) == (tickets[1], "done") and record.changed() == []
    other.refused([tickets[0].job])
    assert record.changed() == [] and [one.job.number for one in record.read()] == [1]
    # It is moved away, and another has begun: a shorter one, a longer one, and none.
    file = tmp_path / FOLDER / FILE
    for count in (1, 9):
        file.rename(tmp_path / f"moved-{count}")
        submit(other, *range(10, 10 + count))
        assert [one.job.number for one in record.read()] == list(range(10, 10 + count))
    file.rename(tmp_path / "moved")
    assert record.read() == [] == record.changed()


def test_a_line_of_invalid_json_is_named(tmp_path):
    record = Submissions(tmp_path)
    submit(record, 0)
    with open(tmp_path / FOLDER / FILE, "a") as file:
        file.write("[\n")
    with pytest.raises(DataError, match=rf"{FILE}:2 is not JSON; move the file away"):
        record.read()


def test_the_overrides_of_a_job_are_compared_without_resume():
    overrides = ["resume=auto", "+resume=x", "++resume=y", "data.resume=1", "resumed=2", "a.token=abc"]
    assert without_resume(overrides) == ["data.resume=1", "resumed=2", "a.token=***"]


def test_tokens_are_unique():
    tokens = [*new_tokens(3), *new_tokens(2)]
    assert len(set(tokens)) == 5 and [token.rpartition("-")[2] for token in tokens] == ["0", "1", "2", "0", "1"]


def test_two_commands_do_not_submit_into_one_folder_and_nothing_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr("nlu.launching.submissions.WAIT_S", 0.05)
    folder = tmp_path / "run"
    with Submissions(folder).held():
        with pytest.raises(UserError, match="another command is submitting into .*run; try again once it is done"):
            with Submissions(folder).held():
                pass
        assert (folder / FOLDER).is_dir()
    assert not folder.exists()
    folder.mkdir()
    with Submissions(folder).held():
        Submissions(folder).name()
    assert folder.is_dir() and not list(folder.iterdir()), "a folder that was there stays"
    with Submissions(folder).held():
        submit(Submissions(folder), 0)
    with Submissions(folder).held():
        pass
    assert [one.job.number for one in Submissions(folder).read()] == [0]


def test_a_history_that_cannot_be_written_stops_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".nlu/submissions.tsv").mkdir(parents=True)
    add_to_history("slurm", [Ticket(Job(0, "run", (), "0"), "9")], "train")
    assert "submissions.tsv is not written: Is a directory" in capsys.readouterr().err and read_history() == []
    assert project_folder(tmp_path / "x") == tmp_path / "x", "outside of a checkout"
