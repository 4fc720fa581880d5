"""Large files in parts: each arrives complete or not at all, and versions never mix."""

from pathlib import Path
from typing import Any

import pytest

from nlu.storage import access, transfer_in_parts
from nlu.storage.access import FileInfo, read_all, stat, write
from nlu.storage.filesystems import filesystem_of
from nlu.storage.locations import parse_place
from nlu.storage.refusals import Changed, Unreachable
from nlu.storage.transfer_in_parts import fetch_into, no_progress, put
from tests.disk import followed

PART = 5 << 20
CONTENT = bytes(PART) + b"x" * PART + b"the end"


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of the least size that S3 allows."""
    monkeypatch.setattr(transfer_in_parts, "PART_BYTES", PART)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "model").write_bytes(CONTENT)
    return tmp_path / "model"


def test_a_large_file_arrives_whole_in_both_directions(remote: str, path: Path, tmp_path: Path) -> None:
    place, moved = parse_place(f"{remote}/model"), list[int]()
    put(path, place, moved.append)
    assert read_all(place) == CONTENT and sum(moved) == len(CONTENT)
    info = stat(place)
    assert info is not None
    fetch_into(place, info, tmp_path / "folder/back", moved.append)
    assert (tmp_path / "folder/back").read_bytes() == CONTENT and sum(moved) == 2 * len(CONTENT)
    assert [(tmp_path / "folder/back").stat().st_mtime, len(list(tmp_path.rglob("*")))] == [info.modified_s, 3]
    assert transfer_in_parts.PART_BYTES * 10_000 > 50e9, "S3 takes 10,000 parts"


def test_an_upload_that_fails_leaves_nothing_to_be_seen(s3: Any, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nlu.storage.refusals.RETRY_DELAYS_S", ())
    place = parse_place(f"{s3.bucket(monkeypatch)}/model")
    filesystem, _ = filesystem_of(place)
    real = filesystem._call_s3

    async def call(method: str, *values: Any, **options: Any) -> Any:
        if method == "upload_part" and options["PartNumber"] == 3:
            raise OSError("no answer")
        return await real(method, *values, **options)

    monkeypatch.setattr(filesystem, "_call_s3", call)
    with pytest.raises(Unreachable):
        put(path, place, no_progress)
    assert stat(place) is None
    assert filesystem.call_s3("list_multipart_uploads", Bucket=place.bucket).get("Uploads", []) == []


def test_a_fetched_file_is_synced_before_it_gets_its_name(remote: str, tmp_path: Path) -> None:
    place = parse_place(f"{remote}/x")
    write(place, b"content")
    with followed() as disk:
        fetch_into(place, FileInfo(False, 7), tmp_path / "folder/file", no_progress)
    disk.require_on_disk()
    assert disk.named == [tmp_path / "folder/file"]


def test_an_object_that_changes_or_goes_while_it_is_fetched_is_not_mixed(remote: str, tmp_path: Path) -> None:
    place = parse_place(f"{remote}/x")
    write(place, b"of the older")
    found = stat(place)
    assert found is not None
    write(place, b"OF THE NEWER")
    with pytest.raises(Changed, match="changed while it was read"):
        fetch_into(place, found, tmp_path / "x", no_progress)
    access.delete(place)
    with pytest.raises(Changed, match="was removed while it was read"):
        fetch_into(place, found, tmp_path / "x", no_progress)
    assert list(tmp_path.glob("*")) == []
