"""A file fetched onto a disk: never of two versions, and on the disk before it has its name."""

import hashlib
from pathlib import Path
from typing import Any

import pytest

from nlu.config.errors import UserError
from nlu.storage import parts
from nlu.storage.backend import FileStore, Found
from nlu.storage.bucket import Changed, Unreachable
from nlu.storage.parts import fetch_into
from nlu.storage.places import Place
from tests.disk import followed

PLACE = Place("http", "host", "file")


class Version(FileStore):
    """One file in parts of four bytes; does not answer from the n-th on."""

    def __init__(self, content: bytes, parts: int = 100):
        self.content, self._parts = content, parts

    def read(self, place: Place, start: int, stop: int, found: Found) -> bytes:
        if start // 4 >= self._parts:
            raise Unreachable("no answer")
        return self.content[start:stop]

    def read_whole(self, place: Place, path: Path) -> None:
        path.write_bytes(self.content)

    def look(self, place: Place) -> Any:
        raise NotImplementedError

    files = children = look


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "PART_BYTES", 4)
    monkeypatch.setattr(parts, "THREADS", 1)


OLD, NEW = b"of the older", b"OF THE NEWER"


@pytest.mark.parametrize(
    ("then", "now"),
    [
        (Found(False, 12, etag="one-3"), Found(False, 12, etag="two-3")),
        (Found(False, 12, modified_s=1e9), Found(False, 12, modified_s=1e9 + 60)),
        (Found(False, 12, "same-3", 1e9), Found(False, 12, "same-3", 1e9 + 60)),
    ],
    ids=["etag", "time", "time beside an etag"],
)
def test_what_came_of_one_version_is_never_completed_by_another_of_the_same_size(
    tmp_path: Path, then: Found, now: Found
) -> None:
    target = tmp_path / "file"
    with pytest.raises(Unreachable):
        fetch_into(Version(OLD, parts=2), PLACE, then, target, lambda size: None)
    assert sum(path.stat().st_size for path in tmp_path.glob(".file.*.part")) == 8, "two parts came"
    fetch_into(Version(NEW), PLACE, now, target, lambda size: None)
    assert target.read_bytes() == NEW


def test_what_came_of_the_same_version_is_not_read_again(tmp_path: Path) -> None:
    found, read = Found(False, 12, etag="one-3"), []
    with pytest.raises(Unreachable):
        fetch_into(Version(OLD, parts=2), PLACE, found, tmp_path / "file", lambda size: None)
    fetch_into(Version(OLD), PLACE, found, tmp_path / "file", read.append)
    assert read == [8, 4] and (tmp_path / "file").read_bytes() == OLD


@pytest.mark.parametrize("found", [Found(False, 12), Found(False, None)], ids=["in parts", "whole"])
def test_a_file_is_on_the_disk_before_it_has_its_name_and_the_name_is_when_it_is_done(
    tmp_path: Path, found: Found
) -> None:
    with followed() as disk:
        fetch_into(Version(NEW), PLACE, found, tmp_path / "folder" / "file", lambda size: None)
    disk.require_on_disk()
    assert disk.named == [tmp_path / "folder" / "file"]


@pytest.mark.parametrize("begun", [0, 2])
def test_the_digest_is_that_of_all_of_the_file_also_where_some_of_it_came_before(tmp_path: Path, begun: int) -> None:
    found = Found(False, 12, etag="one-3", modified_s=1e9)
    with pytest.raises(Unreachable):
        fetch_into(Version(NEW, parts=begun), PLACE, found, tmp_path / "file", lambda size: None)
    digest = fetch_into(Version(NEW), PLACE, found, tmp_path / "file", lambda size: None, hashed=True)
    assert digest == hashlib.sha256(NEW).hexdigest() and (tmp_path / "file").stat().st_mtime == 1e9
    whole = fetch_into(Version(NEW), PLACE, Found(False), tmp_path / "whole", lambda size: None, hashed=True)
    assert whole == digest and fetch_into(Version(NEW), PLACE, found, tmp_path / "x", lambda size: None) is None


@pytest.mark.parametrize("left", [b"half lost   ", b"OF THE", OLD + b"and more"])
def test_what_was_left_is_read_anew_where_the_digest_of_the_store_says_that_it_is_damaged(
    tmp_path: Path, left: bytes
) -> None:
    found, told = Found(False, 12, etag=hashlib.md5(NEW).hexdigest()), list[int]()
    with pytest.raises(Unreachable):
        fetch_into(Version(NEW, parts=0), PLACE, found, tmp_path / "file", lambda size: None)
    (part,) = tmp_path.iterdir()
    part.write_bytes(left)
    digest = fetch_into(Version(NEW), PLACE, found, tmp_path / "file", told.append, hashed=True)
    assert (tmp_path / "file").read_bytes() == NEW and digest == hashlib.sha256(NEW).hexdigest() and sum(told) == 12


def test_a_file_that_another_process_fetches_is_left_to_it_and_one_that_goes_meanwhile_is_told(tmp_path: Path) -> None:
    class Inner(Version):
        def read_whole(self, place: Place, path: Path) -> None:
            with pytest.raises(UserError, match="file is being written by another process; wait for it"):
                fetch_into(Version(NEW), PLACE, Found(False), tmp_path / "file", lambda size: None)
            super().read_whole(place, path)

        def read(self, place: Place, start: int, stop: int, found: Found) -> bytes:
            raise FileNotFoundError

    fetch_into(Inner(OLD), PLACE, Found(False), tmp_path / "file", lambda size: None)
    assert (tmp_path / "file").read_bytes() == OLD
    with pytest.raises(Changed, match="was removed while it was read; try again"):
        fetch_into(Inner(OLD), PLACE, Found(False, 12), tmp_path / "other", lambda size: None)


def test_without_locks_a_file_comes_all_the_same(tmp_path: Path, without_locks: None) -> None:
    fetch_into(Version(NEW), PLACE, Found(False, 12), tmp_path / "file", lambda size: None)
    assert (tmp_path / "file").read_bytes() == NEW
