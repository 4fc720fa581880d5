"""Checkpoints that a run does not keep after its end, and why.

Nothing heavy is imported, since reports read the reasons.
"""

from pathlib import Path

from nlu.storage.files import read_json
from nlu.storage.settle import remove

RESULT = "result.json"
"""in a run folder: the scores of a finished run"""
CHECKPOINTS = "checkpoints"


def reason_without_best(run_dir: Path) -> str | None:
    """Return why a finished run kept no best checkpoint; None if it kept one, has not ended, or consists of several."""
    best = (read_json(run_dir / RESULT) or {}).get("best") or {}
    reason: str | None = best.get("no_checkpoint")
    return reason


def remove_unkept(run_dir: Path) -> None:
    """Remove the best checkpoints of a finished run that keeps none. It can be repeated after a kill."""
    # They were needed until the test set was scored, also if the run was killed and continued before that.
    if reason_without_best(run_dir) is not None:
        for path in [*(run_dir / CHECKPOINTS).glob("best-*"), *(run_dir / CHECKPOINTS).glob(".best-step-*")]:
            remove(path)
