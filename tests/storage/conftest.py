"""A real HTTP server on this machine and a separate cache for each test."""

import errno
import fcntl
import hashlib
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.oss_server import OssServer


class FileServer(ThreadingHTTPServer):
    """Serves `files` by path; `faults` lists, per path, how the next answers fail; `requests` counts the answers."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {}
        self.faults: dict[str, list[int | str]] = {}
        self.requests: Counter[str] = Counter()
        self.released = threading.Event()

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.server_port}{path}"


class Handler(BaseHTTPRequestHandler):
    server: FileServer

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        self.server.requests[path] += 1
        faults = self.server.faults.get(path, [])
        fault = faults.pop(0) if faults else None
        if isinstance(fault, int) or path not in self.server.files:
            self.send_error(fault if isinstance(fault, int) else 404)
            return
        content = self.server.files[path]
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("ETag", f'"{hashlib.md5(content).hexdigest()}"')
        self.end_headers()
        self.wfile.write(content[: len(content) // 2])
        if fault == "stall":
            self.wfile.flush()
            self.server.released.wait(30)
        if fault is None:
            self.wfile.write(content[len(content) // 2 :])

    def log_message(self, *arguments: object) -> None:
        """Keeps the test output free of the access log."""


@pytest.fixture
def server() -> Iterator[FileServer]:
    server = FileServer()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.released.set()
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("NLU_CACHE", str(folder))
    return folder


@pytest.fixture
def cached_files(cache: Path) -> Callable[[], list[Path]]:
    """Lists all files in the cache."""
    return lambda: [path for path in cache.rglob("*") if path.is_file()]


@pytest.fixture
def without_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system that knows no locks."""

    def flock(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", flock)


def adopt(oss: "OssServer", monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the environment to a server of OSS, as if fsspec was imported in it."""
    from fsspec.config import conf, set_conf_env

    for name, value in oss.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setitem(conf, "oss", {})
    set_conf_env(conf)


@pytest.fixture(scope="session")
def oss() -> Iterator["OssServer"]:
    """A server of OSS in this process (moto behind a door that speaks OSS)."""
    pytest.importorskip("ossfs", reason="the driver of oss:// comes with the extra oss")
    from tests.oss_server import OssServer

    with OssServer() as running:
        yield running


def _address(kind: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr("nlu.storage.refusals.RETRY_DELAYS_S", ())
    if kind == "local":
        return str(request.getfixturevalue("tmp_path") / "top")
    if kind == "s3":
        return f"{request.getfixturevalue('s3').bucket(monkeypatch)}/top"
    server = request.getfixturevalue("oss")
    adopt(server, monkeypatch)
    return f"oss://{server.bucket}/{uuid.uuid4().hex}"


@pytest.fixture(params=["local", "s3", "oss"])
def top(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The address of a folder of each kind, where nothing is."""
    return _address(request.param, request, monkeypatch)


@pytest.fixture(params=["s3", "oss"])
def remote(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The address of a folder in a bucket of each kind, where nothing is."""
    return _address(request.param, request, monkeypatch)
