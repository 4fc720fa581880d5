"""python -m nlu.serve: a server in a separate process, with requests like those of clients."""

import http.client
import io
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nlu
from nlu.config.command_keys import Serve
from nlu.inference.loaded import Loaded
from nlu.serving.prompt import run_prompt
from tests import warm
from tests.inference.runs import predict, trained, unlabelled
from tests.serving.servers import Server, serving
from tests.training.kinds import TASKS, few_first, read, write
from tests.training.runs import REPOSITORY, SAME_THREADS


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(TASKS["classify"], tmp_path_factory.mktemp("classify"))


@pytest.fixture(scope="module")
def server(run: Path) -> Iterator[Server]:
    limits = ("max_body_kb=8", "max_rows=50", "max_characters=300")
    with serving(run, *limits) as found:
        yield found


@pytest.fixture(scope="module")
def loaded(run: Path) -> Loaded:
    return nlu.load(run, device="cpu")


@pytest.mark.parametrize("name", few_first(list(TASKS), "tag with a CRF", "tag in windows"))
def test_answers_are_what_predict_writes(name: str, tmp_path: Path) -> None:
    run = trained(TASKS[name], tmp_path)
    rows = unlabelled(TASKS[name], 23)
    write(tmp_path / "new.jsonl", rows)
    predict(f"run={run}", f"input={tmp_path}/new.jsonl", f"output={tmp_path}/out.jsonl", "logits=true")
    expected = [{key: one[key] for key in one if key not in row} for one, row in zip(
        read(tmp_path / "out.jsonl"), rows, strict=True)]  # fmt: skip
    with serving(run, "batch_size=7") as server:
        assert server.ask("/predict", {"rows": rows, "logits": True}) == (200, {"rows": expected})
        status, refused = server.ask("/predict", {"rows": 3})
        said, _, example = refused["detail"].partition("; GET /openapi.json has the keys, and a row is ")
        assert (status, said) == (422, "body.rows: Input should be a valid list")
        assert server.ask("/predict", {"rows": [json.loads(example)]})[0] == 200


def test_texts_have_the_vectors_of_the_run_and_candidates_are_ranked_by_them(tmp_path: Path) -> None:
    run = trained(TASKS["retrieve"], tmp_path, "data.prompts={text_a: 'd e ', text_b: 'f '}")
    loaded, texts = nlu.load(run, device="cpu"), ["a b", "c", "d a b", "c", "g h a"]
    with serving(run, "batch_size=2", "max_rows=6", "max_characters=40") as server:
        for prompt, dims in (("query", None), ("passage", 3)):
            status, answer = server.ask("/encode", {"texts": texts, "prompt": prompt, "dims": dims})
            found_ND = np.array(answer["vectors"], np.float32)
            assert status == 200 and np.array_equal(found_ND, loaded.encode(texts, prompt, dims))
        status, answer = server.ask("/similar", {"query": "a c", "candidates": texts, "k": 3})
        expected = loaded.search(["a c"], texts, 3)
        assert [one["place"] for one in answer["found"]] == expected.places[0].tolist()
        assert [one["text"] for one in answer["found"]] == [texts[place] for place in expected.places[0]]
        assert np.array([one["score"] for one in answer["found"]], np.float32).tolist() == expected.scores[0].tolist()
        _, answer = server.ask("/similar", {"pairs": [["a c", text] for text in texts]})
        (best,) = expected.places[0, :1]
        assert answer["scores"][best] == max(answer["scores"]) == pytest.approx(float(expected.scores[0, 0]), abs=1e-6)
        refused = {
            "prompt is null, but queries and passages": ("/encode", {"texts": ["a"]}),
            "texts has 7 rows, but max_rows": ("/encode", {"texts": ["a"] * 7, "prompt": ""}),
            "text 2 has 41 characters": ("/encode", {"texts": ["a", "b" * 41], "prompt": ""}),
            "prompt has 42 characters": ("/encode", {"texts": ["a"], "prompt": "b " * 21}),
            "text 1: field text: '' is empty": ("/encode", {"texts": [""], "prompt": ""}),
            "dims is 99, but vectors of this model": ("/encode", {"texts": ["a"], "prompt": "", "dims": 99}),
            "give a query and candidates, or pairs": ("/similar", {"query": "a"}),
        }
        for words, (path, body) in refused.items():
            status, answer = server.ask(path, body)
            assert status == 422 and words in answer["detail"]
        assert server.ask("/labels")[1]["compares"]
        assert 'id="similar"' in server.ask("/")[1]


def test_many_clients_at_once_each_get_the_answers_to_their_own_rows(server: Server, loaded: Loaded) -> None:
    rows = [row["text"] for row in unlabelled(TASKS["classify"], 400)]
    requests = [rows[start : start + 1 + start % 5] for start in range(0, 390, 3)]
    with ThreadPoolExecutor(24) as pool:
        answers = list(pool.map(lambda some: server.ask("/predict", {"rows": some, "scores": True}), requests))
    expected = [loaded.predict(some, scores=True) for some in requests]
    assert [(status, body["rows"]) for status, body in answers] == [(200, one) for one in expected]


def test_a_row_may_be_a_text_or_have_the_names_of_roles(server: Server, loaded: Loaded) -> None:
    rows = ["a b", {"text": "a b"}, {"text": "a b", "more": 1}]
    expected = loaded.predict(["a b"]) * 3
    assert server.ask("/predict", {"rows": rows}) == (200, {"rows": expected})
    assert server.ask("/predict", {"rows": []}) == (200, {"rows": []})


@pytest.mark.parametrize(
    ("body", "status", "sentence"),
    [
        (b"{", 422, "body.1: JSON decode error (Expecting property name"),
        (b"\xff", 422, "There was an error parsing the body; send JSON"),
        (b"[" * 4000, 422, "There was an error parsing the body; send JSON"),
        ([], 422, "body: Input should be a valid dictionary"),
        ({}, 422, 'body.rows: Field required; GET /openapi.json has the keys, and a row is {"text": "..."}'),
        ({"row": ["a"]}, 422, "body.row: Extra inputs are not permitted"),
        ({"rows": "a"}, 422, "body.rows: Input should be a valid list"),
        ({"rows": [{"txt": "a"}]}, 422, "row 1 lacks text; it has txt"),
        ({"rows": ["a", 7]}, 422, "row 2 is 7, but the run reads text"),
        ({"rows": ["a", ""]}, 422, "row 2: field text: '' is empty"),
        ({"rows": ["\ud800"]}, 422, "holds half of a surrogate pair"),
        ({"\ud800": 1}, 422, "unable to parse raw data as a unicode string"),
        ({"rows": [{"\ud800": 1}]}, 422, "row 1 lacks text; it has \\ud800"),
        ({"a" * 7000: 1}, 422, "Extra inputs are not permitted"),
        ({"rows": [{"a" * 7000: 1}]}, 422, "row 1 lacks text"),
        ({"rows": ["a"], "scores": 1}, 422, "body.scores: Input should be a valid boolean"),
        ({"rows": ["a"] * 51}, 422, "rows has 51 rows, but max_rows of this server is 50"),
        ({"rows": ["a" * 301]}, 422, "row 1 has 301 characters, but max_characters of this server is 300"),
        (b" " * 8193, 413, "the body is larger than 8 KB, max_body_kb of this server"),
    ],
)  # fmt: skip
def test_a_bad_request_is_refused_in_one_sentence(server: Server, body: Any, status: int, sentence: str) -> None:
    found, answer = server.ask("/predict", body)
    assert (found, sentence in answer["detail"]) == (status, True), answer
    assert server.ask("/predict", {"rows": ["a"]})[0] == 200


def test_reasons_add_up(server: Server) -> None:
    status, found = server.ask("/explain", {"row": "a b"})
    total = sum(mark["attribution"] for mark in found["marks"])
    assert status == 200 and total == pytest.approx(found["score"] - found["baseline"] + found["gap"], abs=1e-5)


def test_a_server_says_what_it_serves_and_how_it_fares(server: Server) -> None:
    status, about = server.ask("/labels")
    assert status == 200 and about["labels"] == ["bad", "good"] and about["fields"] == [["text"]]
    assert server.ask("/health") == (200, {"status": "ok", "checkpoint": "best-1", "waiting_rows": 0})
    server.ask("/predict", {"rows": ["a", "b"]})
    counted = server.ask("/metrics")[1]
    assert 'nlu_requests_total{path="/predict",status="200"}' in counted and "nlu_batch_rows_sum" in counted
    phases = dict(re.findall(r'nlu_phase_seconds_total\{phase="(\w+)"\} (\S+)', counted))
    assert set(phases) == {"reading", "waiting", "tokenizing", "computing", "writing"}
    assert all(0 < float(seconds) < 60 for seconds in phases.values())
    described = server.ask("/openapi.json")[1]
    assert set(described["paths"]) == {"/predict", "/explain", "/encode", "/similar", "/labels", "/health", "/metrics"}
    asked = described["components"]["schemas"]["PredictBody"]
    assert asked["required"] == ["rows"] and asked["additionalProperties"] is False
    assert server.ask("/nothing")[0] == 404


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


def test_a_host_that_others_can_reach_needs_a_token_which_clients_send(run: Path) -> None:
    refused = command(run, "host=0.0.0.0")
    assert refused.returncode == 2 and "NLU_SERVE_TOKEN is not set in the environment" in refused.stderr
    with serving(run, NLU_SERVE_TOKEN="s3cret") as server:
        assert server.ask("/predict", {"rows": ["a"]})[0] == 401
        assert server.ask("/labels", Authorization="Bearer wrong")[0] == 401
        assert server.ask("/labels", Authorization="Bearer s3cret")[0] == 200
        assert server.ask("/health")[0] == server.ask("/")[0] == 200
        # A browser sends no token by itself, so a proxy may send any Host.
        asked = {"Origin": "https://public.example", "Host": "upstream:8000"}
        assert server.ask("/predict", {"rows": ["a"]}, **asked)[0] == 401
        assert server.ask("/predict", {"rows": ["a"]}, **asked, Authorization="Bearer s3cret")[0] == 200
        # What a row holds is for those who may ask.
        status, refused = server.ask("/predict", {"rows": 3}, Authorization="Bearer wrong")
        assert status == 401 and "text" not in json.dumps(refused)
        assert server.ask("/predict", Authorization="Bearer s3cret")[0] == 405
        # The Host of a request must not change its path.
        assert server.ask("/labels", Host="x/health?")[0] == server.ask("/openapi.json")[0] == 401
        assert not any("s3cret" in line for line in server.said)


def test_a_port_in_use_and_a_folder_without_a_run_are_refused(run: Path, tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        refused = command(run, f"port={other.getsockname()[1]}")
    assert refused.returncode == 2 and "cannot be used at 127.0.0.1 (Address already in use)" in refused.stderr
    refused = command(tmp_path)
    assert refused.returncode == 2 and "which lacks the config.yaml of a run" in refused.stderr


def command(run: Path, *overrides: str) -> subprocess.CompletedProcess[str]:
    arguments = ["-m", "nlu.serve", f"run={run}", "device=cpu", *(overrides or ("port=0",))]
    return warm.run(arguments, cwd=REPOSITORY, env=SAME_THREADS)


def test_a_changed_best_is_taken_up_and_no_request_is_dropped(run: Path, tmp_path: Path) -> None:
    copy, other = tmp_path / "run", trained(TASKS["classify"], tmp_path / "other", "seed=7")
    shutil.copytree(run, copy)
    rows = [row["text"] for row in unlabelled(TASKS["classify"], 20)]
    before, after = ({"rows": nlu.load(one, device="cpu").predict(rows)} for one in (run, other))
    assert before != after
    with serving(copy, "reload_s=0.05") as server:
        assert server.ask("/predict", {"rows": rows}) == (200, before)
        os.rename(copy / "checkpoints" / "best-1", tmp_path / "old")
        os.rename(other / "checkpoints" / "best-1", copy / "checkpoints" / "best-1")
        found, deadline_s = before, time.monotonic() + 60
        while found != after:
            status, found = server.ask("/predict", {"rows": rows})
            assert status == 200 and found in (before, after) and time.monotonic() < deadline_s
        assert "nlu_reloads_total 1.0" in server.ask("/metrics")[1]


def test_a_damaged_newer_checkpoint_is_passed_over_until_it_is_whole(run: Path, tmp_path: Path) -> None:
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    labels, score = (copy / "checkpoints" / "best-1" / name for name in ("labels.json", "score.json"))
    whole = labels.read_text()
    with serving(copy, "reload_s=0.05") as server:
        labels.write_text(whole[:20])
        os.utime(score)
        deadline_s = time.monotonic() + 60
        while not any("reload: the newer checkpoint cannot be loaded yet" in line for line in server.said):
            assert time.monotonic() < deadline_s and server.ask("/predict", {"rows": ["a"]})[0] == 200
        # In one operation: a file that is empty for a moment would be reported too.
        (tmp_path / "labels.json").write_text(whole)
        os.replace(tmp_path / "labels.json", labels)
        while "nlu_reloads_total 1.0" not in server.ask("/metrics")[1]:
            assert time.monotonic() < deadline_s
    assert sum("reload: the newer checkpoint cannot be loaded yet" in line for line in server.said) == 1


def test_a_client_that_sends_no_body_or_too_large_a_head_is_let_go(run: Path) -> None:
    with serving(run, "timeout_s=0.5") as server:
        with socket.create_connection(("127.0.0.1", server.port), timeout=60) as slow:
            slow.sendall(b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{")
            assert b" 408 " in slow.recv(1000)
        with socket.create_connection(("127.0.0.1", server.port), timeout=60) as large:
            large.sendall(b"GET /labels HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 100_000)
            assert b" 400 " in large.recv(1000)


def test_rows_of_a_client_that_has_gone_are_not_computed(run: Path) -> None:
    rows = [row["text"] for row in unlabelled(TASKS["classify"], 3000)]
    with serving(run, "max_rows=3000", "batch_size=1") as server:
        body = json.dumps({"rows": rows}).encode()
        with socket.create_connection(("127.0.0.1", server.port), timeout=60) as leaving:
            leaving.sendall(
                b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body) + body
            )
            while server.ask("/health")[1]["waiting_rows"] == 0:
                pass
        deadline_s = time.monotonic() + 60
        while 'status="499"' not in (counted := server.ask("/metrics")[1]):
            assert time.monotonic() < deadline_s
        (computed,) = (float(line.split()[1]) for line in counted.splitlines() if line.startswith("nlu_batch_rows_sum"))
        assert computed < 3000


def test_a_server_that_is_ended_answers_what_it_has_taken(run: Path, loaded: Loaded) -> None:
    rows = [row["text"] for row in unlabelled(TASKS["classify"], 3000)]
    with serving(run, "max_rows=3000", "batch_size=16") as server, ThreadPoolExecutor(1) as pool:
        answer = pool.submit(server.ask, "/predict", {"rows": rows})
        while server.ask("/health")[1]["waiting_rows"] == 0:
            if answer.done():
                # On a loaded machine an answer may be there before its rows are seen waiting.
                assert answer.result()[0] == 200
                answer = pool.submit(server.ask, "/predict", {"rows": rows})
        server.process.send_signal(signal.SIGTERM)
        status, found = answer.result()
        # A second signal would kill an interpreter that is ending.
        server.process.wait(60)
    assert status == 200 and found["rows"] == loaded.predict(rows)


def test_the_prompt_in_this_process(
    run: Path, loaded: Loaded, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("a b\n"))
    assert run_prompt(Serve(run=str(run), device="cpu")) == 0
    (first,) = loaded.predict(["a b"])
    assert f"{first['probability']:.4f} {first['prediction']}" in capsys.readouterr().out
