"""As much of OSS as a journal uses, after Alibaba's reference of PutObject and GetObject; it stands in for a real OSS.

Signatures (version 1, HMAC-SHA1) are checked. `versioned=True` behaves as the reference says of a versioned bucket: the
header x-oss-forbid-overwrite has no effect there.
"""

import base64
import hashlib
import hmac
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote

KEY, SECRET = "emulated-key", "emulated-secret"


class OssEmulator(ThreadingHTTPServer):
    """A context that serves `objects` (path -> content) on a free port of 127.0.0.1."""

    daemon_threads = True

    def __init__(self, versioned: bool = False):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.objects: dict[str, bytes] = {}
        self.lock = threading.Lock()
        self.versioned = versioned

    @property
    def environment(self) -> dict[str, str]:
        """What a client of it must find in its environment."""
        endpoint = f"http://127.0.0.1:{self.server_port}"
        return {"OSS_ENDPOINT": endpoint, "FSSPEC_OSS_KEY": KEY, "FSSPEC_OSS_SECRET": SECRET}

    def __enter__(self) -> "OssEmulator":
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self.shutdown()
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    server: OssEmulator
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # head and body in one packet

    def do_PUT(self) -> None:
        content = self.rfile.read(int(self.headers["Content-Length"]))
        if not self._is_signed():
            return
        forbidden = self.headers.get("x-oss-forbid-overwrite") == "true" and not self.server.versioned
        with self.server.lock:
            exists = self.path in self.server.objects
            if not (exists and forbidden):
                self.server.objects[self.path] = content
        if exists and forbidden:
            self._fail(409, "FileAlreadyExists", "The object you specified already exists and can not be overwritten.")
        else:
            self._answer(200, b"", {"ETag": f'"{hashlib.md5(content).hexdigest().upper()}"'})

    def do_GET(self) -> None:
        if not self._is_signed():
            return
        content = self.server.objects.get(self.path)
        if content is None:
            self._fail(404, "NoSuchKey", "The specified key does not exist.")
        else:
            self._answer(200, content, {})

    def _is_signed(self) -> bool:
        own = sorted((name.lower(), value) for name, value in self.headers.items() if name.lower().startswith("x-oss-"))
        lines = [
            self.command,
            self.headers.get("Content-MD5", ""),
            self.headers.get("Content-Type", ""),
            self.headers.get("Date", ""),
            *(f"{name}:{value}" for name, value in own),
            unquote(self.path),
        ]
        digest = hmac.digest(SECRET.encode(), "\n".join(lines).encode(), "sha1")
        if self.headers.get("Authorization") == f"OSS {KEY}:{base64.b64encode(digest).decode()}":
            return True
        self._fail(403, "SignatureDoesNotMatch", "The request signature we calculated does not match.")
        return False

    def _fail(self, status: int, code: str, message: str) -> None:
        body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{message}</Message></Error>"
        self._answer(status, body.encode(), {"Content-Type": "application/xml"})

    def _answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body)), "x-oss-request-id": "1"}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        """Keeps the test output free of the access log."""
