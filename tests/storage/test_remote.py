"""Object stores through fsspec, against a real S3 server on this machine."""

import hashlib
import logging
import os
from typing import Any

import boto3
import fsspec
import pytest

from nlu.config.errors import DataError
from nlu.storage import buckets, resources
from nlu.storage.places import Reference
from nlu.storage.resources import fetch
from tests.buckets import Server


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


def test_a_file_of_any_other_store_is_fetched_again_when_its_size_alone_stayed(cache):
    store = fsspec.filesystem("memory")
    for text in ("first", "again"):
        store.pipe_file("/shelf/rows.txt", text.encode())
        assert fetch("memory://shelf/rows.txt").read_text() == text


def test_a_prefix_is_fetched_as_a_folder_and_anew_when_a_file_is_added(bucket):
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


def test_an_object_that_came_in_part_is_refused_and_leaves_nothing(bucket, cached_files, monkeypatch):
    bucket.put_object(Key="a.bin", Body=b"abcdef")
    monkeypatch.setattr(resources, "fetch_into", lambda store, place, found, path, advance: path.write_bytes(b"abc"))
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
    monkeypatch.setattr("nlu.storage.bucket.RETRY_DELAYS_S", ())
    assert fetch(f"s3://{bucket.name}/a.txt") == path
    assert "cannot be asked" in caplog.text
    with pytest.raises(DataError, match=r"never\.txt cannot be read.*check AWS_ENDPOINT_URL"):
        fetch(f"s3://{bucket.name}/never.txt")


def test_a_cache_that_others_filled_and_nobody_may_write_serves_what_it_holds(bucket, cache, caplog):
    bucket.put_object(Key="a.txt", Body=b"abc")
    path = fetch(f"s3://{bucket.name}/a.txt")
    for file in (cache / "latest").iterdir():
        file.unlink()
    (cache / "latest").rmdir()
    (cache / "latest").write_text("where nothing can be written, also not by root")
    assert fetch(f"s3://{bucket.name}/a.txt") == path


def test_what_is_cached_and_unchanged_is_not_noted_again(bucket, cache):
    bucket.put_object(Key="a.txt", Body=b"abc")
    fetch(f"s3://{bucket.name}/a.txt")
    (note,) = (cache / "latest").iterdir()
    os.utime(note, (0, 0))
    fetch(f"s3://{bucket.name}/a.txt")
    assert note.stat().st_mtime == 0


def test_a_key_that_leaves_the_folder_is_refused(bucket, tmp_path, cached_files):
    bucket.put_object(Key="evil/../../escaped.txt", Body=b"evil")
    with pytest.raises(DataError, match="outside its folder"):
        fetch(f"s3://{bucket.name}/evil")
    assert cached_files() == [] and not list(tmp_path.rglob("escaped.txt"))


def test_an_endpoint_of_oss_is_spoken_to_as_it_wants_it_and_no_other(monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "https://s3.oss-cn-hangzhou.aliyuncs.com")
    filesystem, _ = buckets.connect(Reference("s3://bucket/a", "s3", None, "file"), config_kwargs={"retries": {}})
    assert filesystem.config_kwargs["signature_version"] == "s3" and "retries" in filesystem.config_kwargs
    assert filesystem.config_kwargs["s3"] == {"addressing_style": "virtual"}
    assert filesystem.config_kwargs["request_checksum_calculation"] == "when_required"
    monkeypatch.setenv("AWS_ENDPOINT_URL", "https://s3.example.com/aliyuncs.com")
    filesystem, _ = buckets.connect(Reference("s3://bucket/a", "s3", None, "file"))
    assert filesystem.config_kwargs == {}
