"""What a transfer leaves out, in which order it copies and removes, and what it refuses."""

import hashlib
import os
import threading
from pathlib import Path
from typing import Any

import boto3
import pytest

from nlu.config.errors import DataError, UserError
from nlu.storage import transfer
from nlu.storage.backend import Disk, FileInfo
from nlu.storage.objects import BucketBackend, backend_of, writable_backend_of
from nlu.storage.outputs import output_file, output_folder, require_free
from nlu.storage.places import Place, parse_place
from nlu.storage.settle import MARKER
from nlu.storage.transfer import (
    Item,
    TransferPlan,
    copy_file,
    is_same,
    plan_copy,
    plan_move,
    plan_remove,
    remove_all,
    run_copies,
    run_move,
    run_remove,
)
from tests.buckets import Server
from tests.folders import contents, write

FILES = {"a": b"first", "z/COMPLETE": b"", "COMPLETE": b"", "z/b": b"second"}


@pytest.fixture
def url(s3: Server, monkeypatch: pytest.MonkeyPatch) -> str:
    return s3.bucket(monkeypatch)


def objects(url: str) -> dict[str, bytes]:
    bucket = boto3.resource("s3").Bucket(url.removeprefix("s3://").partition("/")[0])
    return {entry.key: entry.get()["Body"].read() for entry in bucket.objects.all()}


def put(url: str, files: dict[str, bytes]) -> None:
    bucket = boto3.resource("s3").Bucket(url.removeprefix("s3://"))
    for key, content in files.items():
        bucket.put_object(Key=key, Body=content)


LOCAL, OBJECT, OTHER = Place("", "", "/absent"), Place("s3", "b", "k"), Place("oss", "b", "k")
ETAG, TWO = "a" * 32, "b" * 32


@pytest.mark.parametrize(
    ("source", "found", "target", "there", "same"),
    [
        (LOCAL, FileInfo(False, 3), OBJECT, None, False),
        (LOCAL, FileInfo(False, None, modified_s=5.0), LOCAL, FileInfo(False, None, modified_s=5.0), False),
        (LOCAL, FileInfo(False, 3, None, 5.0), LOCAL, FileInfo(False, 4, None, 5.0), False),
        (LOCAL, FileInfo(False, 3, None, 5.0), LOCAL, FileInfo(False, 3, None, 5.0), True),
        (LOCAL, FileInfo(False, 3, None, 5.0), LOCAL, FileInfo(False, 3, None, 5.0 + 9e-6), True),
        (LOCAL, FileInfo(False, 3, None, 5.0), LOCAL, FileInfo(False, 3, None, 5.0 - 9e-6), True),
        (LOCAL, FileInfo(False, 3, None, 5.0), LOCAL, FileInfo(False, 3, None, 5.0 + 2e-5), False),
        (LOCAL, FileInfo(False, 3, None, 5.0), LOCAL, FileInfo(False, 3, None, 5.0 - 2e-5), False),
        (LOCAL, FileInfo(False, 3, None, 5.0), LOCAL, FileInfo(False, 3), False),
        (LOCAL, FileInfo(False, 3), LOCAL, FileInfo(False, 3, None, 5.0), False),
        (OBJECT, FileInfo(False, 3, ETAG, 5.0), OTHER, FileInfo(False, 3, ETAG.upper(), 1.0), True),
        (OBJECT, FileInfo(False, 3, ETAG, 5.0), OTHER, FileInfo(False, 3, TWO, 9.0), False),
        (OBJECT, FileInfo(False, 3, ETAG, 5.0), OTHER, FileInfo(False, 3, None, 5.0), True),
        (OBJECT, FileInfo(False, 3, None, 5.0), OTHER, FileInfo(False, 3, TWO, 6.0), True),
        (OBJECT, FileInfo(False, 3, None, 5.0), OTHER, FileInfo(False, 3, TWO, 4.0), False),
        (OBJECT, FileInfo(False, 3, "no-digest", 5.0), LOCAL, FileInfo(False, 3, None, 5.0), True),
        (LOCAL, FileInfo(False, 3, None, 5.0), OBJECT, FileInfo(False, 3, "no-digest", 6.0), True),
    ],
)  # fmt: skip
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


def test_files_go_from_store_to_store_and_marks_come_last(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "here", FILES)
    order, lock = [], threading.Lock()

    def noting(item: Item, advance: Any) -> None:
        copy_file(item, advance)
        with lock:
            order.append(item.target.name)

    monkeypatch.setattr(transfer, "copy_file", noting)
    told: list[int] = []
    here, there = parse_place(str(tmp_path / "here")), parse_place(f"{url}/there")
    plan = plan_copy(here, there, recursive=True)
    assert [item.target.name for item in plan.copied][2:] == [MARKER, MARKER] and plan.size == 11
    run_copies(plan.copied, "there")
    assert order[2:] == [MARKER, MARKER] and objects(url) == {f"there/{name}": body for name, body in FILES.items()}
    second = parse_place(f"{url}/second")
    run_copies(plan_copy(there, second, recursive=True).copied, "second")
    assert {key.removeprefix("second/"): body for key, body in objects(url).items() if key[:2] == "se"} == FILES
    with monkeypatch.context() as large:
        large.setattr(transfer, "WHOLE_BYTES", 6)
        order.clear()
        back = parse_place(str(tmp_path / "back"))
        run_copies(plan_copy(second, back, recursive=True).copied, "back")
    assert contents(tmp_path / "back") == FILES and order[2:] == [MARKER, MARKER]
    assert plan_copy(second, back, recursive=True).copied == []
    copy_file(plan_copy(parse_place(f"{url}/there/a"), parse_place(f"{url}/c"), recursive=False).copied[0], told.append)
    assert objects(url)["c"] == b"first" and told == [5]


def test_a_file_that_differs_from_its_record_is_removed(url: str, tmp_path: Path) -> None:
    put(url, {"file": b"content"})
    source, target = parse_place(f"{url}/file"), parse_place(str(tmp_path / "file"))
    found = backend_of(source).stat(source)
    assert found is not None
    digest = hashlib.sha256(b"content").hexdigest()
    with pytest.raises(DataError, match=f"file is damaged: its sha256 is {digest}, not {'0' * 64}; restore"):
        copy_file(Item(source, found, target, None, "0" * 64))
    assert list(tmp_path.iterdir()) == []
    copy_file(Item(source, found, target, None, digest))
    assert (tmp_path / "file").read_bytes() == b"content"


def test_removing_a_folder_starts_with_its_mark_and_ends_with_empty_folders(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "here", FILES)
    (tmp_path / "here/empty").mkdir()
    put(url, {**{f"there/{name}": body for name, body in FILES.items()}, "there/marked/": b"", "therefore": b""})
    for store, where in ((Disk, str(tmp_path / "here")), (BucketBackend, f"{url}/there")):
        gone: list[str] = []
        remove, place = store.remove, parse_place(where)

        def noting(self: Any, file: Place, remove: Any = remove, gone: list[str] = gone) -> None:
            remove(self, file)
            gone.append(file.name)

        with monkeypatch.context() as patched:
            patched.setattr(store, "remove", noting)
            files = plan_remove(place, recursive=True)
            assert [file.name for file in files[:2]] == [MARKER, MARKER] and len(files) == 4
            remove_all(place, files[::-1])
        assert gone[:2] == [MARKER, MARKER] and sorted(gone[2:]) == ["a", "b"]
    assert list(tmp_path.iterdir()) == [] and objects(url) == {"therefore": b""}


def test_a_move_removes_nothing_where_one_of_its_copies_is_not_as_it_was_written(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = write(tmp_path / "here", FILES), parse_place(f"{url}/there")
    plan = plan_move(parse_place(str(here)), there, recursive=True)
    look = BucketBackend.stat
    for found in (None, FileInfo(False, 4)):
        with monkeypatch.context() as patched:
            patched.setattr(
                BucketBackend,
                "stat",
                lambda self, place, found=found: found if place.name == "a" else look(self, place),
            )
            with pytest.raises(DataError, match="there/a is not as it was written; nothing was removed from .*here/a$"):
                run_move(parse_place(str(here)), plan, "there")
        assert contents(here) == FILES
    run_move(parse_place(str(here)), plan, "there")
    assert not here.exists() and objects(url) == {f"there/{name}": body for name, body in FILES.items()}
    run_remove(there, plan_remove(there, recursive=True))
    assert objects(url) == {}


def test_a_copy_onto_itself_or_onto_another_kind_is_refused(url: str, tmp_path: Path) -> None:
    write(tmp_path, {"folder/a": b"", "file": b"", "into/file/x": b"", "inner/folder": b""})
    put(url, {"folder/a": b"", "file": b"", "folders/b": b""})
    local = str(tmp_path)
    for source, target, said in [
        (f"{local}/file", f"{local}/into", "into/file is a folder where a file is to be written"),
        (f"{local}/folder", f"{local}/file", "file is a file, but a folder is copied"),
        (f"{local}/folder", f"{local}/inner/", "inner/folder is a file, but a folder is copied"),
        (f"{local}/folder", f"{local}/folder/deeper", "is .*folder, or in it"),
        (f"{url}/folder", f"{url}/folder", "is .*folder, or in it"),
    ]:
        with pytest.raises(UserError, match=said):
            plan_copy(parse_place(source), parse_place(target), recursive=True)
    with pytest.raises(UserError, match="is a whole bucket, which is never overwritten by a folder"):
        plan_copy(parse_place(f"{url}/folder"), parse_place(url), recursive=True, extra=True)
    for source, target in ((f"{url}/folder", f"{url}/folders"), (f"{url}/folder", f"{local}/folder/deeper")):
        assert len(plan_copy(parse_place(source), parse_place(target), recursive=True).copied) == 1
    with pytest.raises(UserError, match="https://host/x is read-only; copy it instead"):
        plan_move(parse_place("https://host/x"), parse_place(local), recursive=False)
    with pytest.raises(UserError, match=r"file is s3://.*file itself"):
        plan_move(parse_place(f"{url}/file"), parse_place(f"{url}/file"), recursive=False)
    with pytest.raises(UserError, match=r"folder is a folder; give --recursive to remove"):
        plan_remove(parse_place(f"{url}/folder"), recursive=False)
    assert plan_remove(parse_place(f"{url}/file"), recursive=False) == [parse_place(f"{url}/file")]
    with pytest.raises(UserError, match="is read-only; write to a local path"):
        writable_backend_of(parse_place("https://host/x"))


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


def test_an_output_in_a_store_is_marked_first_and_completed_by_its_last_file(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(url, {"out/.begun": b"", "out/old": b"of an earlier try", "out/a": b"changed"})
    done: list[str] = []
    for name in ("put", "remove"):
        verb = getattr(BucketBackend, name)

        def noting(self: BucketBackend, *arguments: Any, name: str = name, verb: Any = verb) -> None:
            verb(self, *arguments)
            (place,) = (one for one in arguments if isinstance(one, Place))
            done.append(f"{name} {place.name}")

        monkeypatch.setattr(BucketBackend, name, noting)
    with output_folder(f"{url}/out", "out", last="a.json") as folder:
        write(folder, {"a": b"a", "a.json": b"{}", "z": b"z"})
    assert done[:2] == ["put .begun", "remove old"] and sorted(done[2:4]) == ["put a", "put z"]
    assert done[4:] == ["put a.json", "remove .begun"]
    assert objects(url) == {"out/a": b"a", "out/a.json": b"{}", "out/z": b"z"}
    with output_file(f"{url}/deep/file", "out") as path:
        path.write_bytes(b"content")
    assert objects(url)["deep/file"] == b"content"
    for out, said in [
        (f"{url}/out", "out is .*/out, which exists; nothing was written"),
        (f"{url}/out/a", "out is .*/out/a, which exists; nothing was written"),
        (url, "out is .*, a whole bucket; name a folder in it"),
        (f"{url}/new#sha256={'0' * 64}", "a pin is for reading"),
        ("https://host/new", "which is read-only"),
    ]:
        with pytest.raises(UserError, match=said):
            require_free(out, "out")
    with pytest.raises(UserError, match="a whole bucket"), output_file(url, "out"):
        pass
    monkeypatch.delenv("OSS_ENDPOINT", raising=False)
    for asked in (lambda: require_free("oss://b", "out"), lambda: output_file("oss://b", "out").__enter__()):
        with pytest.raises(UserError, match="oss://b, a whole bucket"):
            asked()
    before = objects(url)
    with pytest.raises(KeyError), output_folder(f"{url}/failed", "out", last="x"):
        raise KeyError
    with pytest.raises(KeyError), output_file(f"{url}/failed", "out") as path:
        path.touch()
        raise KeyError
    assert objects(url) == before


def test_a_local_output_appears_at_once_with_the_rights_of_new_files(tmp_path: Path) -> None:
    with pytest.raises(KeyError), output_folder(tmp_path / "new/deep", "out", last="x") as folder:
        (folder / "x").touch()
        raise KeyError
    assert list(tmp_path.iterdir()) == []
    mask = os.umask(0o027)
    try:
        with output_folder(tmp_path / "new/deep", "out", last="x") as folder:
            (folder / "x").touch()
            assert not (tmp_path / "new").exists()
    finally:
        os.umask(mask)
    assert os.listdir(tmp_path / "new/deep") == ["x"] and os.listdir(tmp_path) == ["new"]
    assert (tmp_path / "new/deep").stat().st_mode & 0o777 == 0o750
    (tmp_path / "empty").mkdir()
    with output_folder(tmp_path / "empty", "out", last="x"):
        pass
    for out in (tmp_path / "new", tmp_path / "new/deep/x"):
        with pytest.raises(UserError, match="which exists; nothing was written"):
            require_free(out, "out")
    with pytest.raises(UserError, match="which exists; give another file"), output_file(tmp_path / "new/deep/x", "out"):
        pass
    with output_file(tmp_path / "file", "out") as path:
        assert path == tmp_path / "file"
