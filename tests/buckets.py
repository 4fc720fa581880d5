"""Buckets on an S3 server in the process of the tests (moto): as quick as a dictionary, for all that needs no kill."""

import socket
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import boto3
import pytest
from moto.server import ThreadedMotoServer

ENVIRONMENT = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1"}


class Server:
    """The server; what it holds outlives its being stopped and started again at the same address."""

    def __init__(self) -> None:
        self.port = 0
        self._kept: socket.socket | None = None
        self.start()

    def start(self) -> None:
        self._leave_port()
        self._server = ThreadedMotoServer(ip_address="127.0.0.1", port=self.port, verbose=False)
        self._server.start()
        self.host, self.port = self._server.get_host_and_port()

    def stop(self) -> None:
        """Refuse connections and keep the port from others meanwhile."""
        self._server.stop()
        self._kept = socket.socket()
        self._kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._kept.bind((self.host, self.port))

    def end(self) -> None:
        self._server.stop()
        self._leave_port()

    def _leave_port(self) -> None:
        if self._kept is not None:
            self._kept.close()
            self._kept = None

    @property
    def address(self) -> str:
        return f"http://{self.host}:{self.port}"

    def bucket(self, monkeypatch: pytest.MonkeyPatch) -> str:
        """Set the environment to this server, and return the address of a new bucket: s3://NAME."""
        for name, value in {**ENVIRONMENT, "AWS_ENDPOINT_URL": self.address}.items():
            monkeypatch.setenv(name, value)
        name = f"tests-{uuid.uuid4().hex[:20]}"
        boto3.resource("s3").Bucket(name).create()
        return f"s3://{name}"


@contextmanager
def server() -> Iterator[Server]:
    running = Server()
    yield running
    running.end()
