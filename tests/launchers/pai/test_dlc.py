"""PAI-DLC as a queue, against a double that checks signatures, loses answers and is full."""

import logging
import time

import pytest

pytest.importorskip("alibabacloud_pai_dlc20201203", reason="the SDK of PAI-DLC comes with the extra pai")

from hydra_plugins.pai_launcher import _dlc
from hydra_plugins.pai_launcher._claim import NO_ATTEMPT, holder_after
from hydra_plugins.pai_launcher._command import Program
from hydra_plugins.pai_launcher._dlc import DlcQueue
from hydra_plugins.pai_launcher._requests import Credentials, ServiceUnavailable
from hydra_plugins.pai_launcher._settings import PaiSettings

from nlu.launching.queue import Job, JobRefused, JobState
from nlu.storage import bucket
from tests.launchers.pai.faults import FAULTS, survive

SETTINGS = {
    "region": "cn-hangzhou", "workspace": "1234", "image": "registry/nlu:1", "oss_folder": "oss://bucket/nlu",
    "resource_quota": "quota1", "gpus": 2, "cpus": 8, "memory_gb": 32,
}  # fmt: skip


@pytest.fixture
def queue_of(server, keys, claims, code):
    def opened(keys=keys, **settings) -> DlcQueue:
        wanted = PaiSettings(**{**SETTINGS, "endpoint": f"http://{server.host}", **settings})
        return DlcQueue(wanted, keys, claims, code, Program())

    return opened


def job(number: int, *overrides: str) -> Job:
    return Job(number, f"oss://bucket/nlu/runs/x/{number}", overrides or (f"seed={number}",), f"token{number}")


def made(server) -> list:
    return [started for started in server.jobs.values() if started.status != "Stopped"]


def specs_of(request: dict) -> list[dict]:
    """What is said of the machines; the SDK adds empty lists."""
    return [{key: value for key, value in spec.items() if value != []} for spec in request["JobSpecs"]]


def test_a_job_requests_its_settings(server, queue_of):
    queue = queue_of(workers=3, priority=4, max_minutes=90, environment={"A": "b"})
    (ticket,) = queue.submit([job(7)])
    request = server.jobs[ticket.id].request
    share = {"CPU": "8", "Memory": "32Gi", "GPU": "2", "SharedMemory": "32Gi"}
    assert specs_of(request) == [
        {"Type": "Master", "PodCount": 1, "Image": "registry/nlu:1", "ResourceConfig": share},
        {"Type": "Worker", "PodCount": 2, "Image": "registry/nlu:1", "ResourceConfig": share},
    ]
    assert request["WorkspaceId"] == "1234" and request["ResourceId"] == "quota1" and request["Priority"] == 4
    assert request["JobMaxRunningTimeMinutes"] == 90 and request["JobType"] == "PyTorchJob"
    assert request["Envs"] == {"OSS_ENDPOINT": "https://oss-cn-hangzhou-internal.aliyuncs.com", "A": "b"}
    assert request["CredentialConfig"]["EnableCredentialInject"] is True
    assert request["Settings"]["Tags"]["nlu-token"] == "token7"
    assert ticket.id in ticket.log


def test_a_quota_is_asked_for_a_kind_of_gpu(server, queue_of):
    (ticket,) = queue_of(gpu_type="V100").submit([job(0)])
    (spec,) = specs_of(server.jobs[ticket.id].request)
    assert spec["ResourceConfig"]["GPUType"] == "V100"


def test_all_machines_of_a_job_see_what_is_mounted(server, queue_of, tmp_path):
    data, runs = f"{tmp_path}/mnt/data", f"{tmp_path}/mnt/runs"
    queue = queue_of(
        mounts=[f"d-1abc:{data}", f"nas://1.cn-hangzhou/share:{runs}"], work_folder=f"{runs}/mine", workers=2
    )
    (ticket,) = queue.submit([job(7)])
    assert server.jobs[ticket.id].request["DataSources"] == [
        {"DataSourceId": "d-1abc", "MountPath": data},
        {"Uri": "nas://1.cn-hangzhou/share", "MountPath": runs, "MountAccess": "RW"},
    ]


def test_public_machines_are_named_by_their_type(server, queue_of):
    queue = queue_of(resource_quota=None, instance_type="ecs.gn6v", role="acs:ram::1:role/nlu")
    (ticket,) = queue.submit([job(0)])
    request = server.jobs[ticket.id].request
    assert specs_of(request) == [{"Type": "Master", "PodCount": 1, "Image": "registry/nlu:1", "EcsSpec": "ecs.gn6v"}]
    (item,) = request["CredentialConfig"]["CredentialConfigItems"]
    assert item["Roles"][0]["RoleArn"] == "acs:ram::1:role/nlu"


@pytest.mark.parametrize(
    ("shown", "state"),
    [
        ("Creating", JobState.WAITING), ("Queuing", JobState.WAITING), ("Bidding", JobState.WAITING),
        ("EnvPreparing", JobState.WAITING), ("SanityChecking", JobState.WAITING), ("Running", JobState.RUNNING),
        ("Restarting", JobState.RUNNING), ("Stopping", JobState.RUNNING), ("Unheard-of", JobState.RUNNING),
        ("SucceededReserving", JobState.DONE), ("Succeeded", JobState.DONE), ("FailedReserving", JobState.FAILED),
        ("Failed", JobState.FAILED), ("Stopped", JobState.CANCELLED),
    ],
)  # fmt: skip
def test_each_status_means_a_state(server, queue_of, shown, state):
    queue = queue_of()
    first, second = queue.submit([job(0), job(1)])
    server.jobs[first.id].status = server.jobs[second.id].status = shown
    looks = queue.look([first.id, second.id])
    assert {look.state for look in looks.values()} == {state} and list(looks) == [first.id, second.id]
    assert queue.look([second.id])[second.id].state == state


def test_a_job_that_is_not_known_is_lost_unless_it_is_new(server, queue_of):
    queue = queue_of()
    (ticket,) = queue.submit([job(0)])
    del server.jobs[ticket.id]
    looks = queue.look([ticket.id, "dlcunknown"])
    assert looks[ticket.id].state is JobState.WAITING and looks["dlcunknown"].state is JobState.LOST
    assert queue.log_tail("dlcunknown") == []


def test_cancelled_jobs_stop_and_ended_ones_stay(server, queue_of):
    queue = queue_of()
    tickets = queue.submit([job(0), job(1)])
    server.jobs[tickets[1].id].status = "Succeeded"
    queue.cancel([ticket.id for ticket in tickets] + ["dlcunknown"])
    looks = queue.look([ticket.id for ticket in tickets])
    assert [look.state for look in looks.values()] == [JobState.CANCELLED, JobState.DONE]


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("verb", ["create", "look", "cancel", "log"])
def test_a_fault_doubles_and_loses_nothing(server, queue_of, fault, verb):
    def read_log(queue, ticket):
        server.jobs[ticket.id].status = "Running"
        server.jobs[ticket.id].log.write_text("one\ntwo\n")
        assert queue.log_tail(ticket.id, 1) == ["two"]

    survive(server, queue_of(), job(0), fault, verb, read_log)


def test_a_job_that_appears_late_is_stopped(server, queue_of):
    times = iter(["late"])
    server.fault = lambda method, path: next(times, None)
    queue = queue_of()
    (ticket,) = queue.submit([job(0)])
    assert list(server.jobs) == [ticket.id]
    deadline_s = time.monotonic() + 10
    while len(server.jobs) < 2 and time.monotonic() < deadline_s:
        time.sleep(0.05)
    queue.look([ticket.id])
    assert [started.id for started in made(server)] == [ticket.id] and len(server.jobs) == 2


def test_a_job_that_appears_late_but_works_already_is_the_one_that_stays(server, queue_of, claims, monkeypatch):
    """Before it is stopped a second job may begin: the one with the claim is followed, not the one that the
    service answered for."""
    created = []

    def create(self, request):
        answer = real(self, request)
        created.append(answer.body.job_id)
        if len(created) == 1:
            # It begins at once, and neither an answer nor a list tells of it yet.
            first = server.jobs.pop(created[0])
            hidden.append(first)
            assert holder_after(claims, "token0", first.request["Settings"]["Tags"]["nlu-attempt"])
            raise TimeoutError("no answer")
        server.jobs[created[0]] = hidden[0]
        return answer

    from alibabacloud_pai_dlc20201203.client import Client

    hidden, real = [], Client.create_job
    monkeypatch.setattr(Client, "create_job", create)
    (ticket,) = queue_of().submit([job(0)])
    assert ticket.id == created[0] and len(created) == 2
    assert [started.id for started in made(server)] == [created[0]]


def test_another_command_finds_the_job_that_works_of_two(server, queue_of, claims):
    tickets = [queue_of().submit([job(0)])[0] for _ in range(2)]
    server.jobs[tickets[0].id].created_s -= 100
    attempt = server.jobs[tickets[1].id].request["Settings"]["Tags"]["nlu-attempt"]
    assert holder_after(claims, "token0", attempt) == attempt
    assert [one.id for one in queue_of().find([job(0)])] == [tickets[1].id]
    assert [started.id for started in made(server)] == [tickets[1].id]


def test_a_late_job_of_a_withdrawn_submission_ends_without_computing(server, queue_of, claims, two_attempts):
    fates = iter(["late", "403"])
    server.fault = lambda method, path: next(fates) if method == "POST" and path.endswith("jobs") else None
    with pytest.raises(JobRefused, match="did not take job 0"):
        queue_of().submit([job(0)])
    assert holder_after(claims, "token0", "of-a-late-job") == NO_ATTEMPT


def test_a_refused_submission_is_withdrawn_as_far_as_can_be_while_the_store_is_away(
    server, queue_of, two_attempts, monkeypatch, caplog
):
    monkeypatch.setattr(bucket, "RETRY_DELAYS_S", ())
    monkeypatch.setenv("OSS_ENDPOINT", "http://127.0.0.1:9")
    fates = iter([None, "late", "403"])
    server.fault = lambda method, path: next(fates) if method == "POST" and path.endswith("jobs") else None
    queue = queue_of()
    with pytest.raises(JobRefused, match="did not take job 1"):
        queue.submit([job(0), job(1)])
    assert made(server) == [], "what was taken is stopped first"
    assert "may still have a job of submission token1" in caplog.text
    deadline_s = time.monotonic() + 10
    while len(server.jobs) < 2 and time.monotonic() < deadline_s:
        time.sleep(0.05)
    queue.look([])
    assert made(server) == [] and len(server.jobs) == 2


def test_after_an_outage_the_same_jobs_are_handed_over_again_and_none_is_doubled(server, queue_of, two_attempts):
    created = 0

    def fault(method: str, path: str) -> str | None:
        nonlocal created
        created += method == "POST"
        return "503" if created > 2 else None

    server.fault = fault
    queue, jobs = queue_of(), [job(number) for number in range(4)]
    with pytest.raises(ServiceUnavailable, match="503"):
        queue.submit(jobs)
    server.fault = lambda method, path: None
    tickets = queue.submit(jobs)
    assert sorted(ticket.id for ticket in tickets) == sorted(server.jobs) and len(tickets) == 4
    assert queue.find(jobs) == tickets and queue_of().find([job(9), jobs[0]])[0] is None


def test_a_refused_job_leaves_none_of_its_submission_in_the_queue(server, queue_of, monkeypatch):
    queue = queue_of()
    request = DlcQueue._request

    def wrong(self, job, attempt):
        made = request(self, job, attempt)
        if job.number == 1:
            made.job_specs[0].image = "registry/nlu:none"
        return made

    monkeypatch.setattr(DlcQueue, "_request", wrong)
    with pytest.raises(JobRefused, match=r"did not take job 1: InvalidImage: .*cannot be pulled.*hydra\.launcher"):
        queue.submit([job(0), job(1), job(2)])
    assert made(server) == [] and len(server.jobs) == 1


def test_wrong_keys_are_reported_by_their_variables_and_not_repeated(server, queue_of, caplog):
    caplog.set_level(logging.DEBUG)
    queue = queue_of(Credentials("LTAI-of-the-double", "a-wrong-secret"))
    with pytest.raises(JobRefused) as raised:
        queue.submit([job(0)])
    text = str(raised.value)
    assert "ALIBABA_CLOUD_ACCESS_KEY_SECRET" in text and "SignatureDoesNotMatch" in text and server.jobs == {}
    assert "a-wrong-secret" not in text + caplog.text + repr(queue.__dict__) and "LTAI" not in text


def test_the_log_is_that_of_the_first_machine(server, queue_of):
    queue = queue_of()
    (ticket,) = queue.submit([job(0)])
    assert queue.log_tail(ticket.id, 3) == []
    server.jobs[ticket.id].status = "Running"
    server.jobs[ticket.id].log.write_text("".join(f"line {number}\n" for number in range(5)))
    assert queue.log_tail(ticket.id, 3) == ["line 2", "line 3", "line 4"]


def test_many_jobs_are_looked_at_with_few_requests(server, queue_of):
    queue = queue_of()
    ids = [ticket.id for ticket in queue.submit([job(number) for number in range(2 * _dlc.IDS_PER_QUESTION + 1)])]
    server.requests.clear()
    assert list(queue.look(ids)) == ids and len(server.requests) == 3
