"""A signal to a job of a real Slurm in any phase, or to the command that follows it: each ends with its documented
status, and the same command comes to the bytes of one that was not stopped.

NLU_EVERY_SIGNAL=1 in the environment adds the other phases.
"""

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from nlu.launching.submissions import Submissions
from tests import warm
from tests.slurm.test_runs import job_of, logs
from tests.slurm.works import ask
from tests.training.in_process import command, sets
from tests.training.phases import (
    BEFORE_TRAINING,
    CHECKOUT,
    EVERY,
    OF_JOBS,
    OPTIONS,
    PROGRAM,
    outcome,
    waiting_at,
    waiting_job,
)

pytestmark = [pytest.mark.slurm]

SLURM = "hydra/launcher=slurm"
JOBS = [("compose", "TERM"), ("last scoring", "INT")]
if EVERY:
    JOBS += [
        ("check", "USR1"), ("prepare", "INT"), ("step", "TERM"), ("scoring", "USR1"), ("saving", "INT"),
        ("test set", "TERM"), ("figures", "USR1"),
    ]  # fmt: skip
Data = tuple[str, ...]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Data:
    # Whether a job continues is for the test to say.
    own = [option for option in OPTIONS if option != "resume=auto"]
    return (*own, *sets(tmp_path_factory.mktemp("data")), "data.test=${data.dev}")


@pytest.fixture(scope="module")
def unbroken(data: Data, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What the run leaves without Slurm."""
    folder = tmp_path_factory.mktemp("unbroken") / "run"
    command(*data, f"hydra.run.dir={folder}")
    return outcome(folder)


def start(folder: Path, *overrides: str, environment: Mapping[str, str] | None = None) -> warm.Process:
    """Start a command into a folder."""
    return warm.start(
        [PROGRAM, *overrides, SLURM, f"hydra.run.dir={folder}"], cwd=folder.parent,
        env={**os.environ, "PYTHONPATH": CHECKOUT, **(environment or {})}, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )  # fmt: skip


def end(process: warm.Process, status: int = 0) -> str:
    """Wait for the end of a command, and return what it said; asserts its exit status, and that nothing is a bug."""
    said = process.communicate(timeout=400)[0] or ""
    assert process.returncode == status, f"exit {process.returncode}, not {status}\n{said}\n{logs()}"
    assert "Traceback" not in said, said
    return said


@pytest.mark.parametrize(("phase", "name"), JOBS, ids=[f"{phase}-{name}".replace(" ", "_") for phase, name in JOBS])
def test_a_job_asked_to_stop_in_any_phase_saves_its_state_and_continues(
    data: Data, unbroken: dict[str, bytes], tmp_path: Path, phase: str, name: str
) -> None:
    folder, file = tmp_path / "run", tmp_path / "waits"
    process = start(folder, *data, environment=waiting_at(OF_JOBS[phase], file))
    waiting_job(file)
    ask("scancel", f"--signal={name}", job_of(folder))
    said = end(process, 130 if name == "INT" else 75)
    assert "run: stopped" in said, said
    assert bool(list(folder.rglob("checkpoints/last/COMPLETE"))) == (phase not in BEFORE_TRAINING)
    end(start(folder, *data, "resume=auto"))
    assert outcome(folder) == unbroken


@pytest.mark.parametrize(
    ("waits", "name", "status"), [(True, "SIGTERM", 75), (False, "SIGINT", 130)], ids=["waiting", "running"]
)
def test_a_stopped_command_leaves_its_job_and_the_same_command_collects_it(
    data: Data, unbroken: dict[str, bytes], tmp_path: Path, waits: bool, name: str, status: int
) -> None:
    folder = tmp_path / "run"
    held = ("+hydra.launcher.additional_parameters={hold: true}",) if waits else ()
    followed = f"{name} 2 nlu.launching.following StatusCache.at"
    said = end(start(folder, *data, *held, environment={"SIGNALLED_AT": followed}), status)
    assert "1 job continues" in said and "submitted jobs continue; the same command finds them" in said, said
    if waits:
        assert "PENDING" in ask("squeue", "--noheader", "--format=%T", f"--jobs={job_of(folder)}")
        ask("scontrol", "release", job_of(folder))
    said = end(start(folder, *data, *held))
    assert "1 job of an earlier command found again" in said
    assert [job.ended for job in Submissions(folder).read()] == ["done"]
    assert outcome(folder) == unbroken
