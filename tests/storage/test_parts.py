"""Uploads in parts that another writer comes between: no object of another passes for the own one."""

from pathlib import Path

import pytest

from nlu.config.errors import DataError
from nlu.storage import parts
from nlu.storage.buckets import Bucket, Part, S3Bucket, open_bucket
from nlu.storage.objects import ObjectStore
from tests.buckets import Server

CONTENT = bytes(5 << 20) + b"the end"
OTHER = CONTENT[:-1] + b"?"


@pytest.fixture
def bucket(s3: Server, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    monkeypatch.setattr(parts, "PART_BYTES", 5 << 20)
    monkeypatch.setattr("nlu.storage.stores.WHOLE_BYTES", 5 << 20)
    return open_bucket("s3", s3.bucket(monkeypatch).removeprefix("s3://"))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "model").write_bytes(CONTENT)
    return tmp_path / "model"


@pytest.fixture
def store(bucket: Bucket) -> ObjectStore:
    return ObjectStore(f"s3://{bucket.name}/run", "mirror")


def test_what_another_wrote_meanwhile_does_not_pass_for_the_file(
    store: ObjectStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def overtaken(self: S3Bucket, key: str, upload: str, parts: list[Part]) -> None:
        self.put(key, OTHER)
        raise FileNotFoundError(key)

    monkeypatch.setattr(S3Bucket, "complete", overtaken)
    with pytest.raises(DataError, match="ended by another process"):
        store.put_file("model", path)


@pytest.mark.parametrize("tells", [True, False], ids=["by its etag", "by its bytes"])
def test_an_upload_whose_answer_is_lost_is_found_done(
    store: ObjectStore, path: Path, monkeypatch: pytest.MonkeyPatch, tells: bool
) -> None:
    complete = S3Bucket.complete

    def unheard(self: S3Bucket, key: str, upload: str, parts: list[Part]) -> None:
        complete(self, key, upload, parts)
        raise FileNotFoundError(key)

    monkeypatch.setattr(S3Bucket, "complete", unheard)
    if not tells:
        monkeypatch.setattr(parts, "is_content", lambda path, etag: None)
    store.put_file("model", path)
    assert store.get("model") == CONTENT


def test_a_run_goes_on_with_uploads_of_its_own_and_of_no_other(
    bucket: Bucket, store: ObjectStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = bucket.begin("run/model")
    put_part, numbers = S3Bucket.put_part, []

    def cut_off(self: S3Bucket, key: str, upload: str, number: int, content: bytes) -> Part:
        numbers.append(number)
        if numbers.count(2) == 1 and number == 2:
            raise DataError("no answer")
        return put_part(self, key, upload, number, content)

    monkeypatch.setattr(S3Bucket, "put_part", cut_off)
    with pytest.raises(DataError, match="no answer"):
        store.put_file("model", path)
    assert len(bucket.uploads("run/model")) == 2
    store.put_file("model", path)
    assert store.get("model") == CONTENT and sorted(numbers) == [1, 2, 2]
    assert bucket.uploads("run/model") == [others]
