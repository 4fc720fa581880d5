"""python -m nlu.doctor: what it says of a machine, and its exit status."""

import importlib
import json
import os
import time
from configparser import ConfigParser
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from nlu.config.errors import UserError
from nlu.diagnosis import software
from nlu.diagnosis.check import Check, checked
from nlu.diagnosis.disks import disks
from nlu.diagnosis.software import access
from nlu.doctor import main
from nlu.launching.local import in_processes
from tests import warm
from tests.training.runs import REPOSITORY, SAME_THREADS

SECRET = "a-value-to-keep-secret"


def test_a_machine_is_looked_at_and_no_secret_is_shown(tmp_path: Path) -> None:
    environment = {**SAME_THREADS, "PYTHONPATH": f"{REPOSITORY}:{REPOSITORY}/launchers", "HF_TOKEN": SECRET}
    done = warm.run(["-m", "nlu.doctor", "--json"], cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    sections = {section["section"]: section["checks"] for section in json.loads(done.stdout)}
    assert set(sections) == {
        "versions", "package", "machine", "fast paths", "ranks", "disks", "credentials, by name",
    }  # fmt: skip
    assert "the sum is right" in sections["ranks"][0]["says"]
    assert "MB/s written" in sections["disks"][0]["says"]
    assert "HF_TOKEN" in sections["credentials, by name"][0]["says"]
    assert SECRET not in done.stdout + done.stderr
    assert list(tmp_path.iterdir()) == [], "what was written to measure the disk"


@pytest.mark.thorough
def test_a_broken_check_ends_with_status_1_and_its_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    environment = {**SAME_THREADS, "PYTHONPATH": f"{REPOSITORY}:{REPOSITORY}/launchers", "AWS_ACCESS_KEY_ID": SECRET}
    environment.pop("AWS_SECRET_ACCESS_KEY", None)
    done = warm.run(["-m", "nlu.doctor", "--outputs", "file/outputs"], cwd=tmp_path, env=environment)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "-> set hydra.run.dir to a folder that can be written" in done.stdout
    assert "AWS_ACCESS_KEY_ID is set, but AWS_SECRET_ACCESS_KEY is not" in done.stdout
    assert "2 broken" in done.stdout and SECRET not in done.stdout


def test_a_package_that_is_missing_or_of_another_version_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = [Requirement("no-such-package-at-all>=1"), Requirement("numpy<1"), Requirement("tokenizers>=0.1")]
    monkeypatch.setattr(software, "_requirements", lambda: wanted)
    found = {check.name: check for check in software.versions()}
    assert found["no-such-package-at-all"].says.startswith("is not installed")
    assert found["no-such-package-at-all"].remedy.endswith("-m pip install 'no-such-package-at-all>=1'")
    assert found["numpy"].mark == "broken" and found["numpy"].says.endswith("but nlu needs <1")
    assert found["packages"].says.startswith("tokenizers ")


def test_each_requirement_of_the_checkout_is_looked_at() -> None:
    names = {requirement.name for requirement in software._requirements()}
    assert {"torch", "hydra-core", "tokenizers", "pyyaml"} <= names


def test_doctor_checks_the_extras_of_users_and_their_packages() -> None:
    settings = ConfigParser()
    settings.read(REPOSITORY / "setup.cfg")
    declared = {
        extra: {Requirement(line).name for line in text.strip().splitlines() if not line.startswith("#")}
        for extra, text in settings["options.extras_require"].items()
    }
    assert set(software.OPTIONAL) == set(declared) - {"dev", "docs", "dist", "bench", "services"}
    assert all(set(names) <= declared[extra] for extra, names in software.OPTIONAL.items())


@pytest.mark.parametrize(
    ("diff", "said"),
    [
        ("", "only new files"),
        ("diff --git a b\n", "changes to 1 file"),
        ("diff --git a b\n" * 3, "changes to 3 files"),
    ],
)
def test_the_state_of_the_checkout_is_reported(monkeypatch: pytest.MonkeyPatch, diff: str, said: str) -> None:
    git = {"commit": "0123456789abcdef", "dirty": True, "diff": diff, "diff_cut": False}
    monkeypatch.setattr(software, "describe_code", lambda: {"git": git})
    assert software.checkout().says.startswith(f"commit 0123456789ab with {said}; ")


@pytest.mark.parametrize(("inside", "mark"), [("reversion", "warning"), ("multi_tensor_apply", "ok")])
def test_a_package_that_is_only_called_apex_is_distinguished_from_nvidias(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inside: str, mark: str
) -> None:
    (tmp_path / "apex" / inside).mkdir(parents=True)
    (tmp_path / "apex/__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    assert software.apex().mark == mark


def test_another_nlu_on_the_path_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nlu").mkdir()
    (tmp_path / "nlu/__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    found = {check.name: check for check in software.package()}
    assert str(tmp_path / "nlu") in found["another nlu"].says and found["another nlu"].mark == "warning"


def test_credentials_are_named_and_files_that_others_can_read_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".netrc").write_text(SECRET)
    (tmp_path / ".netrc").chmod(0o644)
    (tmp_path / ".pgpass").write_text(SECRET)
    (tmp_path / ".pgpass").chmod(0o600)
    environment = {
        "FSSPEC_OSS_KEY": SECRET, "FSSPEC_OSS_SECRET": SECRET, "MY_API_KEY": SECRET, "PATH": "/bin",
        "STORAGE": f"postgresql://me:{SECRET}@host/db", "PGHOST": "host", "EMPTY_TOKEN": "",
    }  # fmt: skip
    found = {check.name: check for check in access(environment)}
    assert found["variables"].says == "FSSPEC_OSS_KEY, FSSPEC_OSS_SECRET, MY_API_KEY, STORAGE, PGHOST"
    assert found["files"].says == "~/.netrc, ~/.pgpass"
    assert found["~/.netrc"].remedy == "chmod 600 ~/.netrc" and "~/.pgpass" not in found and "oss" not in found
    assert not any(SECRET in check.says + check.remedy for check in found.values())


@pytest.mark.parametrize(
    ("there", "absent"),
    [("FSSPEC_OSS_KEY", "FSSPEC_OSS_SECRET"), ("AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID"),
     ("ALIBABA_CLOUD_ACCESS_KEY_ID", "ALIBABA_CLOUD_ACCESS_KEY_SECRET")],
)  # fmt: skip
def test_half_of_a_pair_that_a_driver_reads_is_broken(there: str, absent: str) -> None:
    (broken,) = [check for check in access({there: SECRET}) if check.mark == "broken"]
    assert broken.says == f"{there} is set, but {absent} is not"
    assert not [check for check in access({"OSS_ACCESS_KEY_ID": SECRET}) if check.mark == "broken"], "nothing reads it"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written_is_broken(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    outputs, _ = disks(tmp_path / "outputs")
    assert outputs.mark == "broken" and "Permission denied" in outputs.says


def test_a_check_that_raises_becomes_a_broken_check() -> None:
    def fails() -> Check:
        raise OSError(5, "Input/output error", "/dev/x")

    (found,) = checked("disk", fails, "replace it")
    assert (found.mark, found.says, found.remedy) == ("broken", "/dev/x: Input/output error", "replace it")


def test_doctor_under_torchrun_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("RANK", "1"), ("WORLD_SIZE", "2"), ("LOCAL_RANK", "1")):
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match="start it once, without torchrun"):
        main([])


@pytest.mark.parametrize(("arguments", "words"), [(["--jsno"], "nearest: --json"), (["a", "b"], "b")])
def test_flags_that_there_are_not_are_refused(arguments: list[str], words: str) -> None:
    with pytest.raises(UserError, match=words):
        main(arguments)


def _hang() -> int:
    time.sleep(60)
    return 0


@pytest.mark.thorough
def test_processes_that_hang_are_ended_after_a_while() -> None:
    begun_s = time.monotonic()
    with pytest.raises(TimeoutError, match="2 of 2 processes hang after 0.5 s"):
        in_processes(_hang, 2, 0.5)
    assert time.monotonic() - begun_s < 30
