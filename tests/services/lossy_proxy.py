"""A TCP proxy that lets requests through to the server and loses replies: what a broken network does to a put."""

import socket
import threading
from collections.abc import Callable

CONTINUE = b"HTTP/1.1 100"
CHUNK_BYTES = 1 << 16


class LossyProxy:
    """Relays connections to `target`; `loses(head)` says, by a request's first line, whether its reply is dropped.

    The request has been carried out by then: the connection is closed when the reply has come from the server.
    """

    def __init__(self, target: tuple[str, int], loses: Callable[[str], bool]):
        self.target = target
        self.loses = loses
        self.lost = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]

    def __enter__(self) -> "LossyProxy":
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(self.target)
            dropping = threading.Event()
            for relay, ends in ((self._requests, (client, server)), (self._replies, (server, client))):
                threading.Thread(target=relay, args=(*ends, dropping), daemon=True).start()

    def _requests(self, client: socket.socket, server: socket.socket, dropping: threading.Event) -> None:
        try:
            while chunk := client.recv(CHUNK_BYTES):
                head = chunk.split(b"\r\n", 1)[0].decode("latin-1")
                if head.endswith("HTTP/1.1") and self.loses(head):
                    dropping.set()
                server.sendall(chunk)
        except OSError:
            return
        finally:
            _close(server)

    def _replies(self, server: socket.socket, client: socket.socket, dropping: threading.Event) -> None:
        try:
            while chunk := server.recv(CHUNK_BYTES):
                if dropping.is_set() and not chunk.startswith(CONTINUE):
                    self.lost += 1
                    return
                client.sendall(chunk)
        except OSError:
            return
        finally:
            _close(client)


def _close(end: socket.socket) -> None:
    try:
        end.shutdown(socket.SHUT_RDWR)
    except OSError:  # the other side was faster
        return
    finally:
        end.close()
