"""A signal at any part of any command ends it with its documented status and a sentence, and the same command continues
to the bytes of one that was never asked.

Each kind of command meets each phase once. The signal rotates, so that each kind and each phase meets all three.
NLU_EVERY_SIGNAL=1 in the environment runs every kind and phase with every signal, which takes three times as long.
"""

import functools
import signal
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from tests import warm
from tests.training.in_process import sets
from tests.training.phases import (
    BEFORE_TRAINING,
    BETWEEN_FOLDS,
    EVERY,
    KINDS,
    OPTIONS,
    PHASES,
    PROGRAM,
    SIGNALS,
    outcome,
)
from tests.training.runs import REPOSITORY, SAME_THREADS

TERM, USR1, INT = SIGNALS
BETWEEN = {
    "grid": "2 nlu.train run",
    "folds": BETWEEN_FOLDS,
    "search": "1 nlu.search.loop Search._update_files",
}
"""after the first of the runs, before the second"""


class Case(NamedTuple):
    kind: str
    phase: str
    number: signal.Signals


def _cases(*, every_signal: bool) -> list[Case]:
    cases = []
    for row, kind in enumerate(KINDS):
        for column, phase in enumerate([*PHASES, *(["between"] if kind in BETWEEN else [])]):
            rotated = SIGNALS[(row + column) % len(SIGNALS)]
            cases += [Case(kind, phase, number) for number in (SIGNALS if every_signal else (rotated,))]
    return cases


CASES = _cases(every_signal=EVERY)
QUICK = {
    Case("run", "last scoring", INT), Case("search", "between", INT),
}  # fmt: skip
assert QUICK < set(CASES)
Command = Callable[..., tuple[int, str]]


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> Command:
    """Gives what runs a kind of command in a folder, with a signal at an instant, and returns its status and words."""
    data = (*sets(tmp_path_factory.mktemp("data")), "data.test=${data.dev}")

    def run(kind: str, folder: Path, signalled_at: str = "") -> tuple[int, str]:
        where = "sweep" if "--multirun" in KINDS[kind] else "run"
        resumed = [option for option in OPTIONS if kind != "search" or option != "resume=auto"]
        arguments = [PROGRAM, *resumed, *data, *KINDS[kind], f"hydra.{where}.dir={folder}"]
        environment = {**SAME_THREADS, "SIGNALLED_AT": signalled_at}
        done = warm.run(arguments, cwd=REPOSITORY, env=environment)
        return done.returncode, done.stdout + done.stderr

    return run


@pytest.fixture(scope="module")
def unbroken(command: Command, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[str, bytes]]:
    """Gives what a kind of command leaves where nothing asked it to stop."""

    @functools.cache
    def left(kind: str) -> dict[str, bytes]:
        folder = tmp_path_factory.mktemp("unbroken") / "run"
        status, said = command(kind, folder)
        assert status == 0, said
        return outcome(folder)

    return left


@pytest.mark.parametrize(
    "case", [
        pytest.param(case, id="-".join([case.kind, case.phase.replace(" ", "_"), case.number.name]),
                     marks=() if case in QUICK else pytest.mark.thorough)
        for case in CASES
    ],
)  # fmt: skip
def test_a_signal_ends_a_command_as_documented_and_it_continues_to_the_same_bytes(
    case: Case, command: Command, unbroken: Callable[[str], dict[str, bytes]], tmp_path: Path
) -> None:
    instant = BETWEEN[case.kind] if case.phase == "between" else PHASES[case.phase]
    status, said = command(case.kind, tmp_path / "run", f"{case.number.name} {instant}")
    assert status == (130 if case.number == INT else 75), said
    assert ("interrupted" if case.number == INT else f"stopped by {case.number.name}") in said, said
    assert "Traceback" not in said and "exception" not in said.lower(), said
    saved = list((tmp_path / "run").rglob("checkpoints/last/COMPLETE"))
    assert bool(saved) == (case.phase not in BEFORE_TRAINING), saved
    status, said = command(case.kind, tmp_path / "run")
    assert status == 0, said
    found, expected = outcome(tmp_path / "run"), unbroken(case.kind)
    assert found.keys() == expected.keys() and [name for name in found if found[name] != expected[name]] == []
