"""A signal at any part of any command ends it with its documented status and a sentence, and the same command continues
to the bytes of one that was never asked.
"""

import functools
import signal
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from tests import warm
from tests.training.in_process import MODEL, NO_DROPOUT, PLAIN, sets
from tests.training.runs import REPOSITORY, SAME_THREADS

PROGRAM = str(REPOSITORY / "tests/training/signalled_at.py")
TERM, USR1, INT = signal.SIGTERM, signal.SIGUSR1, signal.SIGINT
SIGNALS = (TERM, USR1, INT)
OPTIONS = (
    *MODEL, *NO_DROPOUT, *PLAIN, "trainer.max_duration=4st", "trainer.eval_interval=2st", "resume=auto",
)  # fmt: skip
SEARCH = (
    "--multirun", "hydra/sweeper=hyperband", "hydra/sweeper/sampler=random", "hydra.sweeper.pruner=none",
    "hydra.sweeper.n_trials=2", "optimizer.lr=interval(1e-3,3e-3)",
)  # fmt: skip
KINDS: dict[str, tuple[str, ...]] = {
    "run": (),
    "grid": ("--multirun", "seed=1,2"),
    "folds": ("folds=2",),
    "search": SEARCH,
    "devices": ("trainer.devices=2",),
}
PHASES = {
    "compose": "1 nlu.config.entry.app require_safe",
    "prepare": "1 nlu.training.single build_run",
    "step": "1 nlu.training.step Stepper.step",
    "scoring": "1 nlu.training.loop score_set",
    "saving": "1 nlu.runs.checkpoint Checkpoints.save_last",
    "last scoring": "2 nlu.training.loop score_set",
    "test set": "1 nlu.training.finish score_set",
    "figures": "1 nlu.training.finish draw",
}
BETWEEN = {
    "grid": "2 nlu.train run",
    "folds": "1 nlu.training.repeats _line",
    "search": "1 hydra_plugins.hyperband_sweeper._impl Search._show_progress",
}
"""after the first of the runs, before the second"""


class Case(NamedTuple):
    kind: str
    phase: str
    number: signal.Signals


CASES = [Case(kind, phase, number) for kind in KINDS for phase in [*PHASES, "between"] for number in SIGNALS
         if phase != "between" or kind in BETWEEN]  # fmt: skip
QUICK = {
    Case("run", "prepare", USR1), Case("run", "last scoring", INT), Case("grid", "last scoring", TERM),
    Case("folds", "between", USR1), Case("search", "last scoring", INT), Case("search", "between", TERM),
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


def outcome(folder: Path) -> dict[str, bytes]:
    """Return all of a finished command that must not depend on whether it was stopped."""
    kept = [*folder.rglob("model.safetensors"), *folder.rglob("valid.tsv"), *folder.rglob("predictions/*.jsonl")]
    return {str(path.relative_to(folder)): path.read_bytes() for path in kept if "journal" not in path.parts}


@pytest.mark.parametrize(
    "case", [
        pytest.param(case, id="-".join([case.kind, case.phase.replace(" ", "_"), case.number.name]),
                     marks=() if case in QUICK else pytest.mark.thorough)
        for case in CASES
    ],
)  # fmt: skip
def test_a_signal_ends_a_command_as_documented_and_the_same_command_continues_to_the_same_bytes(
    case: Case, command: Command, unbroken: Callable[[str], dict[str, bytes]], tmp_path: Path
) -> None:
    instant = BETWEEN[case.kind] if case.phase == "between" else PHASES[case.phase]
    status, said = command(case.kind, tmp_path / "run", f"{case.number.name} {instant}")
    assert status == (130 if case.number == INT else 75), said
    assert ("interrupted" if case.number == INT else f"stopped by {case.number.name}") in said, said
    assert "Traceback" not in said and "exception" not in said.lower(), said
    saved = list((tmp_path / "run").rglob("checkpoints/last/COMPLETE"))
    assert bool(saved) == (case.phase not in ("compose", "prepare")), saved
    status, said = command(case.kind, tmp_path / "run")
    assert status == 0, said
    found, expected = outcome(tmp_path / "run"), unbroken(case.kind)
    assert found.keys() == expected.keys() and [name for name in found if found[name] != expected[name]] == []
