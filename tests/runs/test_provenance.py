"""Provenance is checked on real checkouts: a copy of the package in a repository made for the test."""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import nlu
from nlu.config.errors import DataError
from nlu.runs.provenance import write_overrides, write_provenance

PACKAGE = Path(nlu.__file__).parent
NEEDED = ("__init__.py", "config", "runs", "storage")


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
    return subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def checkout(tmp_path):
    folder = tmp_path / "checkout"
    (folder / "nlu").mkdir(parents=True)
    for name in NEEDED:
        if (PACKAGE / name).is_dir():
            # Other tests may just be writing what is compiled.
            shutil.copytree(PACKAGE / name, folder / "nlu" / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(PACKAGE / name, folder / "nlu" / name)
    for name in ("setup.cfg", "conf/config.yaml", "conf/secrets.yaml"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(f"# {name}\n")
    git(folder, "init", "--quiet")
    (folder / ".gitignore").write_text("__pycache__\n.venv\n")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "first")
    return folder


def call(code: str, package_parent: Path, *arguments: str) -> None:
    """Run code with the package of that folder, as a run would."""
    program = f"import sys; from pathlib import Path; from nlu.runs.provenance import *; run = Path('run'); {code}"
    environment = os.environ | {"PYTHONPATH": str(package_parent)}
    subprocess.run([sys.executable, "-c", program, *arguments], cwd=package_parent, env=environment, check=True)


WRITE = "write_provenance(run, {'seed': 3}, devices=['cpu'], world_size=1)"


def starts_of(folder: Path) -> list[dict]:
    return json.loads((folder / "provenance.json").read_text())["starts"]


def test_a_start_names_command_code_versions_and_machine(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["nlu.train", "data.path=my file.tsv", "seed=7"])
    monkeypatch.setenv("HF_TOKEN", "hf_not_to_be_stored")
    write_provenance(tmp_path, {"seed": 7}, devices=["cuda:0 GPU"], world_size=2)
    (start,) = starts_of(tmp_path)
    assert start["command"] == "nlu.train 'data.path=my file.tsv' seed=7"
    assert (start["seed"], start["world_size"], start["devices"]) == (7, 2, ["cuda:0 GPU"])
    assert start["package"]["version"] == nlu.__version__ and start["time"].endswith("+00:00")
    assert all(start["versions"].values()) and len(start["versions"]) == 7
    assert start["cpu"]["model"] and start["cpu"]["torch_threads"] >= 1
    assert "hf_not_to_be_stored" not in (tmp_path / "provenance.json").read_text()


def test_secret_settings_of_the_command_are_hidden_and_tokenizer_settings_are_not(tmp_path, monkeypatch):
    shown = ["tokenizer.pad_token=[PAD]", "tokenizer=wordpiece", "data.max_tokens=9"]
    hidden = ["+storage.secret_key=abc", "hub.token=abc", "--password=abc", "data.path=s3://user:abc@host/x"]
    monkeypatch.setattr(sys, "argv", shown + hidden)
    write_provenance(tmp_path, {}, devices=[], world_size=1)
    command = starts_of(tmp_path)[0]["command"]
    assert "abc" not in command and all(text.partition("=")[2] in command for text in shown)
    assert "s3://***@host/x" in command


def test_a_resume_adds_a_start_and_keeps_the_first(tmp_path):
    for seed in (1, 2):
        write_provenance(tmp_path, {"seed": seed}, devices=[], world_size=1)
        if seed == 1:
            first = starts_of(tmp_path)[0]
    assert starts_of(tmp_path)[0] == first and [start["seed"] for start in starts_of(tmp_path)] == [1, 2]


@pytest.mark.parametrize("content", ["{", "[]", '{"starts": 3}'])
def test_a_damaged_record_is_not_overwritten(tmp_path, content):
    (tmp_path / "provenance.json").write_text(content)
    with pytest.raises(DataError, match="provenance.json must hold"):
        write_provenance(tmp_path, {}, devices=[], world_size=1)
    assert (tmp_path / "provenance.json").read_text() == content


@pytest.mark.thorough
def test_a_changed_checkout_is_recorded_with_its_diff_less_secret_files(checkout):
    (checkout / "nlu/config/types.py").write_text("changed = 'mark of the change'\n")
    call(WRITE, checkout)
    described = starts_of(checkout / "run")[0]["git"]
    assert described["commit"] == git(checkout, "rev-parse", "HEAD").strip()
    assert described["dirty"] is True and described["diff_cut"] is False
    assert "+changed = 'mark of the change'" in described["diff"]
    assert "hidden value" not in described["diff"] and "secrets.yaml" not in described["diff"]


def test_overrides_reach_the_program_again_through_xargs(tmp_path):
    kept = ['+data.query=it\'s "quoted" \\ $HOME', "model.sizes=[1, 2]", "name=zwölf", "note=two\nlines", "empty="]
    dropped = ["hydra.run.dir=/x", "+hydra.sweep.dir=y", "hydra.sweep.subdir=z", "resume=auto", "++dry_run=true"]
    dropped += ["mirror=s3://a/b", "take=true"]
    similar = ["data.resume=1", "hydra.run_name=2"]
    path = write_overrides(tmp_path, [*dropped, *kept, *similar])
    program = "import json, sys; print(json.dumps(sys.argv[1:]))"
    done = subprocess.run(["xargs", "-a", path, sys.executable, "-c", program], capture_output=True, check=True)
    assert json.loads(done.stdout) == [*kept, *similar]


def test_the_snapshot_holds_code_and_configuration_and_nothing_else(checkout):
    (checkout / "mine/data").mkdir(parents=True)
    for name in ("__init__.py", "vocab.txt", "labels.json", "rows.tsv", "weights.bin", ".env", "my_credentials.json"):
        (checkout / "mine" / name).write_text("x = 1\n")
    (checkout / "mine/big.json").write_text("1" * 100_001)
    (checkout / "mine/big.py").write_text("#" * 1_000_001)
    (checkout / "mine/full.txt").write_text("1" * 100_000)
    (checkout / "mine/full.py").write_text("#" * 1_000_000)
    (checkout / "mine/link.py").symlink_to(checkout / "mine/__init__.py")
    (checkout / "mine/linked").symlink_to(checkout / "conf")
    for folder in (".hidden", "__pycache__", "secrets", "old_run"):
        (checkout / "mine" / folder).mkdir()
        (checkout / "mine" / folder / "code.py").write_text("")
    (checkout / "mine/old_run/provenance.json").write_text("{}")
    (checkout / "single.py").write_text("")
    call("snapshot_code(run, ['mine', 'single', 'nlu.config'])", checkout)
    packed = zipfile.ZipFile(checkout / "run/code.zip").infolist()
    assert {(one.date_time, one.external_attr >> 16) for one in packed} == {((1980, 1, 1, 0, 0, 0), 0o644)}
    names = [one.filename for one in packed]
    assert names == sorted(names)
    others = [name for name in names if not name.startswith("nlu/")]
    mine = ["mine/__init__.py", "mine/full.py", "mine/full.txt", "mine/labels.json", "mine/vocab.txt"]
    assert others == ["conf/config.yaml", *mine, "single.py"]
    assert "nlu/__init__.py" in names and "nlu/runs/provenance.py" in names and "nlu/config/types.py" in names
    assert not any("__pycache__" in name for name in names)


def test_the_same_code_gives_the_same_bytes_and_other_code_never_replaces_them(checkout):
    call("snapshot_code(run); snapshot_code(run)", checkout)
    assert not (checkout / "run/code-2.zip").exists()
    first = (checkout / "run/code.zip").read_bytes()
    for file in checkout.rglob("*.py"):
        os.utime(file, (0, 0))
    other = "Path('conf/config.yaml').write_text('seed: 2'); snapshot_code(run); snapshot_code(run)"
    call(f"snapshot_code(Path('other')); {other}", checkout)
    assert (checkout / "other/code.zip").read_bytes() == first
    assert (checkout / "run/code.zip").read_bytes() == first
    assert zipfile.ZipFile(checkout / "run/code-2.zip").read("conf/config.yaml") == b"seed: 2"
    assert not (checkout / "run/code-3.zip").exists()
