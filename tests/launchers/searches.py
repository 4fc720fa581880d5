"""What the tests of searches share: the light program and real runs, started as a user starts them."""

import os
import subprocess
from pathlib import Path
from typing import Any

import optuna

from nlu.search.storage.open_study import open_storage, storage_url
from tests import warm

REPOSITORY = Path(__file__).resolve().parents[2]
PROGRAM = [str(Path(__file__).with_name("program.py"))]
SEARCH = ("--multirun", "hydra/sweeper=hyperband", "hydra.sweeper.direction=maximize", "hydra/sweeper/sampler=random")
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(REPOSITORY), "HYDRA_FULL_ERROR": "1"}
AT_ONCE = "import runpy, sys; sys.argv[:] = sys.argv[1:]; sys.path.insert(0, sys.argv[0].rpartition('/')[0]); " \
    "sys.path.append('launchers'); import nlu.search.failures as failures; " \
    "failures.RESTARTS = failures.Pauses(0.01, 0.01, 4); runpy.run_path(sys.argv[0], run_name='__main__')"  # fmt: skip
QUICKLY = ["-c", AT_ONCE, *PROGRAM]
"""the light program, with four short pauses before a trial is set aside"""
LOCAL = ("hydra/launcher=local", "hydra.sweeper.n_jobs=2")


def start(folder: Path, *overrides: str, program: list[str] = PROGRAM, **options: Any) -> warm.Process:
    """Start a search of the light program into `folder`, without a pruner unless the overrides name one."""
    command = [*program, *SEARCH, f"hydra.sweep.dir={folder}", "hydra.sweeper.pruner=none", *overrides]
    return warm.start(
        command, cwd=folder.parent, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **options
    )


def search(folder: Path, *overrides: str, status: int = 0, program: list[str] = PROGRAM) -> str:
    """Run a search to its end and return what it said; asserts its exit status."""
    process = start(folder, *overrides, program=program)
    said = process.communicate(timeout=300)[0] or ""
    assert process.returncode == status, f"exit {process.returncode}, not {status}\n{said}"
    return said


def study(folder: Path) -> optuna.Study:
    storage = open_storage(storage_url(None, folder))
    return optuna.load_study(study_name=folder.name, storage=storage)


def trials(folder: Path) -> list[optuna.trial.FrozenTrial]:
    return study(folder).get_trials()


def states(folder: Path) -> list[str]:
    return [trial.state.name for trial in trials(folder)]


def outcomes(folder: Path) -> list[dict[str, Any]]:
    return [trial.user_attrs["outcome"] for trial in trials(folder)]


def runs(folder: Path, number: int) -> list[int]:
    """The steps at which the jobs of a trial began."""
    return [int(line.split()[1]) for line in (folder / str(number) / "runs.txt").read_text().splitlines()]
