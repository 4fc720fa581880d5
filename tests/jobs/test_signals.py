"""A signal to a job of this machine in any phase, or to the command that submitted it: each ends with its documented
status, nothing is left running or submitted twice, and the same command comes to the bytes of one that was not stopped.
"""

import functools
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from nlu.commands.jobs import main as jobs_main
from nlu.jobs.local import processes
from nlu.jobs.submissions import Submissions, submissions_below
from tests import warm
from tests.buckets import Server
from tests.training.in_process import sets
from tests.training.phases import (
    BEFORE_TRAINING,
    CHECKOUT,
    KINDS,
    OF_JOBS,
    OPTIONS,
    PROGRAM,
    SIGNALS,
    UPLOAD,
    outcome,
    waiting_at,
    waiting_job,
)

TERM, USR1, INT = (number.name for number in SIGNALS)
CANCEL = "cancel"
"""python -m nlu.jobs FOLDER --cancel"""
TIME_IS_UP = "SIGUSR2"
"""what submitit sends, after which it starts the job again"""
LOCAL = "hydra/launcher=local"


class Case(NamedTuple):
    kind: str
    phase: str
    asked: str


JOBS = [
    Case("run", "scoring", TIME_IS_UP), Case("run", "compose", CANCEL), Case("run", "test set", INT),
    Case("run", "upload", USR1), Case("run", "prepare", USR1), Case("run", "saving", TERM),
    Case("run", "figures", TERM), Case("grid", "step", USR1), Case("folds", "test set", TERM),
]  # fmt: skip
INSTANTS = {**OF_JOBS, "upload": UPLOAD}
COMMANDS = [
    Case("run", "1 nlu.jobs.submissions Submissions.submitted", TERM),
    Case("run", "2 nlu.jobs.following Follower._ask", INT),
    Case("grid", "2 nlu.jobs.following Follower._ask", USR1),
    Case("search", "2 nlu.search.loop Search._update_files", TERM),
]
Start = Callable[..., warm.Process]


def cases(every: Sequence[Case], count: int) -> list[Any]:
    """Return the parameters of a test, of which `make test` tries so many."""
    marks = [[] if place < count else [pytest.mark.thorough] for place in range(len(every))]
    return [pytest.param(case, marks=of_case) for case, of_case in zip(every, marks, strict=True)]


def named(case: Case) -> str:
    return f"{case.kind}-{case.phase.split('.')[-1]}-{case.asked}".replace(" ", "_")


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Start:
    """Starts a kind of command in a folder."""
    data = (*sets(tmp_path_factory.mktemp("data")), "data.test=${data.dev}")

    def start(kind: str, folder: Path, *more: str, environment: Mapping[str, str] | None = None) -> warm.Process:
        where = "sweep" if "--multirun" in KINDS[kind] else "run"
        own = [option for option in OPTIONS if kind != "search" or option != "resume=auto"]
        return warm.start(
            [PROGRAM, *own, *data, *KINDS[kind], *more, f"hydra.{where}.dir={folder}"], cwd=folder.parent,
            env={**os.environ, "PYTHONPATH": CHECKOUT, **(environment or {})}, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, figures=True,
        )  # fmt: skip

    return start


def end(process: warm.Process, status: int) -> str:
    """Wait for the end of a command, and return what it said; asserts its exit status, and that nothing is a bug."""
    said = process.communicate(timeout=300)[0] or ""
    assert process.returncode == status, f"exit {process.returncode}, not {status}\n{said}"
    assert "Traceback" not in said, said
    return said


@pytest.fixture(scope="module")
def unbroken(start: Start, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[str, bytes]]:
    """Gives what a kind of command leaves in this process where nothing asks it to stop."""

    @functools.cache
    def left(kind: str) -> dict[str, bytes]:
        folder = tmp_path_factory.mktemp("unbroken") / "run"
        end(start(kind, folder), 0)
        return outcome(folder)

    return left


def assert_same(folder: Path, expected: dict[str, bytes]) -> None:
    """Assert that a command has come to its end, with these bytes, and left no job."""
    found = outcome(folder)
    assert found.keys() == expected.keys() and [name for name in found if found[name] != expected[name]] == []
    tokens = [one.job.token for record in submissions_below(folder) for one in record.read()]
    assert not [process for token in tokens for process in processes(token)]
    assert not [file for file in folder.rglob("*_log.err") if "Traceback" in file.read_text()]


@pytest.mark.parametrize("case", cases(JOBS, 1), ids=named)
def test_a_job_asked_to_stop_in_any_phase_saves_its_state_and_continues(
    case: Case, start: Start, unbroken: Callable[[str], dict[str, bytes]], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest,
) -> None:  # fmt: skip
    folder, file, more = tmp_path / "run", tmp_path / "waits", list[str]()
    if case.phase == "upload":
        s3: Server = request.getfixturevalue("s3")
        more = [f"mirror={s3.bucket(monkeypatch)}/run"]
    process = start(case.kind, folder, LOCAL, *more, environment=waiting_at(INSTANTS[case.phase], file))
    job = waiting_job(file)
    if case.asked == CANCEL:
        assert jobs_main([str(folder), "--cancel"]) == 0
    else:
        os.kill(job, signal.Signals[case.asked])
    # submitit starts a job again whose time is up.
    continues = case.asked == TIME_IS_UP
    said = end(process, 0 if continues else 130 if case.asked == INT else 75)
    if not continues:
        assert ": stopped" in said, said
        saved = bool(list(folder.rglob("checkpoints/last/COMPLETE")))
        assert saved == (case.phase not in BEFORE_TRAINING)
        end(start(case.kind, folder, LOCAL, *more), 0)
    assert_same(folder, unbroken(case.kind))


@pytest.mark.parametrize("case", cases(COMMANDS, 0), ids=named)
def test_a_stopped_command_leaves_its_jobs_and_the_same_command_collects_them(
    case: Case, start: Start, unbroken: Callable[[str], dict[str, bytes]], tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    process = start(case.kind, folder, LOCAL, environment={"SIGNALLED_AT": f"{case.asked} {case.phase}"})
    said = end(process, 130 if case.asked == INT else 75)
    how = "interrupted" if case.asked == INT else f"stopped by {case.asked}"
    if case.kind == "search":
        # It waits for its trials, and starts no other.
        assert f"{how}; the same command with hydra.sweep.dir={folder} continues" in said, said
        end(start(case.kind, folder, LOCAL), 0)
    else:
        assert f"nlu: {how}; submitted jobs continue; the same command finds them" in said, said
        assert "of an earlier command found again, not submitted again" in end(start(case.kind, folder, LOCAL), 0)
        assert {job.ended for job in Submissions(folder).read()} == {"done"}
    assert_same(folder, unbroken(case.kind))
