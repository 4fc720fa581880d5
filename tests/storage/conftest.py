"""A real HTTP server on this machine and a separate cache for each test."""

import errno
import fcntl
import hashlib
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest


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
