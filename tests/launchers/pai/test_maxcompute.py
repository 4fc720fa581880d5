"""PAI commands of a MaxCompute project as a queue, against a double that checks signatures and loses answers."""

import hashlib
import json
import time

import pytest

pytest.importorskip("odps", reason="PyODPS comes with the extra pai")

from hydra_plugins.pai_launcher import _maxcompute
from hydra_plugins.pai_launcher._command import Program, attempt_in
from hydra_plugins.pai_launcher._maxcompute import MaxComputeQueue
from hydra_plugins.pai_launcher._requests import Credentials
from hydra_plugins.pai_launcher._settings import PaiSettings

from nlu.config.errors import UserError
from nlu.launching.queue import Job, JobRefused, JobState
from tests.launchers.pai.faults import FAULTS, survive

SETTINGS = {
    "backend": "maxcompute", "region": "cn-hangzhou", "project": "proj1", "oss_folder": "oss://bucket/nlu",
    "gpus": 2, "cpus": 8, "memory_gb": 32,
}  # fmt: skip
ARCHIVE = f"nlu-code-{hashlib.sha256(b'the code').hexdigest()[:32]}.tar.gz"


@pytest.fixture
def queue_of(server, keys, claims, code):
    def opened(keys=keys, **settings) -> MaxComputeQueue:
        wanted = PaiSettings(**{**SETTINGS, "endpoint": f"http://{server.host}/api", **settings})
        return MaxComputeQueue(wanted, keys, claims, code, Program())

    server.resources[ARCHIVE] = b""
    return opened


def job(number: int) -> Job:
    return Job(number, f"oss://bucket/nlu/runs/x/{number}", (f"seed={number}",), f"token{number}")


def test_a_job_requests_its_settings(server, queue_of):
    queue = queue_of(workers=3, priority=8, tables=["odps://proj1/tables/a", "odps://proj1/tables/b/pt=1"],
                     role="acs:ram::1:role/nlu")  # fmt: skip
    (ticket,) = queue.submit([job(7)])
    request = server.jobs[ticket.id].request
    assert (request["xflow"], request["project"], request["priority"]) == ("pytorch180", "algo_public", "1")
    given = request["parameters"]
    assert json.loads(given.pop("cluster")) == {"worker": {"gpu": 200, "cpu": 800, "memory": 32768}}
    assert attempt_in(given.pop("userDefinedParameters"))[0] == "token7"
    assert given == {
        "script": f"odps://proj1/resources/{ARCHIVE}", "entryFile": "nlu_pai_entry.py", "workerCount": "3",
        "tables": "odps://proj1/tables/a,odps://proj1/tables/b/pt=1",
        "buckets": "oss://bucket/nlu/?role_arn=acs:ram::1:role/nlu&host=oss-cn-hangzhou-internal.aliyuncs.com",
    }  # fmt: skip


def test_machines_with_a_kind_of_gpu_are_asked_for_by_their_label(server, queue_of):
    (ticket,) = queue_of(gpu_type="V100").submit([job(0)])
    assert server.jobs[ticket.id].request["settings"]["odps.algo.hybrid.deploy.info"] == "LABEL:V100:OPER_EQUAL"


def test_the_table_that_a_job_writes_is_named_as_its_output(server, queue_of):
    own = ("run=oss://b/r", "output=odps://proj1/tables/out")
    (ticket,) = queue_of().submit([Job(0, "oss://bucket/nlu/runs/x/0", own, "token0")])
    assert server.jobs[ticket.id].request["parameters"]["outputs"] == "odps://proj1/tables/out"


@pytest.mark.parametrize(
    ("shown", "state"),
    [
        ("Waiting", JobState.WAITING), ("Suspended", JobState.WAITING), ("Running", JobState.RUNNING),
        ("Success", JobState.DONE), ("Failed", JobState.FAILED), ("Cancelled", JobState.CANCELLED),
    ],
)  # fmt: skip
def test_each_status_means_a_state(server, queue_of, shown, state):
    queue = queue_of()
    (ticket,) = queue.submit([job(0)])
    server.jobs[ticket.id].status = shown
    server.jobs[ticket.id].log.write_text("no memory left")
    look = queue.look([ticket.id])[ticket.id]
    assert look.state == state and look.reason == ("no memory left" if state is JobState.FAILED else None)


def test_an_instance_that_is_not_known_is_lost_unless_it_is_new(server, queue_of):
    queue = queue_of()
    (ticket,) = queue.submit([job(0)])
    del server.jobs[ticket.id]
    looks = queue.look([ticket.id, "2026unknown"])
    assert looks[ticket.id].state is JobState.WAITING and looks["2026unknown"].state is JobState.LOST


def test_cancelled_instances_stop_and_ended_ones_stay(server, queue_of):
    queue = queue_of()
    tickets = queue.submit([job(0), job(1)])
    server.jobs[tickets[1].id].status = "Success"
    queue.cancel([ticket.id for ticket in tickets] + ["2026unknown"])
    looks = queue.look([ticket.id for ticket in tickets])
    assert [look.state for look in looks.values()] == [JobState.CANCELLED, JobState.DONE]


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("verb", ["create", "look", "cancel", "upload"])
def test_a_fault_doubles_and_loses_nothing(server, queue_of, code, fault, verb):
    def upload(queue, ticket):
        server.resources.clear()
        queue.upload(code)
        assert server.resources == {ARCHIVE: b"the code"}

    survive(server, queue_of(), job(0), fault, verb, upload)


def test_an_instance_that_appears_late_is_stopped(server, queue_of):
    times = iter(["late"])
    server.fault = lambda method, path: next(times, None) if method == "POST" else None
    queue = queue_of()
    (ticket,) = queue.submit([job(0)])
    deadline_s = time.monotonic() + 10
    while len(server.jobs) < 2 and time.monotonic() < deadline_s:
        time.sleep(0.05)
    queue.look([ticket.id])
    alive = [started.id for started in server.jobs.values() if started.status != "Stopped"]
    assert alive == [ticket.id] and len(server.jobs) == 2


def test_jobs_of_a_cut_submission_are_found_by_their_tokens(server, queue_of):
    tickets = queue_of().submit([job(0), job(1)])
    _maxcompute._sources.clear()
    assert queue_of().find([job(1), job(5), job(0)]) == [tickets[1], None, tickets[0]]


def test_a_refused_list_is_reported_in_one_sentence(server, queue_of):
    (ticket,) = queue_of().submit([job(0)])
    queue = queue_of(Credentials("LTAI-of-the-double", "a-wrong-secret"))
    with pytest.raises(UserError, match=r"MaxCompute does not list the instances .*ALIBABA_CLOUD_ACCESS_KEY_SECRET"):
        queue.find([job(0)])
    queue.ambiguous.note("token0", time.time() - 9, ticket.id)
    with pytest.raises(UserError, match="does not list the instances"):
        queue.look([ticket.id])


def test_an_instance_that_does_not_tell_its_source_at_first_is_asked_again(server, queue_of, monkeypatch):
    tickets = queue_of().submit([job(0)])
    server.fault = lambda method, path: "403" if "source" in path else None
    _maxcompute._sources.clear()
    assert queue_of().find([job(0)]) == [None]
    server.fault = lambda method, path: None
    assert queue_of().find([job(0)]) == tickets
    _maxcompute._sources.clear()
    monkeypatch.setattr(_maxcompute, "NEW_S", 0.0)
    server.fault = lambda method, path: "403" if "source" in path else None
    assert queue_of().find([job(0)]) == [None]
    server.requests.clear()
    assert queue_of().find([job(0)]) == [None]
    assert not any("source" in path for _, path in server.requests), "one of long ago stays what it is"
    _maxcompute._sources.clear()


def test_a_token_that_begins_like_another_one_names_another_job(server, queue_of):
    tickets = queue_of().submit([job(1), job(10)])
    assert queue_of().find([job(1), job(10)]) == tickets
    assert [started.status for started in server.jobs.values() if started.status == "Stopped"] == []


def test_the_code_is_uploaded_once_for_each_content_and_the_store_written_to(server, queue_of, code, claims):
    server.resources.clear()
    queue_of().upload(code)
    assert claims.get("writable") == b"1\n"
    server.requests.clear()
    queue_of().upload(code)
    assert {method for method, _ in server.requests} == {"GET"}


def test_a_refused_job_says_why(server, queue_of):
    queue = queue_of(framework_version="tensorflow")
    with pytest.raises(
        JobRefused, match=r"did not take job 0: .*xflow tensorflow is not found.*; correct what hydra\.launcher"
    ):
        queue.submit([job(0), job(1)])
    assert server.jobs == {}


def test_wrong_keys_are_reported_by_their_variables_and_not_repeated(server, queue_of, capfd):
    queue = queue_of(Credentials("LTAI-of-the-double", "a-wrong-secret"))
    with pytest.raises(JobRefused) as raised:
        queue.submit([job(0)])
    text = str(raised.value)
    captured = capfd.readouterr()
    assert "ALIBABA_CLOUD_ACCESS_KEY_SECRET" in text and server.jobs == {}
    assert "a-wrong-secret" not in text + captured.out + captured.err and "LTAI" not in text
