"""What is particular to PAI commands of MaxCompute, by PyODPS and by odpscmd: requests, reasons, the client's text."""

import json
from pathlib import Path

import fake_odpscmd
import pytest
from hydra_plugins.pai_launcher._code import token_in
from hydra_plugins.pai_launcher._odpscmd import pai_command

from nlu.config.errors import UserError
from nlu.jobs.queue import JobRefused, JobState
from tests.launchers.pai.projects import job

TABLES = ["odps://proj1/tables/a", "odps://proj1/tables/评论 \"'$x/pt=1"]


def test_a_job_requests_its_settings(opened, server):
    (ticket,) = opened("maxcompute", priority=8, tables=TABLES, role="acs:ram::1:role/nlu", gpu_type="V100").submit(
        [job(7, "run=oss://b/r", "output=odps://proj1/tables/out")]
    )
    request = server.jobs[ticket.id].request
    assert (request["xflow"], request["project"], request["priority"]) == ("pytorch180", "algo_public", "1")
    assert request["settings"]["odps.algo.hybrid.deploy.info"] == "LABEL:V100:OPER_EQUAL"
    given = request["parameters"]
    assert json.loads(given.pop("cluster")) == {"worker": {"gpu": 200, "cpu": 800, "memory": 32768}}
    assert token_in(given.pop("userDefinedParameters")) == "token7"
    (code,) = server.resources
    assert given == {
        "script": f"odps://proj1/resources/{code}", "entryFile": "nlu_pai_entry.py", "workerCount": "1",
        "tables": ",".join(TABLES), "outputs": "odps://proj1/tables/out",
        "buckets": "oss://bucket/nlu/?role_arn=acs:ram::1:role/nlu&host=oss-cn-hangzhou-internal.aliyuncs.com",
    }  # fmt: skip


def test_an_instance_that_failed_says_why(opened, server):
    queue = opened("maxcompute")
    (ticket,) = queue.submit([job(0)])
    server.jobs[ticket.id].status = "Failed"
    server.jobs[ticket.id].log.write_text("no memory left")
    look = queue.look([ticket])[ticket.id]
    assert (look.state, look.reason) == (JobState.FAILED, "no memory left")


def test_an_instance_that_does_not_tell_its_source_at_first_is_asked_again(opened, server):
    tickets = opened("maxcompute").submit([job(0)])
    queue = opened("maxcompute")
    server.fault = lambda method, path: "403" if "source" in path else None
    assert queue.find([job(0)]) == [None]
    server.fault = lambda method, path: None
    assert queue.find([job(0)]) == tickets
    server.requests.clear()
    assert queue.find([job(0)]) == tickets and not any("source" in path for _, path in server.requests)


def test_odpscmd_gets_one_line_of_ascii_and_reads_every_value_as_it_was():
    nasty = ["plain", 'a "b" \'c\'', "two  words ", "$HOME `id` $(id)", '{"a": [1, {"b": ";"}]}', "one\ntwo\r\n\tthree",
             "中文，𝄞", "a\\nb\\u0041", "-- no comment; -Dx=1 -DserviceSelection=dlc", "a=b=c", "(x)"]  # fmt: skip
    given = {f"key{number}": value for number, value in enumerate(nasty)}
    text = pai_command("pytorch180", "algo_public", given, 3, {})
    assert text.isascii() and "\n" not in text
    before, command = fake_odpscmd.split(text)
    assert before == ["set", "odps.instance.priority=3"]
    assert fake_odpscmd.pai(command) == ({"name": "pytorch180", "project": "algo_public"}, given)


def test_a_job_by_odpscmd_is_the_same_as_by_pyodps_and_the_client_is_left(opened, server, client):
    settings = {"priority": 6, "tables": TABLES, "gpu_type": "V100"}
    tickets = [opened(backend, **settings).submit([job(7)])[0] for backend in ("odpscmd", "maxcompute")]
    mine, theirs = (server.jobs[one.id].request for one in tickets)
    assert mine == theirs and mine["priority"] == "3"
    (call,) = map(json.loads, (client / "calls").read_text().splitlines())
    assert call["mode"] == 0o600 and not Path(call["config"]).parent.exists()
    assert "secret" not in json.dumps(call["arguments"]) and "LTAI" not in json.dumps(call["arguments"])


@pytest.mark.thorough
def test_the_job_of_a_client_that_says_no_number_is_found(opened, server, client):
    (client / "mode").write_text("silent")
    queue = opened("odpscmd")
    with pytest.raises(OSError, match="odpscmd said"):
        queue.submit([job(0)])
    assert [ticket.id for ticket in queue.find([job(0)])] == list(server.jobs)


def test_a_refusal_of_the_service_is_reported_once(opened, server, client):
    with pytest.raises(JobRefused, match="xflow tensorflow is not found"):
        opened("odpscmd", framework_version="tensorflow").submit([job(0)])
    assert not server.jobs and len((client / "calls").read_text().splitlines()) == 1


def test_a_client_that_is_not_there_is_named(opened, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(UserError, match=r"hydra\.launcher\.client is odpscmd, which is not on PATH"):
        opened("odpscmd")
