"""What a server tells programs of itself: its description, its measures and the heads of its answers; the prompt."""

import http.client
import io
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nlu.config.errors import DataError
from nlu.config.inference import Serve
from nlu.metrics.kinds import ClassKind, Kind, LabelSetKind, NumberKind, SpanKind
from nlu.serving import prompt
from tests.approving import assert_approved
from tests.inference.runs import trained
from tests.serving.servers import Server, serving
from tests.training.kinds import TASKS

APPROVED = Path(__file__).parent / "approved"


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


SPANS = [
    {"type": "LOC", "first": 3, "last": 10, "text": "New York"},
    {"type": "PER", "first": 0, "last": 1, "text": "in"},
]
TYPED: list[tuple[Kind, list[str], tuple[str, ...], str, list[dict[str, Any]]]] = [
    (ClassKind(), [f"label {number}" for number in range(12)], ("text_a", "text_b"), "a\nb\n\nc\nd\n",
     [{"prediction": "label 3", "similarity": 0.25,
       **{f"probability_label {number}": (number * 5 % 12) / 66 for number in range(12)}}]),
    (LabelSetKind(), ["x", "y"], ("text",), "a\n", [{"prediction": [], "probability_x": 0.25, "probability_y": 0.5}]),
    (LabelSetKind(), ["x", "y"], ("text",), "a\nb\n", [{"prediction": ["x", "y"], "probability_x": 1.0}]),
    (SpanKind(), ["O", "B-PER", "I-PER", "B-LOC"], ("text",), "in New York now\nb\n",
     [{"prediction": SPANS}, {"prediction": []}]),
    (NumberKind(), [], ("text",), "a\n", [{"prediction": 1.5}]),
    (NumberKind(), [], ("text",), "refused\na\n", [{"prediction": 2.5}]),
]  # fmt: skip
"""kind, labels, fields, what is typed, what is predicted in turn"""


def test_the_prompt_shows_each_kind_of_prediction_as_approved(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NLU_CACHE", str(tmp_path))
    found = []
    for kind, labels, roles, typed, answers in TYPED:
        given: list[Any] = []

        def predict(rows: Any, *, scores: bool, kind: Kind = kind, answers: Any = answers, given: Any = given) -> Any:
            assert scores == isinstance(kind, ClassKind | LabelSetKind)
            if rows == [{"text": "refused"}]:
                raise DataError("row 1 is refused")
            given.append(rows)
            return [answers[(len(given) - 1) % len(answers)]]

        loaded = SimpleNamespace(labels=labels, trained=SimpleNamespace(kind=kind), predict=predict)
        monkeypatch.setattr(prompt.Loaded, "of", lambda run, loaded=loaded, **unused: loaded)
        monkeypatch.setattr(prompt, "alternatives_of", lambda trained, roles=roles: (("tokens",), roles))
        monkeypatch.setattr("sys.stdin", io.StringIO(typed))
        assert prompt.run_prompt(Serve(run="mine")) == 0
        printed = capsys.readouterr()
        found.append(f"{kind.name}: {given}\n{printed.out}{printed.err}")
    coloured = prompt._coloured("in New York", SPANS, ["PER", "LOC"]).spans
    found.append("\n".join(map(str, coloured)))
    assert_approved(APPROVED / "prompt.txt", "\n".join(found))
    assert not list(tmp_path.iterdir()), "what is not typed at a terminal is in no history"
