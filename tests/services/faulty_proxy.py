"""An HTTP proxy before an object store that does what broken networks and busy stores do, and counts what it did.

    with FaultyProxy.before(os.environ["AWS_ENDPOINT_URL"], at_random(0.1, seed=0)) as proxy:
        ...                                   # with AWS_ENDPOINT_URL=proxy.url
    proxy.counts                              # Counter({"lost": 3, "500": 2, ...}); proxy.requests: all of them

    python tests/services/faulty_proxy.py http://127.0.0.1:8333 0.1     # prints its address; at Ctrl-C what it did

    500, 503    refused, with the store's own XML; the store was not asked
    reset       the connection is reset; the store was not asked
    slow        answered after SLOW_S
    truncated   the answer's head promises all of its body, half of it comes; without a body, half of its head comes
    lost        the store has carried the request out, and its answer is lost
    stale       a listing as it was: the last one that was given to the same question, else without what was put in the
                last STALE_S. Other requests go through (real stores promise this only of old ones: OSS and AWS list
                at once what was put)

The store sees the requests as they were signed: the head is passed on as it came.
"""

import http.client
import random
import re
import socket
import struct
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self
from urllib.parse import parse_qs, unquote, urlsplit

KINDS = ("500", "503", "reset", "slow", "truncated", "lost", "stale")
SLOW_S, STALE_S = 1.0, 5.0
TIMEOUT_S = 120
REFUSALS = {"500": "InternalError", "503": "SlowDown"}
HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length"}

Choose = Callable[[str, str], str | None]
"""The kind of fault of a request, by its method and target (path and query), or None."""


def at_random(share: float, seed: int = 0, kinds: tuple[str, ...] = KINDS) -> Choose:
    """A fault of these kinds for `share` of all requests, chosen at random."""
    numbers, lock = random.Random(seed), threading.Lock()

    def choose(method: str, target: str) -> str | None:
        with lock:
            return numbers.choice(kinds) if numbers.random() < share else None

    return choose


class FaultyProxy(ThreadingHTTPServer):
    """Relays requests to `target` while it is a context; what `choose` names happens to them."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, target: tuple[str, int], choose: Choose):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.target, self.choose = target, choose
        self.counts: Counter[str] = Counter()
        self.requests = 0
        self.lock = threading.Lock()
        self.listings: dict[str, bytes] = {}
        self.put_at_s: dict[str, float] = {}
        self.port = self.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"

    @classmethod
    def before(cls, url: str, choose: Choose) -> Self:
        """The proxy before the server at an address."""
        server = urlsplit(url)
        assert server.hostname and server.port
        return cls((server.hostname, server.port), choose)

    def __enter__(self) -> Self:
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self.shutdown()
        self.server_close()

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore a client that has gone; anything else is a mistake of this file."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]

    def fault_of(self, method: str, target: str) -> str | None:
        with self.lock:
            self.requests += 1
            kind = self.choose(method, target)
            if kind == "stale" and not _is_listing(method, target):
                kind = None
            if kind is not None:
                self.counts[kind] += 1
        assert kind is None or kind in KINDS, kind
        return kind

    def note_put(self, target: str) -> None:
        """Remember when the object was put that the target names."""
        with self.lock:
            self.put_at_s[unquote(urlsplit(target).path)] = time.monotonic()

    def stale(self, target: str, listing: bytes) -> bytes:
        """The listing of former times."""
        with self.lock:
            if target in self.listings:
                return self.listings[target]
            young = {path for path, put_s in self.put_at_s.items() if time.monotonic() - put_s < STALE_S}
        bucket = unquote(urlsplit(target).path).strip("/")

        def kept(found: re.Match[bytes]) -> bytes:
            path = f"/{bucket}/{unquote(found[1].decode())}"
            return b"" if path in young else found[0]

        return re.sub(rb"<Contents>.*?<Key>(.*?)</Key>.*?</Contents>", kept, listing, flags=re.DOTALL)


def _is_listing(method: str, target: str) -> bool:
    query = parse_qs(urlsplit(target).query, keep_blank_values=True)
    return method == "GET" and bool({"list-type", "prefix", "delimiter"} & set(query))


class _Handler(BaseHTTPRequestHandler):
    server: FaultyProxy
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # head and body in one packet

    def _relay(self) -> None:
        fault = self.server.fault_of(self.command, self.path)
        if fault == "reset":
            self._reset()
            return
        body = self._body()
        if fault in REFUSALS:
            self._refuse(int(fault or 0), REFUSALS[fault or ""])
            return
        status, reason, headers, content = self._asked(body)
        if self.command == "PUT" and status < 300:
            self.server.note_put(self.path)
        if fault == "lost":
            self.close_connection = True
            return
        if fault == "slow":
            time.sleep(SLOW_S)
        if _is_listing(self.command, self.path) and status == 200:
            if fault == "stale":
                content = self.server.stale(self.path, content)
            else:
                self.server.listings[self.path] = content
        self._answer(status, reason, headers, content, is_cut=fault == "truncated")

    def handle_expect_100(self) -> bool:
        """Ask for the body now: it is not sent before."""
        super().handle_expect_100()
        self.wfile.flush()
        return True

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _relay

    def _body(self) -> bytes:
        """All of the request's body, as it came: also its chunks, which may be signed."""
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        pieces = []
        while True:
            size = self.rfile.readline()
            length = int(size.split(b";")[0], 16)
            piece = self.rfile.read(length) if length else b""
            pieces.append(size + piece + self.rfile.readline())
            if not length:
                return b"".join(pieces)

    def _asked(self, body: bytes) -> tuple[int, str, list[tuple[str, str]], bytes]:
        connection = http.client.HTTPConnection(*self.server.target, timeout=TIMEOUT_S)
        try:
            connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() not in {"connection", "expect"}:
                    connection.putheader(name, value)
            connection.endheaders(body)
            response = connection.getresponse()
            content = response.read()
            headers = [(name, value) for name, value in response.getheaders() if name.lower() not in HOP_BY_HOP]
            if self.command == "HEAD" and response.headers.get("Content-Length"):
                headers.append(("Content-Length", response.headers["Content-Length"]))
            return response.status, response.reason, headers, content
        finally:
            connection.close()

    def _answer(
        self, status: int, reason: str, headers: list[tuple[str, str]], content: bytes, *, is_cut: bool = False
    ) -> None:
        has_body = self.command != "HEAD" and status not in (204, 304)
        if has_body:
            headers = [*headers, ("Content-Length", str(len(content)))]
        start = f"HTTP/1.1 {status} {reason}"
        head = "\r\n".join([start, *(f"{name}: {value}" for name, value in headers), "", ""]).encode("latin-1")
        if not has_body:
            content = b""
        if is_cut:
            self.close_connection = True
            self.wfile.write(head + content[: len(content) // 2] if content else head[: len(start) // 2])
        else:
            self.wfile.write(head + content)

    def _refuse(self, status: int, code: str) -> None:
        body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>injected</Message></Error>".encode()
        self._answer(status, "injected", [("Content-Type", "application/xml")], body)

    def _reset(self) -> None:
        self.close_connection = True
        # Closed without lingering, and with what was not read yet, a connection is reset.
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()

    def log_message(self, *arguments: object) -> None:
        """Keeps the test output free of the access log."""


def main(url: str, share: str = "0.1") -> None:
    """Relay until Ctrl-C, then say what was done."""
    with FaultyProxy.before(url, at_random(float(share))) as proxy:
        print(proxy.url, flush=True)
        try:
            threading.Event().wait()
        except KeyboardInterrupt:
            print(f"{sum(proxy.counts.values())} faults in {proxy.requests} requests: {dict(proxy.counts)}")


if __name__ == "__main__":
    main(*sys.argv[1:])
