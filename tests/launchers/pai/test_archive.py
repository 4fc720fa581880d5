"""The code that goes to a job: tracked files, the same bytes each time, no secrets, not too large."""

import io
import os
import tarfile
from pathlib import Path

import pytest
from hydra_plugins.pai_launcher import _code
from hydra_plugins.pai_launcher._code import packed

from nlu.config.errors import UserError
from tests.launchers.pai.projects import git


@pytest.fixture
def project(tmp_path: Path, monkeypatch) -> Path:
    top = tmp_path / "project"
    (top / "nlu").mkdir(parents=True)
    (top / "nlu/train.py").write_text("print('here')\n")
    (top / "数据.csv").write_text("text,label\n")
    (top / "api_key.txt").write_text("geheim")
    (top / "gone.py").write_text("")
    os.symlink("/etc/passwd", top / "link")
    git(top, "init", "-q")
    git(top, "add", ".")
    (top / "gone.py").unlink()
    (top / "nlu/train.py").write_text("print('changed since')\n")
    monkeypatch.chdir(top)
    return top


def contents() -> dict[str, bytes]:
    """What a job finds, by name."""
    packed.cache_clear()
    with tarfile.open(fileobj=io.BytesIO(packed().content)) as opened:
        return {each.name: opened.extractfile(each).read() for each in opened}  # type: ignore[union-attr]


def test_tracked_files_go_as_they_are_now_without_secrets_and_links_that_lead_out(project):
    found = contents()
    assert sorted(found) == ["nlu/train.py", "nlu_pai_entry.py", "数据.csv"]
    assert found["nlu/train.py"] == b"print('changed since')\n"


def test_the_same_files_give_the_same_name_at_another_time_and_place(project, tmp_path, monkeypatch):
    contents()
    first, other = packed().digest, tmp_path / "elsewhere"
    project.rename(other)
    monkeypatch.chdir(other)
    os.utime(other / "nlu/train.py", (0, 0))
    contents()
    assert packed().digest == first
    (other / "nlu/train.py").write_text("print('other')\n")
    contents()
    assert packed().digest != first


def test_a_project_with_an_installed_nlu_is_packed_with_it(tmp_path, monkeypatch):
    (tmp_path / "mypkg.py").write_text("")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    monkeypatch.chdir(tmp_path)
    found = contents()
    assert {"mypkg.py", "nlu/commands/train.py", "nlu_pai_entry.py"} <= set(found)
    assert any(name.endswith("train.yaml") for name in found) and not any(name.endswith(".pyc") for name in found)


def test_too_large_an_archive_names_its_largest_file(project, monkeypatch):
    (project / "weights.bin").write_bytes(os.urandom(300_000))
    git(project, "add", "weights.bin")
    monkeypatch.setattr(_code, "LIMIT_MB", 0.1)
    with pytest.raises(UserError, match=r"has 0\.3 MB, more than 0\.1; the largest file is weights\.bin \(0\.3 MB\)"):
        contents()


def test_packing_outside_of_a_checkout_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"is not a checkout of git .*; start in the folder of your project"):
        contents()


def test_files_of_submodules_and_targets_of_links_are_packed(project, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    git(other, "init", "-q")
    (other / "model.py").write_text("shared = 1\n")
    git(other, "add", ".")
    git(other, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "a")
    git(project, "-c", "protocol.file.allow=always", "submodule", "add", "-q", str(other), "shared")
    (project / "parts/inner").mkdir(parents=True)
    (project / "parts/inner/layer.py").write_text("layer")
    (project / "secrets").mkdir()
    (project / "secrets/prod.txt").write_text("geheim")
    (project / "odps_config.ini").write_text("access_key=geheim")
    links = {"one.py": "parts/inner/layer.py", "folder": "parts", "up": ".", "nowhere": "none"}
    for link, target in {**links, "hidden.py": "secrets/prod.txt"}.items():
        os.symlink(target, project / link)
    git(project, "add", "-f", ".")
    found = contents()
    assert found["shared/model.py"] == b"shared = 1\n"
    assert found["one.py"] == found["parts/inner/layer.py"] == b"layer"
    assert b"geheim" not in b"".join(found.values())
    assert not [name for name in found if name.startswith(("up/", "folder/"))]


def test_untracked_modules_are_listed_once(project, capfd):
    (project / "nlu/mine.py").write_text("")
    (project / "notes.txt").write_text("")
    (project / "built.py").write_text("")
    (project / ".gitignore").write_text("built.py\n")
    contents()
    packed()
    said = [line for line in capfd.readouterr().err.splitlines() if "does not track" in line]
    assert said == ["nlu: warning: jobs will not find nlu/mine.py, which git does not track: git add what they need"]
