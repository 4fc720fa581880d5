"""The code that goes to a job: tracked and declared files, the same bytes each time, no secrets, not too large."""

import io
import os
import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest
from hydra_plugins.pai_launcher._code import left_out, pack, packed

from nlu.config.errors import UserError

PROGRAMS = ("nlu_pai_claim.py", "nlu_pai_entry.py", "nlu_pai_last.py")


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
        assert sorted(opened.namelist()) == [
            "nlu/train.py",
            "nlu_pai_claim.py",
            "nlu_pai_entry.py",
            "nlu_pai_last.py",
            "数据.csv",
        ]
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
        assert sorted(opened.getnames()) == [
            "nlu/train.py",
            "nlu_pai_claim.py",
            "nlu_pai_entry.py",
            "nlu_pai_last.py",
            "数据.csv",
        ]


def test_declared_folders_are_packed_too(project):
    with zipfile.ZipFile(io.BytesIO(pack(project, ["data"], limit_mb=1).content)) as opened:
        assert "data/rows.csv" in opened.namelist()


def test_a_project_with_an_installed_nlu_is_packed_with_it(tmp_path):
    top = tmp_path / "mine"
    top.mkdir()
    git(top, "init", "-q")
    (top / "mypkg.py").write_text("")
    git(top, "add", ".")
    with zipfile.ZipFile(io.BytesIO(pack(top, limit_mb=20).content)) as opened:
        assert {"mypkg.py", "nlu/train.py", "nlu_pai_claim.py"} <= set(opened.namelist())
        assert not [name for name in opened.namelist() if name.endswith(".pyc")]


@pytest.mark.parametrize(
    ("include", "said"),
    [
        (["api_key.txt"], r"include holds api_key\.txt, which by its name holds secrets"),
        (["../else"], r"include holds \.\./else, which lies outside"),
        (["data/none"], r"include holds data/none, which does not exist"),
    ],
)
def test_folders_that_cannot_be_packed_are_refused(project, include, said):
    with pytest.raises(UserError, match=said):
        pack(project, include, limit_mb=1)


def test_too_large_an_archive_names_its_largest_files(project):
    (project / "weights.bin").write_bytes(os.urandom(300_000))
    git(project, "add", "weights.bin")
    with pytest.raises(UserError, match=r"has 0\.3 MB, more than .*code_limit_mb=0\.1; .*weights\.bin \(0\.3 MB\)"):
        pack(project, limit_mb=0.1)


def test_packing_outside_of_a_checkout_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"is not a checkout of git .*; start in the folder of your project"):
        pack(tmp_path, limit_mb=1)


def names_in(archive: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(archive)) as opened:
        return {name: opened.read(name) for name in opened.namelist()}


def test_files_of_submodules_are_packed_and_missing_submodules_are_listed(project, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    git(other, "init", "-q")
    (other / "model.py").write_text("shared = 1\n")
    git(other, "add", ".")
    git(other, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "a")
    for name in ("shared", "empty"):
        git(project, "-c", "protocol.file.allow=always", "submodule", "add", "-q", str(other), name)
    git(project, "submodule", "deinit", "-f", "empty")
    assert names_in(pack(project, limit_mb=1).content)["shared/model.py"] == b"shared = 1\n"
    assert [text for text in left_out(project) if "submodules that" in text] == [
        "jobs will not find empty, submodules that are not checked out: git submodule update --init"
    ]


def test_a_link_is_packed_as_its_target_and_one_that_leads_elsewhere_is_listed(project):
    (project / "parts/inner").mkdir(parents=True)
    (project / "parts/inner/layer.py").write_text("layer")
    (project / "secrets").mkdir()
    (project / "secrets/prod.txt").write_text("geheim")
    links = {"one.py": "parts/inner/layer.py", "folder": "parts", "up": ".", "nowhere": "none"}
    for link, target in {**links, "hidden.py": "secrets/prod.txt"}.items():
        os.symlink(target, project / link)
    git(project, "add", ".")
    found = names_in(pack(project, limit_mb=1).content)
    assert found["one.py"] == found["folder/inner/layer.py"] == found["parts/inner/layer.py"] == b"layer"
    assert b"geheim" not in b"".join(found.values()) and not [name for name in found if name.startswith("up/")]
    (told,) = [text for text in left_out(project) if "links" in text]
    assert "jobs will not find link, nowhere, up, links that lead out of" in told


def test_files_in_a_folder_named_like_a_secret_stay_here_and_are_listed(project):
    (project / "Secrets").mkdir()
    (project / "Secrets/prod.txt").write_text("geheim")
    for name in ("odps_config.ini", ".ossutilconfig"):
        (project / name).write_text("access_key=geheim")
    git(project, "add", "-f", ".")
    assert b"geheim" not in b"".join(names_in(pack(project, limit_mb=1).content).values())
    (told,) = [text for text in left_out(project) if "secrets" in text]
    for name in ("Secrets/prod.txt", "odps_config.ini", ".ossutilconfig", "api_key.txt"):
        assert name in told


def test_untracked_modules_are_listed_once_unless_they_are_declared(project, capfd, monkeypatch):
    (project / "nlu/mine.py").write_text("")
    (project / "conf").mkdir()
    (project / "conf/mine.yaml").write_text("")
    (project / "notes.txt").write_text("")
    (project / "built.py").write_text("")
    (project / ".gitignore").write_text("built.py\n")
    monkeypatch.chdir(project)
    packed((), 1.0, False)
    packed((), 1.0, False)
    said = [line for line in capfd.readouterr().err.splitlines() if "does not track" in line]
    assert said == [
        "nlu: warning: jobs will not find conf/mine.yaml, nlu/mine.py, which git does not track: git add them, or name "
        "them in hydra.launcher.include"
    ]
    assert not [text for text in left_out(project, ["nlu/mine.py", "conf"]) if "does not track" in text]
