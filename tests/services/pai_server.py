"""PAI-DLC and the part of MaxCompute that runs PAI commands, on loopback; they stand in for the real services.

Requests and answers are those that the SDKs send and read (alibabacloud_pai_dlc20201203 1.11.6, PyODPS 0.13.2).
Signatures are computed independently, after Alibaba's description of ACS3-HMAC-SHA256 and of MaxCompute's HMAC-SHA1.
Nothing here has ever been compared with the real services.

`fault(method, path)` says of each request what becomes of it: None, or "403", "429", "500", "reset" (nothing
is done), "lost" (it is done, and the connection breaks instead of the answer), "cut" (half of the answer). A job is a
process that runs the very command it was given, in an empty folder.
"""

import collections
import hashlib
import hmac
import json
import os
import signal
import subprocess
import tempfile
import threading
import time
import uuid
from base64 import b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlsplit

ID, SECRET = "LTAI-of-the-double", "secret/of+the=double"

Fault = Callable[[str, str], str | None]


@dataclass
class Started:
    """A job or an instance: what was asked for, and the process that does it."""

    id: str
    request: dict[str, Any]
    created_s: float
    folder: Path
    process: subprocess.Popen | None = None
    status: str = "Creating"
    asked: int = 0
    xml: str = ""
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def log(self) -> Path:
        return self.folder / "log"


class PaiServer(ThreadingHTTPServer):
    """A context that serves on a free port of 127.0.0.1.

    `environment` is what the image of the jobs defines. Jobs run unless `runs` is False.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(
        self, folder: Path, environment: Mapping[str, str] | None = None, *, runs: bool = True,
        fault: Fault = lambda method, path: None,
    ):  # fmt: skip
        super().__init__(("127.0.0.1", 0), _Handler)
        self.folder, self.image, self.runs, self.fault = folder, environment or {}, runs, fault
        self.jobs: dict[str, Started] = {}
        self.resources: dict[str, bytes] = {}
        self.requests: list[tuple[str, str]] = []
        self.refused: list[str] = []
        self.faults: collections.Counter[str] = collections.Counter()
        self.lock = threading.RLock()
        self.tables: dict[str, Any] = {}
        """Arrow tables of MaxCompute by name, of a partition NAME,KEY=VALUE"""
        self.changed_s: dict[str, int] = {}
        """when they were changed"""
        self.partitioned: dict[str, list[str]] = {}
        """keys of the partitions of tables that were created here"""
        self.uploads: dict[str, dict[str, Any]] = {}
        self.statements: dict[str, str] = {}
        """by instance what a statement of SQL said of its failure, empty where it did not fail"""
        self.odps_environment: dict[str, str] = {}
        """what a MaxCompute job finds in its environment"""
        self.role: dict[str, str] = {}
        """keys of the store that a job with a role is given"""

    @property
    def role_environment(self) -> dict[str, str]:
        return {"ALIBABA_CLOUD_CREDENTIALS_URI": f"http://{self.host}/role"} if self.role else {}

    def mount(self, source: str, path: Path) -> None:
        """Have all machines of all jobs see the folder of a data source at a path: a link, since they are processes."""
        folder = self.folder / "sources" / quote(source, safe="")
        folder.mkdir(parents=True, exist_ok=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.is_symlink():
            path.symlink_to(folder)

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.server_port}"

    def __enter__(self) -> "PaiServer":
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self.shutdown()
        self.server_close()
        for started in self.jobs.values():
            self.end(started)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Keeps broken connections, which faults and time-outs make, out of the test output."""

    def start(
        self,
        request: dict[str, Any],
        command: list[str],
        environment: Mapping[str, str],
        id: str,
        files: Mapping[str, bytes] | None = None,
        xml: str = "",
    ) -> Started:
        folder = Path(tempfile.mkdtemp(dir=self.folder, prefix=f"{id}-"))
        started = Started(id, request, time.time(), folder, xml=xml)
        started.environment = {
            "PATH": os.environ["PATH"], "LANG": "C.UTF-8", **self.image, **environment, "TMPDIR": str(folder),
            "HOME": str(folder),
        }  # fmt: skip
        work = folder / "work"
        work.mkdir()
        for name, content in (files or {}).items():
            (work / name).parent.mkdir(parents=True, exist_ok=True)
            (work / name).write_bytes(content)
        with self.lock:
            self.jobs[id] = started
        if self.runs:
            with started.log.open("wb") as log:
                started.process = subprocess.Popen(
                    command, cwd=work, env=started.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                    start_new_session=True,
                )  # fmt: skip
        return started

    @staticmethod
    def end(started: Started) -> None:
        if started.process is not None and started.process.poll() is None:
            os.killpg(started.process.pid, signal.SIGKILL)
            started.process.wait()


class _Handler(BaseHTTPRequestHandler):
    server: PaiServer
    protocol_version = "HTTP/1.1"
    wbufsize = -1

    def _serve(self) -> None:
        self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.headers.get("Transfer-Encoding") == "chunked":
            self.body = self._chunks()
        parts = urlsplit(self.path)
        self.route, self.query = unquote(parts.path), dict(parse_qsl(parts.query, keep_blank_values=True))
        with self.server.lock:
            self.server.requests.append((self.command, self.path))
            fate = self.server.fault(self.command, self.path)
            if fate:
                self.server.faults[fate] += 1
        if self.route == "/role":
            self._fate = None
            self._json({"Code": "Success", "Expiration": "2099-01-01T00:00:00Z", **self.server.role})
            return
        is_odps = self.route.startswith("/api/") and not self.route.startswith("/api/v1/")
        self._fate = fate
        if fate in ("403", "429", "500", "503"):
            self._fail(int(fate), "Throttling.User" if fate == "429" else "InternalError", "injected", is_odps)
        elif fate == "reset":
            self._hang_up()
        elif not (self._is_signed_odps() if is_odps else self._is_signed_acs()):
            self.server.refused.append(self.path)
            self._fail(403, "SignatureDoesNotMatch", f"the signature of {ID} is not the one computed here", is_odps)
        else:
            (self._odps if is_odps else self._dlc)()

    do_GET = do_POST = do_PUT = do_DELETE = _serve

    def _chunks(self) -> bytes:
        parts = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    # --- signatures

    def _is_signed_acs(self) -> bool:
        """ACS3-HMAC-SHA256: method, path, query, signed headers, their names and the sha256 of the body."""
        algorithm, _, rest = self.headers.get("Authorization", "").partition(" ")
        told = dict(part.split("=", 1) for part in rest.split(",") if "=" in part)
        digest = hashlib.sha256(self.body).hexdigest()
        names = told.get("SignedHeaders", "").split(";")
        required = {
            "host",
            "x-acs-action",
            "x-acs-content-sha256",
            "x-acs-date",
            "x-acs-signature-nonce",
            "x-acs-version",
        }
        if algorithm != "ACS3-HMAC-SHA256" or told.get("Credential") != ID or not required <= set(names):
            return False
        if self.headers.get("x-acs-content-sha256") != digest or self.headers["x-acs-version"] != "2020-12-03":
            return False
        query = "&".join(
            f"{quote(name, safe='-_.~')}={quote(value, safe='-_.~')}" for name, value in sorted(self.query.items())
        )
        headers = "".join(f"{name}:{self.headers.get(name, '').strip()}\n" for name in names)
        canonical = "\n".join([self.command, urlsplit(self.path).path, query, headers, ";".join(names), digest])
        text = f"{algorithm}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
        return hmac.compare_digest(
            hmac.digest(SECRET.encode(), text.encode(), "sha256").hex(), told.get("Signature", "")
        )

    def _is_signed_odps(self) -> bool:
        """HMAC-SHA1: method, MD5, type, date, own headers, and the path behind the endpoint with its sorted query."""
        own = sorted(
            (name.lower(), value) for name, value in self.headers.items() if name.lower().startswith("x-odps-")
        )
        own += [(name, value) for name, value in self.query.items() if name.startswith("x-odps-")]
        query = "&".join(f"{name}={value}" if value else name for name, value in sorted(self.query.items()))
        resource = self.route.removeprefix("/api")
        text = "\n".join([
            self.command, self.headers.get("Content-MD5", ""), self.headers.get("Content-Type", ""),
            self.headers.get("Date", ""), *(f"{name}:{value}" for name, value in sorted(own)),
            f"{resource}?{query}" if query else resource,
        ])  # fmt: skip
        digest = b64encode(hmac.digest(SECRET.encode(), text.encode(), "sha1")).decode()
        return hmac.compare_digest(self.headers.get("Authorization", ""), f"ODPS {ID}:{digest}")

    # --- answers

    def _fail(self, status: int, code: str, message: str, is_odps: bool) -> None:
        if is_odps:
            told = f"<Code>{code}</Code><Message>{message}</Message><RequestId>r</RequestId>"
            text = f"<?xml version='1.0'?><Error>{told}</Error>"
            self._answer(status, text.encode(), {"Content-Type": "application/xml"})
        else:
            self._json({"Code": code, "Message": message, "RequestId": "r", "HttpStatusCode": status}, status)

    def _json(self, value: Any, status: int = 200) -> None:
        self._answer(status, json.dumps(value).encode(), {"Content-Type": "application/json;charset=utf-8"})

    def _answer(self, status: int, body: bytes, headers: Mapping[str, str]) -> None:
        if self._fate == "lost":
            self._hang_up()
            return
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body)), "x-odps-request-id": "r"}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body[: len(body) // 2] if self._fate == "cut" else body)
        if self._fate == "cut":
            self.wfile.flush()
            self._hang_up()

    def _hang_up(self) -> None:
        self.close_connection = True
        self.connection.close()

    def log_message(self, *arguments: object) -> None:
        """Keeps the test output free of the access log."""

    # --- DLC

    def _dlc(self) -> None:
        from pai_dlc import answer

        status, value = answer(self.server, self.command, self.route, self.query, self.body)
        if status >= 400:
            self._fail(status, value["Code"], value["Message"], is_odps=False)
        else:
            self._json(value, status)

    # --- MaxCompute

    def _odps(self) -> None:
        from pai_odps import answer

        status, body, headers = answer(self.server, self.command, self.route, self.query, self.body, self.headers)
        if status >= 400:
            self._fail(status, body.decode(), headers.get("message", "no reason"), is_odps=True)
        else:
            self._answer(status, body, {"Content-Type": "application/xml", **headers})


def new_id(prefix: str) -> str:
    """A name that no other job has."""
    return f"{prefix}{uuid.uuid4().hex[:16]}"
