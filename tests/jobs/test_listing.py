"""Jobs of several submissions, found again by another process: where they are, what is cancelled, what is followed."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from nlu.config.errors import UserError
from nlu.jobs import following
from nlu.jobs.following import answered, follow, latest, listed, queued, records_of
from nlu.jobs.queue import Job, JobState, Look, QueueContext, QueuedJob, Ticket
from nlu.jobs.submissions import Submissions


class Fixed:
    """A queue in which every job is as a test says."""

    def __init__(self, name: str, place: QueueContext):
        self.name, self.place = name, place
        self.looks: dict[str, Look] = {}
        self.outcomes: dict[str, Any] = {}
        self.asked: list[str] = []
        self.is_away = False

    def look(self, tickets: Sequence[Ticket]) -> Mapping[str, Look]:
        if self.is_away:
            raise OSError("connection refused")
        self.asked += [ticket.id for ticket in tickets]
        return {one.id: self.looks.get(one.id, Look(JobState.RUNNING, f"node of {one.id}")) for one in tickets}

    def outcome(self, ticket: Ticket, *, fetches: bool = True) -> Any:
        if fetches:
            self.asked.append(f"outcome {ticket.id}")
        return self.outcomes.get(ticket.id)


@pytest.fixture
def queues(monkeypatch: pytest.MonkeyPatch) -> dict[Path, Fixed]:
    """The queues that were opened, by the folder."""
    opened: dict[Path, Fixed] = {}

    def open_queue(name: str, place: QueueContext) -> Fixed:
        return opened.setdefault(place.folder, Fixed(name, place))

    monkeypatch.setattr(following, "open_queue", open_queue)
    return opened


def submit(folder: Path, *numbers: int, queue: str = "slurm", takes: bool = True, start: str = "1") -> Submissions:
    record = Submissions(folder)
    jobs = [Job(number, str(folder / str(number)), (), f"{folder.name}-{number}-{start}") for number in numbers]
    record.begin(jobs, queue, {"partition": "gpu"}, "train")
    if takes:
        record.submitted([Ticket(job, f"{folder.name}/{job.number}/{start}", f"/log/{job.number}") for job in jobs])
    return record


def test_each_job_is_listed_by_its_newest_submission_and_only_open_ones_are_polled(
    tmp_path: Path, queues: dict[Path, Fixed]
) -> None:
    first = submit(tmp_path / "a", 2, 0, 1)
    first.ended("a-1-1", "failed")
    submit(tmp_path / "a", 2, start="2")
    submit(tmp_path / "b", 0, queue="local")
    submit(tmp_path / "b", 1, takes=False)
    records = records_of(tmp_path)
    assert [record.folder.name for record in records] == ["a", "b"]
    found = latest(records)
    assert [(folder.name, one.job.number, one.ticket and one.ticket.id) for folder, one in found] == [
        ("a", 0, "a/0/1"), ("a", 1, "a/1/1"), ("a", 2, "a/2/2"), ("b", 0, "b/0/1"), ("b", 1, None),
    ]  # fmt: skip
    queued(found)
    queues[tmp_path / "a"].looks["a/0/1"] = Look(JobState.DONE)
    queues[tmp_path / "a"].outcomes["a/0/1"] = 2
    queues[tmp_path / "a"].looks["a/2/2"] = Look(JobState.WAITING, None, "Priority", is_certain=False)
    rows = listed(found)
    assert [(row.folder.name, row.state, row.node, row.reason, row.is_certain, row.is_open) for row in rows] == [
        ("a", "failed", "", "", True, False),
        ("a", "failed", "", "", True, False),
        ("a", "waiting", "", "Priority", False, True),
        ("b", "running", "node of b/0/1", "", True, True),
        ("b", "unknown", "", "its submission was cut off", True, False),
    ]
    assert queues[tmp_path / "a"].asked == ["a/0/1", "a/2/2"]
    assert {queue.name: queue.place.settings for queue in queues.values()} == dict.fromkeys(
        ("slurm", "local"), {"partition": "gpu"}
    )
    queues[tmp_path / "b"].is_away = True
    with pytest.raises(UserError, match="does not answer: connection refused; try again later"), answered():
        listed(found)
    assert listed([]) == []


def test_open_jobs_are_followed_and_ended_ones_are_reported_and_fetched(
    tmp_path: Path, queues: dict[Path, Fixed], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    followed: list[Any] = []

    class Follower:
        def __init__(self, jobs: Sequence[QueuedJob], names: Mapping[str, str], folder: Path, _: Any):
            followed.append(([job.ticket.id for job in jobs], dict(names), folder))

        def run(self) -> None:
            followed.append("run")

    monkeypatch.setattr(following, "Follower", Follower)
    submit(tmp_path / "a", 0, 1, 2).ended("a-2-1", "lost")
    queue = queues.setdefault(tmp_path / "a", Fixed("slurm", QueueContext({}, tmp_path / "a")))
    queue.looks["a/1/1"] = Look(JobState.FAILED, None, "OutOfMemory")
    follow([tmp_path])
    names = {f"a-{number}-1": f"job {number}" for number in range(3)}
    assert followed == [(["a/0/1"], names, tmp_path), "run"] and "outcome a/1/1" in queue.asked
    assert capsys.readouterr().err == (
        "nlu: job 1: failed (OutOfMemory); its log: /log/1\nnlu: job 2: lost; its log: /log/2\n"
    )
    assert "outcome a/2/1" not in queue.asked, "somebody has fetched it"
    submit(tmp_path / "b", 0)
    follow([tmp_path / "b", tmp_path / "a"])
    assert followed[2][1]["b-0-1"] == f"{tmp_path / 'b'} job 0" and followed[2][2] == tmp_path / "b"
    followed.clear()
    queue.looks["a/0/1"] = Look(JobState.DONE)
    follow([tmp_path / "a"])
    assert followed == []
    for folder, said in ((tmp_path / "none", "is not a folder; give"), (tmp_path / "a/0", "is not a folder; give")):
        with pytest.raises(UserError, match=said):
            follow([folder])
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="nothing was submitted in .*empty; give the folder of a run"):
        follow([tmp_path / "empty"])
    (tmp_path / "empty" / "search.json").write_text("{}")
    with pytest.raises(UserError, match="its trials run in the search itself, which .*empty --stop ends for good"):
        records_of(tmp_path / "empty")
