"""Jobs by odpscmd: what its command line says, and what becomes of the instance. The client is one of the tests."""

import hashlib
import json
import sys
from pathlib import Path

import pytest

pytest.importorskip("odps", reason="PyODPS comes with the extra pai")
import fake_odpscmd
from hydra_plugins.pai_launcher._command import Program, attempt_in
from hydra_plugins.pai_launcher._maxcompute import MaxComputeQueue
from hydra_plugins.pai_launcher._odpscmd import pai_command, quoted
from hydra_plugins.pai_launcher._requests import Credentials, RequestFailure
from hydra_plugins.pai_launcher._settings import PaiSettings, setting_problems

from nlu.config.errors import UserError
from nlu.launching.queue import Job, JobRefused, JobState

NASTY = ["plain", 'a "b" \'c\'', "two  words ", "$HOME `id` $(id)", '{"a": [1, {"b": ";"}]}', "one\ntwo\r\n\tthree",
         "中文，𝄞", "a\\nb\\u0041", "-- no comment; -Dx=1 -DserviceSelection=dlc", "a=b=c", "(x)"]  # fmt: skip
ARCHIVE = f"nlu-code-{hashlib.sha256(b'the code').hexdigest()[:32]}.tar.gz"


@pytest.fixture
def client(tmp_path, monkeypatch):
    """A folder on PATH with the client, and what it was called with."""
    folder = tmp_path / "bin"
    folder.mkdir()
    program = folder / "odpscmd"
    program.write_text(
        f"#!{sys.executable}\nimport sys\nfrom pathlib import Path\nsys.path[:0] = {sys.path!r}\nimport fake_odpscmd\n"
        "fake_odpscmd.main(sys.argv[1:], Path(__file__).parent)\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return folder


@pytest.fixture
def queue_of(server, keys, client, claims, code):
    def opened(keys=keys, **settings) -> MaxComputeQueue:
        given = {"backend": "maxcompute", "region": "cn-hangzhou", "project": "proj1", "oss_folder": "oss://bucket/nlu",
                 "client": "odpscmd", "endpoint": f"http://{server.host}/api", **settings}  # fmt: skip
        return MaxComputeQueue(PaiSettings(**given), keys, claims, code, Program())

    server.resources[ARCHIVE] = b""
    return opened


def job(number: int) -> Job:
    return Job(number, f"oss://bucket/nlu/runs/x/{number}", (f"seed={number}",), f"token{number}")


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ("odps://p/tables/a,odps://p/tables/b/pt=1", '"odps://p/tables/a,odps://p/tables/b/pt=1"'),
        ('{"worker": {"gpu": 200}}', r'"{\"worker\":\u0020{\"gpu\":\u0020200}}"'),
        ("--nlu-job=eyJ_-9", r'"\u002d\u002dnlu\u002djob=eyJ_\u002d9"'),
        ("it's $1;\n", r'"it\u0027s\u0020\u00241\u003b\u000a"'),
        ("a\\b", r'"a\\b"'),
        ("中𝄞", r'"\u4e2d\ud834\udd1e"'),
    ],
)
def test_a_value_is_written_so(value, written):
    assert quoted(value) == written


def test_a_command_is_one_line_of_ascii_and_the_client_reads_every_value_as_it_was():
    given = {f"key{number}": value for number, value in enumerate(NASTY)}
    text = pai_command("pytorch180", "algo_public", given, 3)
    assert text.isascii() and "\n" not in text and "--" not in text
    before, command = fake_odpscmd.split(text)
    assert before == ["set", "odps.instance.priority=3"]
    assert fake_odpscmd.pai(command) == ({"name": "pytorch180", "project": "algo_public"}, given)


def test_settings_of_the_session_go_before_the_command(server, queue_of):
    (ticket,) = queue_of(gpu_type="V100", priority=6).submit([job(0)])
    request = server.jobs[ticket.id].request
    assert request["settings"]["odps.algo.hybrid.deploy.info"] == "LABEL:V100:OPER_EQUAL" and request["priority"] == "3"


@pytest.mark.parametrize("value", ['say "hi"', "file:///etc/passwd"])
def test_a_value_that_the_client_would_change_is_refused(value):
    with pytest.raises(RequestFailure, match="cannot pass on k="):
        pai_command("x", "y", {"k": value}, None)


def test_a_job_is_the_same_as_by_pyodps_and_the_client_is_left(server, queue_of, client):
    settings = {"workers": 2, "priority": 8, "tables": ["odps://proj1/tables/评论 \"'$x/pt=1"]}
    (ticket,) = queue_of(**settings).submit([job(7)])
    MaxComputeQueue.ambiguous.clear()
    (other,) = queue_of(**settings, client="pyodps").submit([job(7)])
    mine, theirs = (server.jobs[one.id].request for one in (ticket, other))
    tokens = [attempt_in(each["parameters"].pop("userDefinedParameters"))[0] for each in (mine, theirs)]
    assert mine == theirs and tokens == ["token7", "token7"]
    (call,) = map(json.loads, (client / "calls").read_text().splitlines())
    assert call["mode"] == 0o600 and not Path(call["config"]).parent.exists()
    assert "secret" not in json.dumps(call["arguments"]) and "LTAI" not in json.dumps(call["arguments"])
    assert queue_of().look([ticket.id])[ticket.id].state is JobState.WAITING


@pytest.mark.thorough
def test_a_client_that_says_no_number_started_one_job(server, queue_of, client):
    (client / "mode").write_text("silent")
    (ticket,) = queue_of().submit([job(0)])
    assert list(server.jobs) == [ticket.id]


@pytest.mark.thorough
def test_a_client_that_breaks_is_started_again(server, queue_of, client):
    (client / "mode").write_text("broken")
    asked = []
    server.fault = lambda method, path: asked.append(path) or (client / "mode").unlink(missing_ok=True)
    (ticket,) = queue_of().submit([job(0)])
    assert list(server.jobs) == [ticket.id] and len((client / "calls").read_text().splitlines()) == 2


@pytest.mark.thorough
def test_a_refusal_of_the_service_is_reported_once_and_without_keys(server, queue_of, client):
    with pytest.raises(JobRefused, match="xflow tensorflow is not found"):
        queue_of(framework_version="tensorflow").submit([job(0)])
    with pytest.raises(JobRefused, match="ALIBABA_CLOUD_ACCESS_KEY_SECRET") as raised:
        queue_of(Credentials("LTAI-of-the-double", "a-wrong-secret")).submit([job(0)])
    assert "a-wrong-secret" not in str(raised.value) and "LTAI" not in str(raised.value)
    assert not server.jobs
    # No call was tried again.
    assert len((client / "calls").read_text().splitlines()) == 2


def test_a_client_that_cannot_be_had_is_named(queue_of, monkeypatch):
    with pytest.raises(UserError, match=r"TOKEN is set, which it does not support; set hydra\.launcher\.client=pyodps"):
        queue_of(Credentials("a", "b", "c"))
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(UserError, match=r"hydra\.launcher\.client is odpscmd, which is not on PATH"):
        queue_of()
    (problem,) = [one for one in setting_problems(PaiSettings(client="cmd")) if "client" in one]
    assert problem == "hydra.launcher.client is cmd, but must be pyodps or odpscmd"
    assert any("backend=dlc does not use it" in one for one in setting_problems(PaiSettings(client="odpscmd")))
