"""A TCP gate before a server: shut, it breaks every connection and refuses new ones, as a server does that is away."""

import contextlib
import socket
import threading
from collections.abc import Iterator

CHUNK_BYTES = 1 << 16


class Gate:
    """Relays connections from `port` of 127.0.0.1 to `target` while it is a context and not `shut`."""

    def __init__(self, target: tuple[str, int]):
        self.target = target
        self._ends: list[socket.socket] = []
        self._open(0)
        self.port = self._listener.getsockname()[1]

    def _open(self, port: int) -> None:
        self._listener = socket.create_server(("127.0.0.1", port))
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def _close(self) -> None:
        for end in [self._listener, *self._ends]:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
        self._ends.clear()

    def __enter__(self) -> "Gate":
        return self

    def __exit__(self, *unused: object) -> None:
        self._close()

    @contextlib.contextmanager
    def shut(self) -> Iterator[None]:
        self._close()
        try:
            yield
        finally:
            self._open(self.port)

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            server = socket.create_connection(self.target)
            self._ends += [client, server]
            for source, sink in ((client, server), (server, client)):
                threading.Thread(target=_relay, args=(source, sink), daemon=True).start()


def _relay(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while chunk := source.recv(CHUNK_BYTES):
            sink.sendall(chunk)
        sink.shutdown(socket.SHUT_WR)
