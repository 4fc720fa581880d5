"""Unpacking of archives, honest and malicious ones."""

import io
import stat
import tarfile
import zipfile
from pathlib import Path

import pytest

from nlu.config.errors import DataError
from nlu.storage.packages import archive_stem, extract, unpack


def make_zip(path: Path, files: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


def make_tar(path: Path, files: dict[str, bytes], links: dict[str, str] | None = None) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
        for name, target in (links or {}).items():
            info = tarfile.TarInfo(name)
            info.type, info.linkname = tarfile.SYMTYPE, target
            archive.addfile(info)
    return path


MAKERS = [(make_zip, "a.zip"), (make_tar, "a.tar.gz")]


def tree(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(("make", "name"), MAKERS)
def test_one_top_level_folder_is_returned_itself(make, name, tmp_path):
    archive = make(tmp_path / name, {"model/vocab.txt": b"v", "model/deep/x": b"x", "__MACOSX/model/._x": b"junk"})
    path = unpack(archive, tmp_path / "out", "weights")
    assert path == tmp_path / "out" / "model" and tree(path) == {"vocab.txt": b"v", "deep/x": b"x"}


@pytest.mark.parametrize(("make", "name"), MAKERS)
def test_several_top_level_entries_stay_in_the_folder(make, name, tmp_path):
    archive = make(tmp_path / name, {"model/vocab.txt": b"v", "README": b"r"})
    assert tree(unpack(archive, tmp_path / "out", "weights")) == {"model/vocab.txt": b"v", "README": b"r"}


@pytest.mark.parametrize(("make", "name"), MAKERS)
def test_only_the_member_is_extracted_be_it_a_file_or_a_folder(make, name, tmp_path):
    archive = make(tmp_path / name, {"p/data/a.txt": b"a", "p/data/sub/b.txt": b"b", "p/data2/c.txt": b"c"})
    file = extract(archive, "data/a.txt", tmp_path / "1", "data", skip_parts=1)
    folder = extract(archive, "p/data", tmp_path / "2", "data")
    assert tree(tmp_path / "1") == {"a.txt": b"a"} and file == tmp_path / "1" / "a.txt"
    assert tree(folder) == {"a.txt": b"a", "sub/b.txt": b"b"} and folder == tmp_path / "2" / "data"


def test_a_member_that_is_missing_is_reported_with_the_nearest(tmp_path):
    archive = make_zip(tmp_path / "a.zip", {"data/train.txt": b"a", "setup.py": b""})
    with pytest.raises(DataError, match=r"no 'data/trian\.txt'.*data/train\.txt"):
        extract(archive, "data/trian.txt", tmp_path / "out", "data")


@pytest.mark.parametrize(("make", "name"), MAKERS)
@pytest.mark.parametrize("evil", ["../evil.txt", "data/../../evil.txt", "/evil.txt"])
def test_a_path_that_leaves_the_folder_is_refused(make, name, evil, tmp_path):
    archive = make(tmp_path / name, {evil: b"evil"})
    with pytest.raises(DataError, match="outside its folder"):
        unpack(archive, tmp_path / "out", "data")
    assert not list(tmp_path.rglob("evil.txt"))


def test_a_folder_member_with_a_path_that_leaves_it_is_refused(tmp_path):
    archive = make_zip(tmp_path / "a.zip", {"data/../evil.txt": b"evil"})
    with pytest.raises(DataError, match="outside its folder"):
        extract(archive, "data", tmp_path / "out", "data")
    assert not list(tmp_path.rglob("evil.txt"))


def test_links_are_refused(tmp_path):
    tar = make_tar(tmp_path / "a.tar.gz", {}, links={"data/passwords": "/etc/passwd"})
    link = zipfile.ZipInfo("data/passwords")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr(link, "/etc/passwd")
    for archive in (tar, tmp_path / "a.zip"):
        with pytest.raises(DataError, match="link"):
            unpack(archive, tmp_path / "out", "data")
        with pytest.raises(DataError, match="link"):
            extract(archive, "data/passwords", tmp_path / "out", "data")
    assert tree(tmp_path / "out") == {}


@pytest.mark.parametrize(("make", "name"), MAKERS)
def test_a_damaged_archive_is_a_data_error(make, name, tmp_path):
    archive = make(tmp_path / name, {"a.txt": bytes(range(256)) * 100})
    archive.write_bytes(archive.read_bytes()[:200])
    with pytest.raises(DataError, match="damaged"):
        unpack(archive, tmp_path / "out", "data")


def test_a_name_that_is_both_file_and_folder_is_a_data_error(tmp_path):
    archive = make_zip(tmp_path / "a.zip", {"a": b"file", "a/b": b"below"})
    with pytest.raises(DataError, match="damaged"):
        unpack(archive, tmp_path / "out", "data")


@pytest.mark.parametrize(("make", "name"), MAKERS)
def test_folders_that_an_archive_does_not_list_are_made_and_a_dot_in_front_is_none(make, name, tmp_path):
    archive = make(tmp_path / name, {"a/b/c/x": b"x", "a/y": b"y"})
    assert tree(unpack(archive, tmp_path / "to/be/made", "data")) == {"b/c/x": b"x", "y": b"y"}
    assert extract(archive, "a/b", tmp_path / "also/made", "data") == tmp_path / "also/made/b"
    assert tree(tmp_path / "also/made") == {"b/c/x": b"x"}
    dotted = make_tar(tmp_path / "dotted.tar.gz", {"./a/x": b"x", "./b": b"b"})
    assert extract(dotted, "b", tmp_path / "dotted", "data").read_bytes() == b"b"


@pytest.mark.parametrize(
    ("name", "stem"),
    [("a.zip", "a"), ("A.TAR.GZ", "A"), ("a.tgz", "a"), ("a.tar", None), ("zip", None), ("a.zip.txt", None)],
)
def test_an_archive_is_known_by_its_name_in_any_case(name, stem):
    assert archive_stem(name) == stem
