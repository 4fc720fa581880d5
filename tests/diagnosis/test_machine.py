"""python -m nlu.doctor: what it says of a machine, and its exit status."""

import json
from configparser import ConfigParser
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from nlu.diagnosis import software
from nlu.diagnosis.check import Check, checked
from nlu.diagnosis.software import access
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


def test_a_package_that_is_missing_or_of_another_version_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = [Requirement("no-such-package-at-all>=1"), Requirement("numpy<1"), Requirement("tokenizers>=0.1")]
    monkeypatch.setattr(software, "_requirements", lambda: wanted)
    found = {check.name: check for check in software.versions()}
    assert found["no-such-package-at-all"].says.startswith("is not installed")
    assert found["no-such-package-at-all"].remedy.endswith("-m pip install 'no-such-package-at-all>=1'")
    assert found["numpy"].mark == "broken" and found["numpy"].says.endswith("but nlu needs <1")
    assert found["packages"].says.startswith("tokenizers ")


def test_doctor_checks_the_extras_of_users_and_their_packages() -> None:
    settings = ConfigParser()
    settings.read(REPOSITORY / "setup.cfg")
    declared = {
        extra: {Requirement(line).name for line in text.strip().splitlines() if not line.startswith("#")}
        for extra, text in settings["options.extras_require"].items()
    }
    assert set(software.OPTIONAL) == set(declared) - {"dev", "docs", "dist", "bench", "services"}
    assert all(set(names) <= declared[extra] for extra, names in software.OPTIONAL.items())


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


def test_a_check_that_raises_becomes_a_broken_check() -> None:
    def fails() -> Check:
        raise OSError(5, "Input/output error", "/dev/x")

    (found,) = checked("disk", fails, "replace it")
    assert (found.mark, found.says, found.remedy) == ("broken", "/dev/x: Input/output error", "replace it")
