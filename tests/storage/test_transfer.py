"""What is copied from one place to another, in which order, and what counts as the same file."""

import hashlib
import threading
from pathlib import Path
from typing import Any

import pytest

from nlu.config.errors import UserError
from nlu.storage import access, transfer
from nlu.storage.access import FileInfo, files
from nlu.storage.locations import Place, parse_place
from nlu.storage.settle import MARKER
from nlu.storage.transfer import Item, TransferPlan, copy_file, is_same, plan_copy, plan_remove, remove_all, run_copies
from tests.folders import contents, write

FILES = {"a": b"first", "z/COMPLETE": b"", "COMPLETE": b"", "z/b": b"second"}
LOCAL, OBJECT, OTHER = Place("", "", "/absent"), Place("s3", "b", "k"), Place("oss", "b", "k")
ETAG, TWO = "a" * 32, "b" * 32


@pytest.mark.parametrize(
    ("source", "found", "target", "there", "same"),
    [
        (LOCAL, FileInfo(False, 3), OBJECT, None, False),
        (LOCAL, FileInfo(False, None, None, 5.0), LOCAL, FileInfo(False, None, None, 5.0), False),
        (LOCAL, FileInfo(False, 3, None, 5.0), LOCAL, FileInfo(False, 4, None, 5.0), False),
        (LOCAL, FileInfo(False, 3, None, 5.0), LOCAL, FileInfo(False, 3), False),
        (OBJECT, FileInfo(False, 3, ETAG, 5.0), OTHER, FileInfo(False, 3, ETAG.upper(), 1.0), True),
        (OBJECT, FileInfo(False, 3, ETAG, 5.0), OTHER, FileInfo(False, 3, TWO, 9.0), False),
        (OBJECT, FileInfo(False, 3, None, 5.0), OTHER, FileInfo(False, 3, TWO, 6.0), True),
        (OBJECT, FileInfo(False, 3, None, 5.0), OTHER, FileInfo(False, 3, TWO, 4.0), False),
        (OBJECT, FileInfo(False, 3, "no-digest", 5.0), LOCAL, FileInfo(False, 3, None, 5.0), True),
        (LOCAL, FileInfo(False, 3, None, 5.9), OBJECT, FileInfo(False, 3, "no-digest", 6.0), True),
        (LOCAL, FileInfo(False, 3, None, 5.9), OBJECT, FileInfo(False, 3, "no-digest", 5.0), False),
        (LOCAL, FileInfo(False, 3, None, 5.0), OBJECT, FileInfo(False, 3, "no-digest", 5.0), False),
    ],
)
def test_files_are_the_same_by_digest_or_by_size_and_time(
    source: Place, found: FileInfo, target: Place, there: FileInfo | None, same: bool
) -> None:
    assert is_same(Item(source, found, target, there)) is same


@pytest.mark.parametrize("content", [b"abc", b"abd"])
def test_a_local_file_is_read_where_an_object_tells_its_digest(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "file").write_bytes(content)
    local, etag = Place("", "", str(tmp_path / "file")), hashlib.md5(b"abc").hexdigest()
    for item in (
        Item(local, FileInfo(False, 3, None, 5.0), OBJECT, FileInfo(False, 3, etag, 9.0)),
        Item(OBJECT, FileInfo(False, 3, etag, 5.0), local, FileInfo(False, 3, None, 5.0)),
    ):
        assert is_same(item) is (content == b"abc")


def test_files_go_there_and_back_once_and_marks_come_last(
    top: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, order, lock = parse_place(str(write(tmp_path / "here", FILES))), list[str](), threading.Lock()

    def noting(item: Item, advance: Any) -> None:
        copy_file(item, advance)
        with lock:
            order.append(item.target.name)

    monkeypatch.setattr(transfer, "copy_file", noting)
    there, second, back = (parse_place(f"{top}{name}") for name in ("/there", "/second", "-back"))
    back = parse_place(str(tmp_path / "back"))
    for source, target in ((here, there), (there, second), (second, back)):
        order.clear()
        plan = plan_copy(source, target, recursive=True)
        assert plan.size == 11 and plan.same == []
        run_copies(plan.copied, "copies")
        assert list(files(target)) == sorted(FILES) and order[2:] == [MARKER, MARKER]
        again = plan_copy(source, target, recursive=True)
        assert again.copied == [] and len(again.same) == 4
    assert contents(tmp_path / "back") == FILES


def test_an_object_goes_through_this_machine_to_another_service(
    s3: Any, oss: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.storage.conftest import adopt

    adopt(oss, monkeypatch)
    source, target = parse_place(f"{s3.bucket(monkeypatch)}/x"), parse_place(f"oss://{oss.bucket}/of-s3")
    access.write(source, b"content")
    told: list[int] = []
    copy_file(plan_copy(source, target, recursive=False).copied[0], told.append)
    assert access.read_all(target) == b"content" and sum(told) == 7


def test_large_files_follow_one_another(top: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "WHOLE_BYTES", 6)
    here = parse_place(str(write(tmp_path / "here", FILES)))
    run_copies(plan_copy(here, parse_place(f"{top}/there"), recursive=True).copied, "there")
    assert list(files(parse_place(f"{top}/there"))) == sorted(FILES)


def test_removing_a_folder_starts_with_its_mark(top: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here, place = parse_place(str(write(tmp_path / "here", FILES))), parse_place(f"{top}/there")
    for target in (place, parse_place(f"{top}/therefore")):
        run_copies(plan_copy(here, target, recursive=True).copied, "there")
    gone, delete = list[str](), access.delete

    def noting(file: Place) -> None:
        delete(file)
        gone.append(file.name)

    monkeypatch.setattr(access, "delete", noting)
    remove_all(place, plan_remove(place, recursive=True))
    assert gone[:2] == [MARKER, MARKER] and sorted(gone[2:]) == ["a", "b"]
    assert access.stat(place) is None and len(files(parse_place(f"{top}/therefore"))) == 4


def test_a_copy_onto_itself_or_onto_another_kind_is_refused(top: str, tmp_path: Path) -> None:
    names = ("folder/a", "file", "into/file/x", "inner/folder")
    here = parse_place(str(write(tmp_path / "here", dict.fromkeys(names, b""))))
    run_copies(plan_copy(here, parse_place(top), recursive=True).copied, "top")
    for source, target, said in [
        ("file", "into", "into/file is a folder where a file is to be written"),
        ("folder", "file", "file is a file, but a folder is copied"),
        ("folder", "inner/", "inner/folder is a file, but a folder is copied"),
        ("folder", "folder/deeper", "is .*folder, or in it"),
        ("folder", "folder", "is .*folder, or in it"),
    ]:
        with pytest.raises(UserError, match=said):
            plan_copy(parse_place(f"{top}/{source}"), parse_place(f"{top}/{target}"), recursive=True)
    assert len(plan_copy(parse_place(f"{top}/folder"), parse_place(f"{top}/folders"), recursive=True).copied) == 1
    into, inner = parse_place(f"{top}/into"), parse_place(f"{top}/into/file")
    assert len(plan_copy(inner, into, recursive=True).copied) == 1
    with pytest.raises(UserError, match="into/file is in .*into, so --delete would remove it"):
        plan_copy(inner, into, recursive=True, extra=True)
    with pytest.raises(UserError, match=r"folder is a folder; give --recursive to remove"):
        plan_remove(parse_place(f"{top}/folder"), recursive=False)
    file = parse_place(f"{top}/file")
    assert plan_remove(file, recursive=False) == [file]


def test_a_copy_to_a_path_with_a_slash_keeps_the_folder_name_and_lists_extra_files(tmp_path: Path) -> None:
    write(tmp_path, {"here/a": b"", "there/here/b": b"", "there/a": b"", "there/c": b""})
    here, there = parse_place(f"{tmp_path}/here"), f"{tmp_path}/there"
    (into,) = plan_copy(here, parse_place(f"{there}/"), recursive=True).copied
    assert into.target.path == f"{there}/here/a" and into.there is None
    for slash in ("", "/"):
        plan = plan_copy(here, parse_place(f"{there}{slash}"), recursive=True, extra=True)
        assert [item.target.path for item in (*plan.copied, *plan.same)] == [f"{there}/a"]
        assert [place.path for place in plan.extra] == [f"{there}/c", f"{there}/here/b"]
    assert plan_copy(here, parse_place(there), recursive=True).extra == []
    unknown = Item(here, FileInfo(False), here, None)
    assert TransferPlan([unknown], [], []).size is None and TransferPlan([], [unknown], []).size == 0


def test_a_disk_that_refuses_is_told_with_a_remedy(s3: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = parse_place(f"{s3.bucket(monkeypatch)}/x")
    access.write(source, b"content")
    for target in ("/proc/none/x", "/proc/none", str(write(tmp_path, {"file": b""}) / "file/x")):
        found = access.stat(source)
        assert found is not None
        with pytest.raises(UserError, match="; correct that or name another place, and try again"):
            copy_file(Item(source, found, parse_place(target), None))
    assert transfer.PART_BYTES * 10_000 > 150e9, "S3 takes 10,000 parts"
