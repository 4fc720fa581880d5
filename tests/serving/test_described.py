"""What a server tells programs of itself: its description, its measures and the heads of its answers; the prompt."""

import http.client
from collections.abc import Iterator

import pytest

from tests.inference.runs import trained
from tests.serving.servers import Server, serving
from tests.training.kinds import TASKS


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(trained(TASKS["classify"], tmp_path_factory.mktemp("run")), "timeout_s=10") as found:
        yield found


def heads(server: Server, method: str, path: str, body: str | None = None) -> dict[str, str]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    connection.request(method, path, body)
    response = connection.getresponse()
    response.read()
    connection.close()
    return {name.lower(): value for name, value in response.getheaders()} | {"status": str(response.status)}


def test_an_answer_says_nothing_of_the_program_and_a_page_loads_and_keeps_nothing(server: Server) -> None:
    found = heads(server, "GET", "/")
    assert "server" not in found and found["status"] == "200"
    assert found["content-security-policy"] == (
        "default-src 'self'; img-src data:; frame-ancestors 'none'; base-uri 'none'"
    )
    assert (found["x-content-type-options"], found["referrer-policy"]) == ("nosniff", "no-referrer")
    assert found["cache-control"] == "no-store"
    assert heads(server, "GET", "/page.css")["content-type"].startswith("text/css")
    assert heads(server, "GET", "/page.js")["content-type"].startswith("text/javascript")
    assert heads(server, "GET", "/metrics")["content-type"].startswith("text/plain")
    refused = heads(server, "GET", "/predict")
    assert (refused["status"], refused["allow"]) == ("405", "POST")
    assert heads(server, "GET", "/docs")["status"] == heads(server, "GET", "/labels/")["status"] == "404"
