"""Storages that a test can take away and bring back: a journal file, a database, a store of objects."""

import contextlib
import sqlite3
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server


class Storage:
    """The URL of a storage, and a context in which it does not answer."""

    def __init__(self, url: str, away: Callable[[], contextlib.AbstractContextManager[Any]]):
        self.url, self.away = url, away

    @contextlib.contextmanager
    def back_after(self, seconds: float) -> Iterator[None]:
        """Take the storage away for so long, beginning now; waits at the end until it is back."""
        stack = contextlib.ExitStack()
        stack.enter_context(self.away())
        timer = threading.Timer(seconds, stack.close)
        timer.start()
        try:
            yield
        finally:
            timer.join()


def journal_file(folder: Path) -> Storage:
    """A journal on a file system that is unmounted."""

    @contextlib.contextmanager
    def away() -> Iterator[None]:
        (folder / "mounted").rename(folder / "unmounted")
        try:
            yield
        finally:
            (folder / "unmounted").rename(folder / "mounted")

    (folder / "mounted").mkdir()
    return Storage(f"journal://{folder}/mounted/journal.log", away)


def database(folder: Path) -> Storage:
    """A database that another session locks."""

    @contextlib.contextmanager
    def away() -> Iterator[None]:
        connection = sqlite3.connect(folder / "study.db", timeout=30, isolation_level=None, check_same_thread=False)
        connection.execute("BEGIN EXCLUSIVE")
        try:
            yield
        finally:
            connection.execute("ROLLBACK")
            connection.close()

    return Storage(f"sqlite:///{folder}/study.db?timeout=0.05", away)


class ObjectStore:
    """An S3 server; `is_away` makes it refuse all."""

    def __init__(self) -> None:
        self.is_away = False
        self._application = DomainDispatcherApplication(create_backend_app)
        self._server = make_server("127.0.0.1", 0, self._answer, threaded=True)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"

    def _answer(self, environment: dict[str, Any], start_response: Callable[..., Any]) -> Any:
        if not self.is_away:
            return self._application(environment, start_response)
        start_response("503 Service Unavailable", [("Content-Type", "application/xml")])
        return [b"<Error><Code>ServiceUnavailable</Code><Message>away</Message></Error>"]

    def __enter__(self) -> "ObjectStore":
        self._thread.start()
        return self

    def __exit__(self, *unused: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @contextlib.contextmanager
    def away(self) -> Iterator[None]:
        self.is_away = True
        try:
            yield
        finally:
            self.is_away = False


@contextlib.contextmanager
def object_store(monkeypatch: pytest.MonkeyPatch, bucket: str) -> Iterator[tuple[ObjectStore, Storage]]:
    """An empty bucket of an S3 server whose client gives up at once."""
    from nlu.search.storage import journals

    monkeypatch.setattr(journals, "RETRY_DELAYS_S", (0.05,))
    monkeypatch.setattr("nlu.storage.refusals.RETRY_DELAYS_S", ())
    monkeypatch.setattr(journals, "REQUEST_DELAYS_S", ())
    with ObjectStore() as store:
        for name, value in {
            "AWS_ENDPOINT_URL": store.endpoint, "AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_DEFAULT_REGION": "us-east-1",
        }.items():  # fmt: skip
            monkeypatch.setenv(name, value)
        boto3.resource("s3").create_bucket(Bucket=bucket)
        yield store, Storage(f"s3://{bucket}/sweep", store.away)
