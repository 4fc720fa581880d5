"""Checkpoints that a run does not keep after its end, and why; their sizes, and their removal.

Nothing heavy is imported, since reports read the reasons. `nlu.runs.mirror_files.free_mirror` does the same in a
bucket.
"""

import re
from pathlib import Path

from nlu.storage.files import read_json, sync_folder
from nlu.storage.locks import hold_lock
from nlu.storage.settle import remove

RESULT = "result.json"
"""in a run folder: the scores of a finished run"""
CHECKPOINTS = "checkpoints"
LOCK = ".lock"
"""in a run folder; held by the process that writes to it"""
ASIDE = ".checkpoints.freed"
"""in a run folder: its checkpoints while they are removed"""
BEST = re.compile(r"best-\d+")


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


def free(run_dir: Path, *, keeps_best: bool) -> None:
    """Remove the checkpoints of a run that is never continued and those of its folds and seeds.

    With `keeps_best` the best checkpoints stay. It can be repeated after a kill. Raises Locked if a process holds the
    run.
    """
    if not run_dir.is_dir():
        return
    with hold_lock(run_dir / LOCK, wait_s=0):
        for folder in run_folders(run_dir):
            checkpoints = folder / CHECKPOINTS
            if (folder / ASIDE).exists():
                remove(folder / ASIDE)
            if not checkpoints.is_dir():
                continue
            if keeps_best:
                for path in sorted(checkpoints.iterdir()):
                    if path.is_dir() and not BEST.fullmatch(path.name):
                        # Its mark goes first, so that no reader takes the rest for a complete checkpoint.
                        remove(path)
                continue
            # A kill amid the removal leaves no part of the folder under its name.
            checkpoints.rename(folder / ASIDE)
            sync_folder(folder)
            remove(folder / ASIDE)


def run_folders(run_dir: Path) -> list[Path]:
    """Return the folder of a run, and the folders of its folds and seeds if it consists of several."""
    return [run_dir, *sorted(path for path in run_dir.iterdir() if path.is_dir() and path.name[:1] != ".")]


def size_of(path: Path) -> int:
    """Return the size in bytes of a file, or of all files in a folder; what is removed meanwhile counts as 0."""
    found = 0
    for file in [path] if path.is_file() else path.rglob("*"):
        try:
            found += file.stat().st_size if file.is_file() else 0
        except FileNotFoundError:
            continue
    return found
