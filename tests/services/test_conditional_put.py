"""Stores that do, and do not, refuse to overwrite: OSS as emulated from its reference, and S3 servers that are lax."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

from nlu.config.errors import UserError
from nlu.search.storage.journals import ObjectJournalBackend

pytestmark = pytest.mark.services


def adopt(monkeypatch: pytest.MonkeyPatch, environment: dict[str, str]) -> None:
    from fsspec.config import conf, set_conf_env

    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    # fsspec reads FSSPEC_* at its import, which in a test has long happened.
    monkeypatch.setitem(conf, "oss", {})
    set_conf_env(conf)


@pytest.fixture
def lax_s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A server that ignores If-None-Match, as several do."""
    application = DomainDispatcherApplication(create_backend_app)

    def ignoring(environment: dict[str, Any], start_response: Callable[..., Any]) -> Any:
        environment.pop("HTTP_IF_NONE_MATCH", None)
        return application(environment, start_response)

    server = make_server("127.0.0.1", 0, ignoring, threaded=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    for name, value in {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.server_port}", "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret", "AWS_DEFAULT_REGION": "us-east-1",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    import s3fs

    s3fs.S3FileSystem(skip_instance_cache=True).mkdir("lax")
    yield "s3://lax/sweep"
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_server_that_ignores_the_condition_is_refused(lax_s3: str) -> None:
    for _ in range(2):
        with pytest.raises(UserError, match="overwrites an object in spite of If-None-Match"):
            ObjectJournalBackend(lax_s3)
