"""Compressed files are unpacked once, and messages go on naming them."""

import bz2
import gzip
import io
import lzma
import tarfile
import zipfile
from contextlib import suppress

import pyarrow as pa
import pytest

from nlu.config.errors import DataError
from nlu.config.sentences import with_origins
from nlu.storage.archives import unpack, unpacked

CONTENT = "one\nzwei\n三\n".encode() * 1000


def zipped(path, files):
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)


def write(path):
    half = len(CONTENT) // 2
    # Tools that work in parallel write several parts, one after another.
    parts = CONTENT[:half], CONTENT[half:]
    if path.suffix.lower() == ".zip":
        zipped(path, {"folder/": b"", "folder/rows.csv": CONTENT, "__MACOSX/._rows.csv": b"x"})
    elif path.suffix == ".zst":
        codec = pa.Codec("zstd")
        path.write_bytes(b"".join(codec.compress(part, asbytes=True) for part in parts))
    else:
        compress = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}[path.suffix.lower()]
        path.write_bytes(b"".join(map(compress, parts)))
    return path


@pytest.mark.parametrize("name", ["a.csv.gz", "a.csv.bz2", "a.csv.xz", "a.csv.zst", "a.csv.zip", "a.CSV.GZ"])
def test_a_compressed_file_is_its_content_and_is_unpacked_once(tmp_path, cache, name):
    path = write(tmp_path / name)
    copy = unpacked(path)
    assert copy.read_bytes() == CONTENT and copy.suffix.lower() == ".csv"
    before = copy.stat().st_mtime_ns
    assert unpacked(path) == copy and copy.stat().st_mtime_ns == before
    assert with_origins(f"{copy}:3: wrong") == f"{path}:3: wrong"
    plain = tmp_path / "a.csv"
    assert unpacked(plain) == plain


@pytest.mark.parametrize("name", ["a.gz", "a.bz2", "a.xz", "a.zst", "a.zip"])
@pytest.mark.parametrize("is_cut", [False, True], ids=["other content", "cut"])
def test_a_damaged_file_is_an_error_that_leaves_nothing(tmp_path, cache, cached_files, name, is_cut):
    path = tmp_path / name
    path.write_bytes(write(path).read_bytes()[:-9] if is_cut else b"no such format")
    with pytest.raises(DataError, match=rf"{name} cannot be unpacked \(.+\)"):
        unpacked(path)
    assert [file for file in cached_files() if "digests" not in str(file)] == []


def test_an_archive_of_several_files_is_refused_with_their_number(tmp_path, cache):
    zipped(tmp_path / "a.zip", {"a.csv": CONTENT, "b.csv": CONTENT})
    with pytest.raises(DataError, match=r"a\.zip holds 2 files, not one; unpack it"):
        unpacked(tmp_path / "a.zip")


def tarred(path, files):
    with tarfile.open(path, "w:gz") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))


@pytest.mark.parametrize(("make", "name"), [(zipped, "a.zip"), (tarred, "a.tar.gz")])
def test_an_archive_is_unpacked_within_its_folder_or_refused(make, name, tmp_path):
    make(tmp_path / name, {"./a/x": b"x", "b": CONTENT})
    unpack(tmp_path / name, tmp_path / "out", "weights")
    assert (tmp_path / "out/a/x").read_bytes() == b"x" and (tmp_path / "out/b").read_bytes() == CONTENT
    (tmp_path / name).write_bytes((tmp_path / name).read_bytes()[:100])
    with pytest.raises(DataError, match="weights cannot be unpacked"):
        unpack(tmp_path / name, tmp_path / "cut", "weights")
    make(tmp_path / name, {"deep/../../evil.txt": b"evil"})
    with suppress(DataError):
        unpack(tmp_path / name, tmp_path / "inner" / "out", "weights")
    assert not [path for path in tmp_path.rglob("evil.txt") if tmp_path / "inner" / "out" not in path.parents]


def test_a_link_out_of_an_archive_is_refused(tmp_path):
    with tarfile.open(tmp_path / "a.tar.gz", "w:gz") as archive:
        link = tarfile.TarInfo("passwords")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
    with pytest.raises(DataError, match="weights cannot be unpacked"):
        unpack(tmp_path / "a.tar.gz", tmp_path / "out", "weights")
