"""The code that goes to a job: tracked and declared files, the same bytes each time, no secrets, not too large."""

import io
import os
import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest

from nlu.config.errors import UserError
from nlu.launching.pai.archive import pack


@pytest.fixture
def project(tmp_path: Path) -> Path:
    top = tmp_path / "project"
    (top / "nlu").mkdir(parents=True)
    (top / "nlu/train.py").write_text("print('here')\n")
    (top / "数据.csv").write_text("text,label\n")
    (top / "api_key.txt").write_text("tracked by mistake")
    (top / "data").mkdir()
    (top / "data/rows.csv").write_text("not tracked")
    (top / "gone.py").write_text("")
    os.symlink("/etc/passwd", top / "link")
    git(top, "init", "-q")
    git(top, "add", "nlu", "数据.csv", "api_key.txt", "gone.py", "link")
    (top / "gone.py").unlink()
    (top / "nlu/train.py").write_text("print('changed since')\n")
    return top


def git(top: Path, *arguments: str) -> None:
    subprocess.run(["git", "-C", str(top), *arguments], check=True, capture_output=True)


def test_tracked_files_go_as_they_are_now_without_secrets_and_links(project):
    archive = pack(project, limit_mb=1)
    with zipfile.ZipFile(io.BytesIO(archive.content)) as opened:
        assert sorted(opened.namelist()) == ["nlu/train.py", "nlu_pai_entry.py", "数据.csv"]
        assert opened.read("nlu/train.py") == b"print('changed since')\n"


def test_the_same_files_give_the_same_name_at_another_time_and_place(project, tmp_path):
    first = pack(project, limit_mb=1)
    other = tmp_path / "elsewhere"
    project.rename(other)
    os.utime(other / "nlu/train.py", (0, 0))
    assert pack(other, limit_mb=1).digest == first.digest
    (other / "nlu/train.py").write_text("print('other')\n")
    assert pack(other, limit_mb=1).digest != first.digest


def test_a_tar_holds_the_same_and_is_the_same_each_time(project):
    first, second = (pack(project, limit_mb=1, as_tar=True) for _ in range(2))
    assert first.content == second.content and first.suffix == ".tar.gz"
    with tarfile.open(fileobj=io.BytesIO(first.content)) as opened:
        assert sorted(opened.getnames()) == ["nlu/train.py", "nlu_pai_entry.py", "数据.csv"]


def test_what_is_declared_goes_along(project):
    with zipfile.ZipFile(io.BytesIO(pack(project, ["data"], limit_mb=1).content)) as opened:
        assert "data/rows.csv" in opened.namelist()


def test_a_project_with_an_installed_nlu_takes_it_along(tmp_path):
    top = tmp_path / "mine"
    top.mkdir()
    git(top, "init", "-q")
    (top / "mypkg.py").write_text("")
    git(top, "add", ".")
    with zipfile.ZipFile(io.BytesIO(pack(top, limit_mb=20).content)) as opened:
        assert {"mypkg.py", "nlu/train.py", "nlu/launching/pai/fetch.py"} <= set(opened.namelist())
        assert not [name for name in opened.namelist() if name.endswith(".pyc")]


@pytest.mark.parametrize(
    ("include", "said"),
    [
        (["api_key.txt"], r"include holds api_key\.txt, which by its name holds secrets"),
        (["../else"], r"include holds \.\./else, which lies outside"),
        (["data/none"], r"include holds data/none, which does not exist"),
    ],
)
def test_what_cannot_go_is_refused(project, include, said):
    with pytest.raises(UserError, match=said):
        pack(project, include, limit_mb=1)


def test_too_large_an_archive_names_its_largest_files(project):
    (project / "weights.bin").write_bytes(os.urandom(300_000))
    git(project, "add", "weights.bin")
    with pytest.raises(UserError, match=r"has 0\.3 MB, more than .*code_limit_mb=0\.1; .*weights\.bin \(0\.3 MB\)"):
        pack(project, limit_mb=0.1)


def test_outside_of_a_checkout_nobody_knows_what_is_code(tmp_path):
    with pytest.raises(UserError, match=r"is no checkout of git .*; start from your project's folder"):
        pack(tmp_path, limit_mb=1)
