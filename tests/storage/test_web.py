"""What is asked of a web server, and what its answers mean."""

import threading
from collections.abc import Iterator
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from nlu.config.errors import DataError, UserError
from nlu.storage import web
from nlu.storage.backend import FileInfo
from nlu.storage.places import Place, parse_place
from nlu.storage.web import Web

CONTENT = b"0123456789"


class Server(ThreadingHTTPServer):
    """Answers as `answers` says, one after another; the last one again and again."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers: list[tuple[int, dict[str, str], bytes]] = []
        self.asked: list[Any] = []


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self.server.asked.append(self.headers.get("Range"))
        answers = self.server.answers
        status, headers, body = answers.pop(0) if len(answers) > 1 else answers[0]
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        """Keeps the test output free of the access log."""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(web, "RETRY_DELAYS_S", (0.0, 0.0))
    server = Server()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def place(server: Server) -> Place:
    return parse_place(f"http://127.0.0.1:{server.server_port}/x")


RANGE = {"Content-Range": "bytes 0-0/10"}


@pytest.mark.parametrize(
    ("status", "headers", "found"),
    [
        (206, {**RANGE, "ETag": '"v1"', "Last-Modified": formatdate(1e9)}, FileInfo(False, 10, "v1", 1e9)),
        (206, RANGE, FileInfo(False, 10)),
        (206, {"Content-Range": "bytes 0-0/*", "ETag": '""'}, FileInfo(False, None)),
        (206, {}, FileInfo(False, None)),
        (200, RANGE, FileInfo(False, None)),
        (200, {"ETag": "W/x"}, FileInfo(False, None, "W/x")),
    ],
)
def test_a_file_is_described_by_the_answer_for_its_first_byte(
    server: Server, place: Place, status: int, headers: dict[str, str], found: FileInfo
) -> None:
    server.answers = [(status, headers, b"0")]
    assert Web().stat(place) == found and server.asked == ["bytes=0-0"]


def test_a_range_of_an_empty_file_may_be_refused(server: Server, place: Place) -> None:
    server.answers = [(416, {}, b""), (200, {}, b"")]
    assert Web().stat(place) == FileInfo(False, None) and server.asked == ["bytes=0-0", None]


def test_a_missing_file_and_an_unreadable_one_raise_different_errors(server: Server, place: Place) -> None:
    for status in (404, 410):
        server.answers = [(status, {}, b"")]
        assert Web().stat(place) is None
        with pytest.raises(FileNotFoundError):
            Web().read(place, 0, 1, FileInfo(False, 10))
    server.asked.clear()
    server.answers = [(403, {}, b"")]
    with pytest.raises(DataError, match="cannot be read: the server answers 403 Forbidden; correct the URL"):
        Web().stat(place)
    assert len(server.asked) == 1
    server.answers = [(503, {}, b"")]
    with pytest.raises(DataError, match="the server answers 503"):
        Web().stat(place)
    assert len(server.asked) == 4, "twice more"
    server.answers = [(503, {}, b""), (206, RANGE, b"0")]
    assert Web().stat(place) == FileInfo(False, 10)


def test_a_range_is_complete_or_requested_again(server: Server, place: Place, tmp_path: Path) -> None:
    server.answers = [(206, {}, CONTENT[2:4]), (206, {}, CONTENT[2:6]), (206, {}, CONTENT[2:5])]
    assert Web().read(place, 2, 5, FileInfo(False, 10)) == b"234" and server.asked == ["bytes=2-4"] * 3
    server.answers = [(200, {}, CONTENT)]
    with pytest.raises(DataError, match="changed while it was read; try again"):
        Web().read(place, 2, 5, FileInfo(False, 10))
    Web().read_whole(place, tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == CONTENT
    for ask in (Web().files, Web().children):
        with pytest.raises(UserError, match="web servers do not list folders; name each file"):
            ask(place)
