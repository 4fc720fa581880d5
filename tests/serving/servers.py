"""A server of a run in a separate process, and the requests of a client."""

import http.client
import json
import os
import signal
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests import warm
from tests.training.runs import SAME_THREADS

Answer = tuple[int, Any]


class Server:
    """A server that listens, and what it said so far."""

    def __init__(self, process: warm.Process):
        self.process = process
        self.said: list[str] = []
        assert process.stderr is not None
        for line in _lines(process.stderr):
            self.said.append(line)
            if "POST /predict" in line:
                self.port = int(line.partition("127.0.0.1:")[2].partition("/")[0])
                break
        else:
            raise AssertionError("".join(self.said))
        # A full pipe would block the server.
        threading.Thread(target=lambda: self.said.extend(_lines(process.stderr)), daemon=True).start()

    def ask(self, path: str, body: Any = None, **headers: str) -> Answer:
        """Return status and body of an answer; a body of bytes is sent as it is."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            if body is None:
                connection.request("GET", path, headers=headers)
            else:
                sent = body if isinstance(body, bytes) else json.dumps(body).encode()
                connection.request("POST", path, body=sent, headers=headers)
            response = connection.getresponse()
            text = response.read().decode()
            is_json = "json" in (response.getheader("content-type") or "")
            return response.status, json.loads(text) if is_json else text
        finally:
            connection.close()


def _lines(stream: Any) -> Iterator[str]:
    rest = b""
    while piece := os.read(stream.fileno(), 1 << 16):
        *lines, rest = (rest + piece).split(b"\n")
        yield from (f"{line.decode()}\n" for line in lines)
    yield rest.decode()


@contextmanager
def serving(run: Path | Sequence[Path], *overrides: str, **environment: str) -> Iterator[Server]:
    """Give a server of a run or of several; afterwards it is asked to end, and must do so without a complaint."""
    several = [run] if isinstance(run, Path) else run
    named = str(run) if isinstance(run, Path) else f"[{','.join(map(str, run))}]"
    arguments = ["-m", "nlu.serve", f"run={named}", "port=0", "device=cpu", *overrides]
    process = warm.start(arguments, cwd=several[0].parent, env={**SAME_THREADS, **environment}, stderr=subprocess.PIPE)
    server = None
    try:
        server = Server(process)
        yield server
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        status = process.wait(60)
    said = "".join(server.said)
    assert status == 0 and "Traceback" not in said, f"status {status}: {said[-2000:]}"
