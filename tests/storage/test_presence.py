"""Remote addresses are asked for without a download: on real servers of http, S3 and OSS on this machine."""

import threading
import time
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import boto3
import pytest

from nlu.storage import presence
from nlu.storage.presence import State, ask
from tests.buckets import Server


class StatusServer(ThreadingHTTPServer):
    """Answers a path /HEAD/GET with these two statuses; /stall answers when it is released."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.requests: Counter[tuple[str, str]] = Counter()
        self.released = threading.Event()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: StatusServer

    def do_HEAD(self) -> None:
        self.server.requests[self.command, self.path] += 1
        if self.path == "/stall":
            self.server.released.wait(30)
        if self.path.startswith("/api/models/"):
            is_there = self.path == "/api/models/org/name"
            self._answer(200 if is_there else 401, b'{"id": "org/name", "siblings": []}' if is_there else b"{}")
            return
        head, _, get = self.path.strip("/").partition("/")
        self._answer(int(head if self.command == "HEAD" else get) if head.isdecimal() else 200, b"x")

    do_GET = do_HEAD

    def _answer(self, status: int, content: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        if status == 401:
            self.send_header("X-Error-Code", "RepoNotFound")
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def log_message(self, *arguments: object) -> None:
        """Keeps the test output free of the access log."""


@pytest.fixture
def web() -> Iterator[StatusServer]:
    server = StatusServer()
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield server
    server.released.set()
    server.shutdown()
    server.server_close()


def states(*addresses: str) -> list[State]:
    answers = ask((address, False) for address in addresses)
    return [answers[address, False].state for address in addresses]


def test_each_address_on_the_web_is_asked_for_once_for_one_byte(web):
    """Addresses that are signed for a GET answer a HEAD with 403."""
    found = states(*[f"{web.address}/{status}/{status}" for status in (200, 206, 404, 410, 403, 500, 200)])
    there = State.THERE
    assert found == [there, there, State.ABSENT, State.ABSENT, State.DENIED, State.UNKNOWN, there]
    assert set(web.requests.values()) == {1} and {method for method, _ in web.requests} == {"GET"}


def test_a_server_that_does_not_answer_in_time_is_unknown_and_delays_no_other(web, monkeypatch, capfd):
    monkeypatch.setattr(presence, "SHOWN_AFTER_S", 0.1)
    monkeypatch.setattr(presence, "LIMIT_S", 0.5)
    began_s = time.monotonic()
    answers = ask([(f"{web.address}/stall", False), (f"{web.address}/200/200", False)])
    assert time.monotonic() - began_s < 5
    assert answers[f"{web.address}/stall", False].said == "no answer within 0.5 s"
    assert [answer.state for answer in answers.values()] == [State.THERE, State.UNKNOWN]
    assert capfd.readouterr().err == "nlu: 1 of 2 addresses have answered so far\n"


def test_models_of_the_hub_are_asked_for_there(web, monkeypatch):
    pytest.importorskip("huggingface_hub")
    monkeypatch.setenv("HF_ENDPOINT", web.address)
    monkeypatch.setenv("HF_TOKEN", "none")
    assert states("hf://org/name", "hf://org/other") == [State.THERE, State.ABSENT]


def test_objects_folders_patterns_and_runs_are_found_in_a_bucket(s3: Server, monkeypatch):
    url = s3.bucket(monkeypatch)
    for key in ("rows/a.csv", "rows/part-1.csv", "run/.mirror/0"):
        boto3.client("s3", endpoint_url=s3.address).put_object(Bucket=url.removeprefix("s3://"), Key=key, Body=b"x")
    there = ("rows/a.csv", "rows", "rows/", "rows/part-*.csv", "run", "run/best", "run/best-2")
    absent = ("rows/b.csv", "row", "rows/*.tsv", "rows/x/*.csv", "other/best", "other/worst")
    assert set(states(*[f"{url}/{key}" for key in there])) == {State.THERE}
    assert set(states(*[f"{url}/{key}" for key in absent], "s3://there-is-no-such-bucket/a.csv")) == {State.ABSENT}


def test_a_place_to_write_is_free_taken_or_without_a_bucket_and_nothing_is_written(s3: Server, monkeypatch):
    url, client = s3.bucket(monkeypatch), boto3.client("s3", endpoint_url=s3.address)
    for key in ("taken/a", "begun/.begun", "file"):
        client.put_object(Bucket=url.removeprefix("s3://"), Key=key, Body=b"x")
    places = [*(f"{url}/{name}" for name in ("new", "taken", "begun", "file")), "s3://there-is-no-such-bucket/a"]
    answers = ask((place, True) for place in places)
    assert [answers[place, True].state for place in places] == ["free", "there", "free", "there", "absent"]
    listed = client.list_objects_v2(Bucket=url.removeprefix("s3://"))["Contents"]
    assert [one["Key"] for one in listed] == ["begun/.begun", "file", "taken/a"]


def test_wrong_keys_are_denied_by_the_name_of_their_variable(monkeypatch):
    pytest.importorskip("ossfs")
    from fsspec.config import conf

    from tests.oss_server import KEY, OssServer

    monkeypatch.setitem(conf, "oss", {"key": KEY, "secret": "wrong"})
    with OssServer() as server:
        for name, value in {**server.environment, "FSSPEC_OSS_SECRET": "wrong"}.items():
            monkeypatch.setenv(name, value)
        answer = ask([("oss://bucket/a.csv", False)])["oss://bucket/a.csv", False]
    assert answer.state is State.DENIED
    assert "wrong signature, SignatureDoesNotMatch); correct FSSPEC_OSS_SECRET" in answer.said
