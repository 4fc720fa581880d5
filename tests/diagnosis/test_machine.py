"""python -m nlu.doctor: what it says of a machine, and its exit status."""

from pathlib import Path

import pytest
import torch
from packaging.requirements import Requirement

from nlu.diagnosis import machine
from nlu.diagnosis.check import Check, checked
from tests import warm
from tests.training.runs import REPOSITORY, SAME_THREADS

SECRET = "a-value-to-keep-secret"


def test_a_machine_is_looked_at_and_no_secret_is_shown(tmp_path: Path) -> None:
    environment = {**SAME_THREADS, "PYTHONPATH": f"{REPOSITORY}:{REPOSITORY}/launchers", "HF_TOKEN": SECRET}
    done = warm.run(["-m", "nlu.doctor"], cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert {"environment", "software", "machine", "disks"} <= set(done.stdout.splitlines())
    for said in (f"PyTorch version: {torch.__version__}", "processes by gloo is right", "GB free"):
        assert said in done.stdout
    assert SECRET not in done.stdout + done.stderr
    assert list(tmp_path.iterdir()) == [], "what was written to try the disk"


def test_a_package_that_is_missing_or_of_another_version_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = [Requirement("no-such-package-at-all>=1"), Requirement("numpy<1"), Requirement("tokenizers>=0.1")]
    monkeypatch.setattr(machine, "_declared", lambda: (wanted, {"a": wanted[1:], "b": wanted[:1]}))
    found = {check.name: check for check in machine.versions()}
    assert found["no-such-package-at-all"].says.startswith("is not installed")
    assert found["no-such-package-at-all"].remedy.endswith("-m pip install 'no-such-package-at-all>=1'")
    assert found["numpy"].mark == "broken" and found["numpy"].says.endswith("but nlu needs numpy<1")
    assert found["packages"].says.startswith("tokenizers ")
    assert found["extras"].says == "there: a; not there: b"


def test_requirements_and_extras_are_those_of_setup_cfg() -> None:
    required, extras = machine._declared()
    assert {"torch", "hydra-core", "pydantic"} <= {one.name for one in required}
    assert "transformers" in {one.name for one in extras["hf"]}


def test_a_check_that_raises_becomes_a_broken_check() -> None:
    def fails() -> Check:
        raise OSError(5, "Input/output error", "/dev/x")

    (found,) = checked("disk", fails, "replace it")
    assert (found.mark, found.says, found.remedy) == ("broken", "/dev/x: Input/output error", "replace it")
