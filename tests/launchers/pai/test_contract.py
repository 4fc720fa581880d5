"""What every kind of queue on PAI does: submit, look, cancel, find, read the log, refuse; answers that are lost."""

import json
import logging
from pathlib import Path

import pytest
from hydra_plugins.pai_launcher._queue import ServiceAway

from nlu.config.errors import UserError, is_temporary
from nlu.jobs.queue import JobRefused, JobState, Ticket
from tests.launchers.pai.projects import job, kept_run

STATUSES = {
    "dlc": {
        "Creating": JobState.WAITING, "Queuing": JobState.WAITING, "Bidding": JobState.WAITING,
        "EnvPreparing": JobState.WAITING, "SanityChecking": JobState.WAITING, "Running": JobState.RUNNING,
        "Restarting": JobState.RUNNING, "Stopping": JobState.RUNNING, "Unheard-of": JobState.RUNNING,
        "SucceededReserving": JobState.DONE, "Succeeded": JobState.DONE, "FailedReserving": JobState.FAILED,
        "Failed": JobState.FAILED, "Stopped": JobState.CANCELLED,
    },
    "maxcompute": {
        "Waiting": JobState.WAITING, "Suspended": JobState.WAITING, "Running": JobState.RUNNING,
        "Success": JobState.DONE, "Failed": JobState.FAILED,
        "Cancelled": JobState.CANCELLED,
    },
}  # fmt: skip
BACKENDS = ("dlc", "maxcompute", "odpscmd")
every_backend = pytest.mark.parametrize("backend", BACKENDS)
both_services = pytest.mark.parametrize("backend", BACKENDS[:2])
"""for what the client of a submission does not change"""


@pytest.fixture
def queue(opened, backend):
    return opened(backend)


def alive(server) -> list[str]:
    return [one.id for one in server.jobs.values() if one.status not in ("Stopped", "Succeeded")]


@every_backend
def test_jobs_get_a_ticket_each_with_their_page_and_wait(queue, server, backend):
    assert queue.is_elsewhere
    tickets = queue.submit([job(0), job(1)])
    assert [ticket.job for ticket in tickets] == [job(0), job(1)] and [one.id for one in tickets] == list(server.jobs)
    assert all(ticket.id in ticket.log for ticket in tickets)
    assert {look.state for look in queue.look(tickets).values()} == {JobState.WAITING}
    assert queue.log_tail(tickets[0]) == [] and queue.outcome(tickets[0]) is None


@both_services
def test_each_status_means_a_state(queue, server, backend):
    first, second = queue.submit([job(0), job(1)])
    for status, state in STATUSES[backend].items():
        server.jobs[first.id].status = server.jobs[second.id].status = status
        looks = queue.look([first, second])
        assert {look.state for look in looks.values()} == {state} and list(looks) == [first.id, second.id], status
        assert queue.look([second])[second.id].state is state, status


@both_services
def test_cancelled_jobs_stop_ended_ones_stay_and_unknown_ones_are_lost(queue, server, backend):
    first, second = queue.submit([job(0), job(1)])
    server.jobs[second.id].status = "Succeeded"
    unknown = Ticket(job(7), "2026unknown")
    queue.cancel([first, second, unknown])
    assert [look.state for look in queue.look([first, second, unknown]).values()] == [
        JobState.CANCELLED, JobState.DONE, JobState.LOST,
    ]  # fmt: skip
    assert queue.log_tail(unknown) == []


@both_services
def test_another_command_finds_jobs_by_their_tokens(queue, opened, backend):
    tickets = queue.submit([job(1), job(10)])
    assert opened(backend).find([job(10), job(5), job(1)]) == [tickets[1], None, tickets[0]]


@both_services
def test_another_command_fetches_the_run_and_its_log_from_the_mirror(queue, opened, server, tmp_path, project, backend):
    (ticket,) = queue.submit([job(0)])
    kept_run(queue.mirror_of(job(0)), tmp_path / "elsewhere")
    server.jobs[ticket.id].status = "Failed"
    other = opened(backend)
    assert other.outcome(ticket, fetches=False) is None, "which fetches nothing"
    assert other.outcome(ticket) == 0, "its result counts although its machine failed"
    assert json.loads((project / "outputs/grid/0/result.json").read_text()) == {"steps": 6}
    assert other.log_tail(ticket, 1) == ["two"] and other.outcome(ticket, fetches=False) == 0


@pytest.mark.parametrize("fault", ["429", "500", "lost", "cut"])
@both_services
def test_a_question_or_a_stop_is_repeated_until_it_is_answered(queue, server, fault, backend):
    (ticket,) = queue.submit([job(0)])
    for ask in (
        lambda: queue.look([ticket])[ticket.id].state is JobState.WAITING,
        lambda: queue.find([job(0)]) == [ticket],
        lambda: queue.cancel([ticket]) or server.jobs[ticket.id].status == "Stopped",
    ):
        times = iter([fault, fault])
        server.fault = lambda method, path, times=times: next(times, None)
        assert ask()


@pytest.mark.parametrize("fault", ["429", "reset", "lost"])
@both_services
def test_a_submission_without_an_answer_is_not_repeated_and_its_job_is_found(queue, server, fault, backend):
    """The launcher asks for the jobs that are there before it hands over the others."""
    asked = iter([None, fault])
    is_creation = (lambda path: "instances" in path) if backend != "dlc" else (lambda path: path.endswith("/jobs"))
    server.fault = lambda method, path: next(asked, None) if method == "POST" and is_creation(path) else None
    with pytest.raises(ServiceAway) as raised:
        queue.submit([job(0), job(1), job(2)])
    assert is_temporary(raised.value) and isinstance(raised.value, OSError)
    taken = queue.find([job(0), job(1), job(2)])
    assert [ticket is not None for ticket in taken] == [True, fault == "lost", False]
    left = [one for one, ticket in zip([job(0), job(1), job(2)], taken, strict=True) if ticket is None]
    assert len({*(one.id for one in taken if one), *(one.id for one in queue.submit(left))}) == 3 == len(server.jobs)


@both_services
def test_a_job_that_is_refused_leaves_none_of_its_submission_in_the_queue(queue, server, backend):
    creations = iter([None, "403"])
    paths = ("/jobs", "/instances")
    server.fault = lambda method, path: (
        next(creations, None) if method == "POST" and path.partition("?")[0].endswith(paths) else None
    )
    with pytest.raises(JobRefused, match="injected"):
        queue.submit([job(0), job(1), job(2)])
    assert len(server.jobs) == 1 and alive(server) == []


def test_a_job_that_cannot_be_stopped_after_a_refusal_is_named(opened, server, caplog):
    fates = iter([None, "403"])
    server.fault = lambda method, path: "500" if "stop" in path else next(fates, None) if method == "POST" else None
    with pytest.raises(JobRefused, match="injected"):
        opened().submit([job(0), job(1)])
    assert f"PAI-DLC may still run jobs {', '.join(server.jobs)} of this submission" in caplog.text


@every_backend
def test_wrong_keys_are_reported_by_their_variables_and_nowhere_shown(
    opened, server, monkeypatch, caplog, capfd, backend
):
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("ALIBABA_CLOUD_ACCESS_KEY_SECRET", "a-wrong-secret")
    queue = opened(backend)
    with pytest.raises(JobRefused) as raised:
        queue.submit([job(0)])
    with pytest.raises(UserError) as of_look:
        queue.look([Ticket(job(0), "2026x")])
    captured = capfd.readouterr()
    said = f"{raised.value}{of_look.value}{caplog.text}{captured.out}{captured.err}{queue.__dict__}"
    assert "ALIBABA_CLOUD_ACCESS_KEY_SECRET" in str(raised.value) and server.jobs == {}
    assert "a-wrong-secret" not in said and "LTAI" not in said


@both_services
def test_the_code_is_uploaded_once_for_each_content(queue, opened, server, store, backend):
    queue.submit([job(0)])
    kept = [key for key in store.list() if key.startswith("code/")] if backend == "dlc" else list(server.resources)
    assert len(kept) == 1
    server.requests.clear()
    opened(backend).submit([job(1)])
    assert not [path for method, path in server.requests if method == "POST" and "resources" in path]
    assert [key for key in store.list() if key.startswith("code/")] == (kept if backend == "dlc" else [])


def test_jobs_are_not_refused_while_the_store_is_unreachable(opened, server, monkeypatch):
    monkeypatch.setenv("OSS_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(OSError) as raised:
        opened().submit([job(0)])
    assert is_temporary(raised.value) and server.jobs == {}


def test_no_job_is_made_over_a_store_whose_mirrors_two_runs_could_take(opened, server, monkeypatch):
    from tests.oss_server import OssServer

    with OssServer(versioned=True) as versioned:
        monkeypatch.setenv("OSS_ENDPOINT", versioned.environment["OSS_ENDPOINT"])
        with pytest.raises(JobRefused, match="in spite of x-oss-forbid-overwrite .*versioned.*; use another bucket"):
            opened().submit([job(0)])
    assert server.jobs == {}


def test_another_machine_that_sees_the_folder_finds_the_same_mirror(opened, monkeypatch):
    first = opened().mirror_of(job(1))
    monkeypatch.setattr("socket.gethostname", lambda: "another-machine")
    assert opened().mirror_of(job(1)) == first and Path(first).name == "1"
