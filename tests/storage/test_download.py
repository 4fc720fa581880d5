"""HTTP downloads against a real server on this machine."""

import hashlib
import logging
import os
import signal
import subprocess
import sys
import time

import pytest

from nlu.config.errors import DataError
from nlu.storage.resources import fetch

CONTENT = "今天天气不错\n".encode() * 1000
DIGEST = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture(autouse=True)
def short_delays(monkeypatch):
    monkeypatch.setattr("nlu.storage.refusals.RETRY_DELAYS_S", (0.01, 0.01, 0.01))


def test_a_url_is_downloaded_once_and_logged_with_its_place(server, cache, caplog):
    server.files["/data.txt"] = CONTENT
    with caplog.at_level(logging.INFO):
        first = fetch(server.url("/data.txt"), what="training set")
    assert first.name == "data.txt" and first.read_bytes() == CONTENT and cache in first.parents
    assert fetch(server.url("/data.txt")) == first and server.requests["/data.txt"] == 3, (
        "looked at twice, fetched once"
    )
    (line,) = [record.getMessage() for record in caplog.records]
    assert "training set" in line and server.url("/data.txt") in line and str(first.parent.parent) in line


def test_a_file_with_a_known_sha256_is_not_fetched_again_from_a_mirror(server):
    server.files["/a/data.txt"] = CONTENT
    first = fetch(f"{server.url('/a/data.txt')}#sha256={DIGEST}")
    assert fetch(f"{server.url('/mirror/data.txt')}#sha256={DIGEST}") == first
    assert "/mirror/data.txt" not in server.requests


def test_another_sha256_is_reported_with_both_and_leaves_nothing(server, cached_files):
    server.files["/data.txt"] = CONTENT
    with pytest.raises(DataError, match=f"{DIGEST}.*{'0' * 64}"):
        fetch(f"{server.url('/data.txt')}#sha256={'0' * 64}")
    assert cached_files() == []


def test_transient_failures_are_retried(server):
    server.files["/data.txt"] = CONTENT
    server.faults["/data.txt"] = [503, "cut", 429]
    assert fetch(server.url("/data.txt")).read_bytes() == CONTENT
    assert server.requests["/data.txt"] == 4


def test_a_connection_that_always_ends_early_raises_and_leaves_no_files(server, cached_files):
    server.files["/data.txt"] = CONTENT
    server.faults["/data.txt"] = ["cut"] * 9
    with pytest.raises(DataError, match=f"received {len(CONTENT) // 2} of {len(CONTENT)} bytes"):
        fetch(server.url("/data.txt"))
    assert server.requests["/data.txt"] == 5 and cached_files() == []


def test_a_missing_file_is_reported_at_once(server):
    with pytest.raises(DataError, match=r"weights http.*/no\.bin does not exist on the server; correct"):
        fetch(server.url("/no.bin"), what="weights")
    assert server.requests["/no.bin"] == 1


def test_a_process_killed_halfway_leaves_no_complete_entry(server, cache, cached_files):
    server.files["/data.txt"] = CONTENT * 200
    server.faults["/data.txt"] = [None, "stall"]
    code = f"from nlu.storage.resources import fetch; fetch({server.url('/data.txt')!r})"
    process = subprocess.Popen([sys.executable, "-c", code], env={**os.environ, "NLU_CACHE": str(cache)})
    deadline = time.monotonic() + 60
    while not sum(path.stat().st_size for path in cached_files()) and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    (left,) = (path for path in cached_files() if path.suffix not in (".lock", ".json"))
    assert left.stat().st_size > 0 and cache / "staging" in left.parents
    assert fetch(server.url("/data.txt")).read_bytes() == CONTENT * 200
