"""What the tests of signals share: kinds of commands, the phases in which a signal may come, and what a command leaves.

A phase is named by the function that begins it: "2 nlu.training.best score_set" is its second call. A command sends
itself a signal there (`signalled_at.py`). A job, which somebody else asks to stop, waits there for a signal: its
environment is that of `waiting_at`.
"""

import os
import signal
import time
from pathlib import Path

from tests.training.in_process import MODEL, NO_DROPOUT, PLAIN
from tests.training.runs import REPOSITORY

PROGRAM = str(REPOSITORY / "tests/training/signalled_at.py")
HOOK = str(REPOSITORY / "tests/training/waiting_at")
"""folder of the module that Python imports by itself in each process whose PYTHONPATH names it"""
CHECKOUT = f"{REPOSITORY}{os.pathsep}{REPOSITORY / 'launchers'}"
SUBMITIT = "submitit.core._submit"
"""the module that the process of a job runs, on this machine and on Slurm"""
PATIENCE_S = 180.0
SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)
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
    "compose": "1 nlu.config.entry.app checked_composition",
    "prepare": "1 nlu.training.single build_run",
    "step": "1 nlu.training.step Stepper.step",
    "scoring": "1 nlu.training.best score_set",
    "saving": "1 nlu.runs.checkpoint Checkpoints.save_last",
    "last scoring": "2 nlu.training.best score_set",
    "test set": "1 nlu.training.finish score_set",
    "figures": "1 nlu.training.finish draw",
}
BETWEEN_FOLDS = "1 nlu.training.experiment _line"
"""after the first of several folds, before the second"""
OF_JOBS = {
    **PHASES, "compose": "1 hydra_plugins.queue_launcher._job composed", "check": "1 nlu.config.entry.app prepare",
}  # fmt: skip
"""the same in a process that submitit starts, which composes for itself"""
UPLOAD = "1 nlu.runs.mirror Mirror._wait"
"""the end of a run that has a mirror"""
EVERY = os.environ.get("NLU_EVERY_SIGNAL") == "1"
"""whether tests run every phase, and every signal in it, instead of some of them"""
BEFORE_TRAINING = ("compose", "check", "prepare")
"""phases before there is anything to save"""


def outcome(folder: Path) -> dict[str, bytes]:
    """Return all of a finished command that must not depend on whether it was stopped."""
    kept = [*folder.rglob("model.safetensors"), *folder.rglob("valid.tsv"), *folder.rglob("predictions/*.jsonl")]
    return {str(path.relative_to(folder)): path.read_bytes() for path in kept if "journal" not in path.parts}


def waiting_at(instant: str, file: Path) -> dict[str, str]:
    """Return the environment in which the first job that reaches an instant writes the file and waits for a signal."""
    return {
        "WAITING_AT": instant, "WAITING_FILE": str(file), "WAITING_PROGRAM": SUBMITIT,
        "PYTHONPATH": os.pathsep.join([HOOK, CHECKOUT]),
    }  # fmt: skip


def waiting_job(file: Path) -> int:
    """Return the process of the job that waits, as soon as one does."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not (file.is_file() and (text := file.read_text()).endswith("\n")):
        assert time.monotonic() < deadline_s, f"no job came to its instant; {file}"
        time.sleep(0.05)
    return int(text)
