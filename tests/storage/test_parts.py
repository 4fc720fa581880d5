"""Uploads in parts that another writer comes between: no object of another passes for the own one."""

from pathlib import Path
from typing import Any

import pytest

from nlu.config.errors import DataError, UserError
from nlu.io import main
from nlu.storage import parts
from nlu.storage.bucket import Bucket, UploadPart
from nlu.storage.buckets import S3Bucket, open_bucket
from nlu.storage.objects import ObjectStore
from tests.buckets import Server

CONTENT = bytes(5 << 20) + b"the end"
OTHER = CONTENT[:-1] + b"?"


@pytest.fixture
def bucket(s3: Server, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    monkeypatch.setattr(parts, "PART_BYTES", 5 << 20)
    monkeypatch.setattr("nlu.storage.objects.WHOLE_BYTES", 5 << 20)
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
    def overtaken(self: S3Bucket, key: str, upload: str, parts: list[UploadPart]) -> None:
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

    def unheard(self: S3Bucket, key: str, upload: str, parts: list[UploadPart]) -> None:
        complete(self, key, upload, parts)
        raise FileNotFoundError(key)

    monkeypatch.setattr(S3Bucket, "complete", unheard)
    if not tells:
        monkeypatch.setattr(parts, "is_content", lambda path, etag: None)
    store.put_file("model", path)
    assert store.get("model") == CONTENT


def _begun(bucket: Bucket, key: str) -> str:
    """Begin an upload of which a part has arrived; when it was begun the double does not know."""
    upload = bucket.begin(key)
    bucket.put_part(key, upload, 1, CONTENT[: 5 << 20])
    return upload


def test_a_run_goes_on_with_uploads_of_its_own_and_of_no_other(
    bucket: Bucket, store: ObjectStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = _begun(bucket, "run/model")
    put_part, numbers = S3Bucket.put_part, []

    def cut_off(self: S3Bucket, key: str, upload: str, number: int, content: bytes) -> UploadPart:
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


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every upload has stood still for long."""
    monkeypatch.setattr(parts, "IDLE_S", -60.0)


def test_an_object_that_is_written_leaves_no_upload_of_it_that_nobody_goes_on_with(
    bucket: Bucket, store: ObjectStore, path: Path, later: None
) -> None:
    bucket.begin("run/model")
    _begun(bucket, "run/model")
    longer = bucket.begin("run/model-2")
    store.put_file("model", path)
    assert store.get("model") == CONTENT
    assert bucket.uploads("run/model") == [] and bucket.uploads("run/model-2") == [longer]


def test_an_upload_that_may_still_go_on_stays(bucket: Bucket, store: ObjectStore, path: Path) -> None:
    others = _begun(bucket, "run/model")
    store.put_file("model", path)
    assert bucket.uploads("run/model") == [others]


@pytest.mark.parametrize("left_out", [None, "NextUploadIdMarker"])
def test_all_uploads_are_listed_however_many(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch, left_out: str | None
) -> None:
    begun = {bucket.begin(f"many/{number}") for number in range(5)}
    call = S3Bucket._call

    def paged(self: S3Bucket, action: str, key: str, method: str, **options: Any) -> Any:
        """Give two at a time, as S3 does by its reference; the server of the tests gives all at once."""
        if method != "list_multipart_uploads":
            return call(self, action, key, method, **options)
        after = options.get("KeyMarker", "")
        found = [one for one in call(self, action, key, method, Prefix=key)["Uploads"] if one["Key"] > after]
        answer = {"Uploads": found[:2], "IsTruncated": len(found) > 2}
        if len(found) > 2:
            answer |= {"NextKeyMarker": found[1]["Key"], "NextUploadIdMarker": found[1]["UploadId"]}
        return {name: value for name, value in answer.items() if name != left_out}

    monkeypatch.setattr(S3Bucket, "_call", paged)
    assert {upload.name for upload in bucket.uploads_below("many/")} == begun


def test_the_command_removes_unfinished_uploads_below_a_place_and_no_file(
    bucket: Bucket, later: None, capsys: pytest.CaptureFixture[str]
) -> None:
    bucket.begin("runs/a/big")
    kept = bucket.begin("runs/ab")
    bucket.put("runs/a/file", b"x")
    place = f"s3://{bucket.name}/runs/a"
    assert main(["rm", "--uploads", "--dry", place]) == 0
    said = capsys.readouterr()
    assert f"of {place}/big" in said.out and "would remove 1 unfinished upload" in said.err
    with pytest.raises(UserError, match="lies on a disk"):
        main(["rm", "--uploads", place, "/tmp/x"])
    assert len(bucket.uploads("runs/a/big")) == 1, "nothing was removed"
    assert main(["rm", "--uploads", place]) == 0 and "removed 1 unfinished upload\n" in capsys.readouterr().err
    assert bucket.uploads("runs/a/big") == [] and bucket.uploads("runs/ab") == [kept]
    assert bucket.get("runs/a/file") == b"x"
    with pytest.raises(UserError, match="is a whole bucket, which is never searched"):
        main(["rm", "--uploads", f"s3://{bucket.name}"])
    with pytest.raises(UserError, match="lies on a disk, but --uploads is for s3:// and oss://"):
        main(["rm", "--uploads", "/tmp/x"])
