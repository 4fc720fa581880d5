"""What is particular to PAI commands of MaxCompute: requests and reasons."""

import json

from hydra_plugins.pai_launcher._code import token_in

from nlu.jobs.queue import JobState
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
