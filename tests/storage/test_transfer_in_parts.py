"""Uploads and downloads in parts: they continue, versions never mix, and an object of another is never the own one."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nlu.config.errors import DataError, UserError
from nlu.storage import access, transfer_in_parts
from nlu.storage.access import FileInfo, read_all, stat, write
from nlu.storage.filesystems import filesystem_of
from nlu.storage.locations import Place, parse_place
from nlu.storage.locks import hold_lock
from nlu.storage.refusals import Changed, Unreachable
from nlu.storage.transfer_in_parts import fetch_into, is_content, joined_etag, no_progress, put
from tests.disk import followed

PART = 5 << 20
CONTENT = bytes(PART) + b"x" * PART + b"the end"


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of the least size that S3 allows, sent one after another."""
    for name, value in {"PART_BYTES": PART, "WHOLE_BYTES": PART, "THREADS": 1}.items():
        monkeypatch.setattr(transfer_in_parts, name, value)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "model").write_bytes(CONTENT)
    return tmp_path / "model"


def sent(place: Place, monkeypatch: pytest.MonkeyPatch, fails_at: int = 0) -> list[int]:
    """Note the numbers of the parts that are sent; the sending of one of them fails once."""
    filesystem, numbers = filesystem_of(place)[0], list[int]()
    owner, name = (filesystem, "call_s3") if place.scheme == "s3" else (oss2_bucket(), "upload_part")
    real = getattr(owner, name)

    def call(*values: Any, **options: Any) -> Any:
        is_part = name == "upload_part" or values[0] == "upload_part"
        number = options.get("PartNumber") or (values[3] if len(values) > 3 and name == "upload_part" else 0)
        if is_part:
            numbers.append(number)
            if number == fails_at and numbers.count(number) == 1:
                raise OSError("no answer")
        return real(*values, **options)

    monkeypatch.setattr(owner, name, call)
    return numbers


def oss2_bucket() -> Any:
    import oss2

    return oss2.Bucket


def test_an_interrupted_upload_continues_with_the_parts_that_arrived(
    remote: str, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = parse_place(f"{remote}/model")
    numbers = sent(place, monkeypatch, fails_at=3)
    with pytest.raises(Unreachable):
        put(path, place, no_progress)
    assert stat(place) is None, "half a file is not visible"
    moved: list[int] = []
    put(path, place, moved.append)
    assert read_all(place) == CONTENT and numbers == [1, 2, 3, 3] and sum(moved) == len(CONTENT)


def test_a_changed_file_is_sent_anew(remote: str, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = parse_place(f"{remote}/model")
    sent(place, monkeypatch, fails_at=3)
    with pytest.raises(Unreachable):
        put(path, place, no_progress)
    path.write_bytes(CONTENT[::-1])
    put(path, place, no_progress)
    assert read_all(place) == CONTENT[::-1]


@pytest.mark.parametrize("is_own", [True, False])
def test_an_object_counts_as_sent_only_if_it_is_the_own_one(
    s3: Any, path: Path, monkeypatch: pytest.MonkeyPatch, is_own: bool
) -> None:
    """The answer to the last request of an upload is lost, or another process has ended the upload."""
    place = parse_place(f"{s3.bucket(monkeypatch)}/model")
    filesystem, _ = filesystem_of(place)
    real = filesystem.call_s3

    def call(method: str, **options: Any) -> Any:
        if method != "complete_multipart_upload":
            return real(method, **options)
        if is_own:
            real(method, **options)
        else:
            real("put_object", Bucket=place.bucket, Key=place.path, Body=CONTENT[::-1])
        raise FileNotFoundError(method)

    monkeypatch.setattr(filesystem, "call_s3", call)
    if is_own:
        put(path, place, no_progress)
    else:
        with pytest.raises(DataError, match="its upload was ended by another process; try again"):
            put(path, place, no_progress)
    assert (read_all(place) == CONTENT) == is_own


def test_etags_of_objects_in_parts_are_computed(path: Path) -> None:
    digests = [hashlib.md5(CONTENT[start : start + PART]).digest() for start in range(0, len(CONTENT), PART)]
    etag = f"{hashlib.md5(b''.join(digests)).hexdigest()}-3"
    assert joined_etag(digest.hex() for digest in digests) == etag
    assert is_content(path, etag.upper()) is True and is_content(path, hashlib.md5(CONTENT).hexdigest()) is True
    assert is_content(path, f"{'0' * 32}-2") is None and is_content(path, "0" * 32) is False
    assert is_content(path, "version-1") is None


OLD, NEW, PLACE = b"of the older", b"OF THE NEWER", Place("http", "", "http://host/file")


@pytest.fixture
def version(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Let the file at PLACE have this content, of which so many parts of four bytes come."""
    monkeypatch.setattr(transfer_in_parts, "PART_BYTES", 4)

    def serve(content: bytes, come: int = 100) -> None:
        def read(place: Place, start: int, stop: int, info: FileInfo) -> bytes:
            if start // 4 >= come:
                raise Unreachable("no answer")
            return content[start:stop]

        monkeypatch.setattr(access, "read", read)

    return serve


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
    tmp_path: Path, version: Callable[..., None], then: FileInfo, now: FileInfo
) -> None:
    target = tmp_path / "file"
    version(OLD, 2)
    with pytest.raises(Unreachable):
        fetch_into(PLACE, then, target, no_progress)
    assert sum(path.stat().st_size for path in tmp_path.glob(".file.*.part")) == 8, "two parts came"
    version(NEW)
    fetch_into(PLACE, now, target, no_progress)
    assert target.read_bytes() == NEW


@pytest.mark.parametrize("is_whole", [True, False], ids=["as they came", "damaged on the disk"])
def test_a_partial_download_of_the_same_version_is_continued(
    tmp_path: Path, version: Callable[..., None], is_whole: bool
) -> None:
    found, moved = FileInfo(False, 12, hashlib.md5(OLD).hexdigest(), 1e9), list[int]()
    version(OLD, 2)
    with pytest.raises(Unreachable):
        fetch_into(PLACE, found, tmp_path / "file", no_progress)
    if not is_whole:
        next(tmp_path.glob(".file.*.part")).write_bytes(bytes(8))
    version(OLD)
    fetch_into(PLACE, found, tmp_path / "file", moved.append)
    assert (tmp_path / "file").read_bytes() == OLD and (tmp_path / "file").stat().st_mtime == 1e9
    assert moved == [8, 4] if is_whole else sum(moved) == 12


def test_a_fetched_file_is_synced_before_it_gets_its_name(tmp_path: Path, version: Callable[..., None]) -> None:
    version(NEW)
    with followed() as disk:
        fetch_into(PLACE, FileInfo(False, 12), tmp_path / "folder/file", no_progress)
    disk.require_on_disk()
    assert disk.named == [tmp_path / "folder/file"]


def test_two_processes_do_not_fetch_to_one_path(tmp_path: Path, version: Callable[..., None]) -> None:
    version(OLD, 0)
    with pytest.raises(Unreachable):
        fetch_into(PLACE, FileInfo(False, 12), tmp_path / "file", no_progress)
    with hold_lock(next(tmp_path.glob(".file.*.part")), wait_s=0):
        with pytest.raises(UserError, match="file is being written by another process; wait for it"):
            fetch_into(PLACE, FileInfo(False, 12), tmp_path / "file", no_progress)


def test_an_object_that_changes_or_goes_while_it_is_fetched_is_not_mixed(remote: str, tmp_path: Path) -> None:
    place = parse_place(f"{remote}/x")
    write(place, OLD)
    found = stat(place)
    assert found is not None
    write(place, NEW)
    with pytest.raises(Changed, match="changed while it was read"):
        fetch_into(place, found, tmp_path / "x", no_progress)
    access.delete(place)
    with pytest.raises(Changed, match="was removed while it was read"):
        fetch_into(place, found, tmp_path / "x", no_progress)
    assert not (tmp_path / "x").exists()
