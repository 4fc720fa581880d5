"""Uploads and downloads in parts: an object of another writer never counts as the own one, and versions never mix."""

import hashlib
from pathlib import Path
from typing import Any

import pytest

from nlu.config.errors import DataError, UserError
from nlu.io import main
from nlu.storage import parts
from nlu.storage.backend import Backend, FileInfo
from nlu.storage.bucket import Bucket, Unreachable, UploadPart
from nlu.storage.buckets import S3Bucket, open_bucket
from nlu.storage.objects import ObjectStore
from nlu.storage.parts import fetch_into
from nlu.storage.places import Place
from tests.buckets import Server
from tests.disk import followed

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


def test_an_object_of_another_writer_is_not_accepted_as_the_file(
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


def test_a_run_continues_only_the_uploads_that_it_began(
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


def test_writing_an_object_aborts_its_abandoned_uploads(
    bucket: Bucket, store: ObjectStore, path: Path, later: None
) -> None:
    bucket.begin("run/model")
    _begun(bucket, "run/model")
    longer = bucket.begin("run/model-2")
    store.put_file("model", path)
    assert store.get("model") == CONTENT
    assert bucket.uploads("run/model") == [] and bucket.uploads("run/model-2") == [longer]


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
    with pytest.raises(UserError, match="is on a disk"):
        main(["rm", "--uploads", place, "/tmp/x"])
    assert len(bucket.uploads("runs/a/big")) == 1, "nothing was removed"
    assert main(["rm", "--uploads", place]) == 0 and "removed 1 unfinished upload\n" in capsys.readouterr().err
    assert bucket.uploads("runs/a/big") == [] and bucket.uploads("runs/ab") == [kept]
    assert bucket.get("runs/a/file") == b"x"
    with pytest.raises(UserError, match="is a whole bucket, which is never searched"):
        main(["rm", "--uploads", f"s3://{bucket.name}"])
    with pytest.raises(UserError, match="is on a disk, but --uploads is for s3:// and oss://"):
        main(["rm", "--uploads", "/tmp/x"])


PLACE = Place("http", "host", "file")


class Version(Backend):
    """One file in parts of four bytes; does not answer from the n-th on."""

    def __init__(self, content: bytes, parts: int = 100):
        self.content, self._parts = content, parts

    def read(self, place: Place, start: int, stop: int, found: FileInfo) -> bytes:
        if start // 4 >= self._parts:
            raise Unreachable("no answer")
        return self.content[start:stop]

    def read_whole(self, place: Place, path: Path) -> None:
        path.write_bytes(self.content)

    def stat(self, place: Place) -> Any:
        raise NotImplementedError

    files = children = stat


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "PART_BYTES", 4)
    monkeypatch.setattr(parts, "THREADS", 1)


OLD, NEW = b"of the older", b"OF THE NEWER"


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize(
    ("then", "now"),
    [
        (FileInfo(False, 12, etag="one-3"), FileInfo(False, 12, etag="two-3")),
        (FileInfo(False, 12, modified_s=1e9), FileInfo(False, 12, modified_s=1e9 + 60)),
        (FileInfo(False, 12, "same-3", 1e9), FileInfo(False, 12, "same-3", 1e9 + 60)),
    ],
    ids=["etag", "time", "time beside an etag"],
)
def test_a_partial_download_is_never_completed_from_another_version(
    tmp_path: Path, then: FileInfo, now: FileInfo
) -> None:
    target = tmp_path / "file"
    with pytest.raises(Unreachable):
        fetch_into(Version(OLD, parts=2), PLACE, then, target, lambda size: None)
    assert sum(path.stat().st_size for path in tmp_path.glob(".file.*.part")) == 8, "two parts came"
    fetch_into(Version(NEW), PLACE, now, target, lambda size: None)
    assert target.read_bytes() == NEW


@pytest.mark.usefixtures("small_parts")
def test_a_partial_download_of_the_same_version_is_continued(tmp_path: Path) -> None:
    found, read = FileInfo(False, 12, etag="one-3"), []
    with pytest.raises(Unreachable):
        fetch_into(Version(OLD, parts=2), PLACE, found, tmp_path / "file", lambda size: None)
    fetch_into(Version(OLD), PLACE, found, tmp_path / "file", read.append)
    assert read == [8, 4] and (tmp_path / "file").read_bytes() == OLD


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("found", [FileInfo(False, 12), FileInfo(False, None)], ids=["in parts", "whole"])
def test_a_fetched_file_is_synced_before_it_gets_its_name_and_then_the_name_is(tmp_path: Path, found: FileInfo) -> None:
    with followed() as disk:
        fetch_into(Version(NEW), PLACE, found, tmp_path / "folder" / "file", lambda size: None)
    disk.require_on_disk()
    assert disk.named == [tmp_path / "folder" / "file"]


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("begun", [0, 2])
def test_the_digest_covers_the_whole_file_even_if_a_part_came_earlier(tmp_path: Path, begun: int) -> None:
    found = FileInfo(False, 12, etag="one-3", modified_s=1e9)
    with pytest.raises(Unreachable):
        fetch_into(Version(NEW, parts=begun), PLACE, found, tmp_path / "file", lambda size: None)
    digest = fetch_into(Version(NEW), PLACE, found, tmp_path / "file", lambda size: None, hashed=True)
    assert digest == hashlib.sha256(NEW).hexdigest() and (tmp_path / "file").stat().st_mtime == 1e9
    whole = fetch_into(Version(NEW), PLACE, FileInfo(False), tmp_path / "whole", lambda size: None, hashed=True)
    assert whole == digest and fetch_into(Version(NEW), PLACE, found, tmp_path / "x", lambda size: None) is None
