"""What the tests of signals share: kinds of commands, the phases in which a signal may come, and what a command leaves.

A phase is named by the function that begins it: "2 nlu.training.loop score_set" is its second call. A command sends
itself a signal there (`signalled_at.py`).
"""

import signal
from pathlib import Path

from tests.training.in_process import MODEL, NO_DROPOUT, PLAIN
from tests.training.runs import REPOSITORY

PROGRAM = str(REPOSITORY / "tests/training/signalled_at.py")
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
    "compose": "1 nlu.config.entry.app require_safe",
    "prepare": "1 nlu.training.single build_run",
    "step": "1 nlu.training.step Stepper.step",
    "scoring": "1 nlu.training.loop score_set",
    "saving": "1 nlu.runs.checkpoint Checkpoints.save_last",
    "last scoring": "2 nlu.training.loop score_set",
    "test set": "1 nlu.training.finish score_set",
    "figures": "1 nlu.training.finish draw",
}
BEFORE_TRAINING = ("compose", "prepare")
"""phases in which there is nothing to save"""


def outcome(folder: Path) -> dict[str, bytes]:
    """Return all of a finished command that must not depend on whether it was stopped."""
    kept = [*folder.rglob("model.safetensors"), *folder.rglob("valid.tsv"), *folder.rglob("predictions/*.jsonl")]
    return {str(path.relative_to(folder)): path.read_bytes() for path in kept if "journal" not in path.parts}
