"""Runs that several files of tests read and none of them changes."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.inference.runs import trained
from tests.training.kinds import TASKS


@pytest.fixture(scope="session")
def run_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a function that trains a run of a task, or returns the folder of the one that it trained before."""
    known: dict[str, Path] = {}

    def run(name: str) -> Path:
        if name not in known:
            known[name] = trained(TASKS[name], tmp_path_factory.mktemp("trained"))
        return known[name]

    return run
