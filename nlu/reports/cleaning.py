"""Freeing disk space in run folders without losing what a run is kept for.

Of a run that has ended, complete or pruned, the best checkpoint stays, and all that `RUN/last` predicts with: its
weights, their moving average and its state. Removed are further best checkpoints, the optimizer's state and the
method's parameters in `last`, which only a longer training from there needs, and what interrupted saves left behind. A
run that has not ended, one that a process holds, and the parts of a command that has not ended stay as they are: a
resume needs them.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from nlu.config.errors import UserError
from nlu.config.words import path_text
from nlu.display.tables import print_table, table_of
from nlu.reports.runs import CONFIG, LOCK, RESULT, Run, is_run, parts
from nlu.storage.locks import Locked, hold_lock
from nlu.storage.settle import is_whole, remove

ENDED = ("complete", "pruned")
OPTIMIZER, METHOD = "optimizer.safetensors", "method.safetensors"
BEST = re.compile(r"best-(\d+)")


@dataclass
class Plan:
    """What can go of one run."""

    run: Run
    kept_because: str = ""
    """why nothing of it may go; empty otherwise"""
    removable: dict[Path, int] = field(default_factory=dict)
    """bytes by file or folder"""

    @property
    def size_bytes(self) -> int:
        return sum(self.removable.values())


def plan_of(run: Run, keep_best: int = 1, keep_optimizer: bool = False) -> Plan:
    """Return what of a run can go, and what it frees. Nothing is changed."""
    if reason := _why_kept(run):
        return Plan(run, reason)
    return Plan(run, removable={path: _size(path) for path in _removable(run.folder, keep_best, keep_optimizer)})


def _why_kept(run: Run) -> str:
    parent = run.folder.parent
    if run.state == "running":
        return "a process holds it"
    if run.state not in ENDED:
        return f"{run.state}: a resume needs all of it"
    if is_run(parent) and run.folder in parts(parent) and not (parent / RESULT).is_file():
        return f"part of {parent.name}, which has not ended"
    return ""


def _removable(folder: Path, keep_best: int, keep_optimizer: bool) -> Iterator[Path]:
    checkpoints = folder / "checkpoints"
    if not (is_whole(checkpoints / "last") and is_whole(checkpoints / "best-1")):
        # Names that a kill between two renames left are for a resume to mend.
        return
    for path in sorted(checkpoints.iterdir()):
        best = BEST.fullmatch(path.name)
        if (best and int(best[1]) > keep_best) or (path.name.startswith(".") and path.is_dir()):
            yield path
    for name in () if keep_optimizer else (OPTIMIZER, METHOD):
        if (path := checkpoints / "last" / name).is_file():
            yield path


def _size(path: Path) -> int:
    if path.is_file():
        return path.stat().st_size
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


def clean(plan: Plan) -> int:
    """Remove what the plan says while holding the run's folder; returns the bytes freed.

    Raises UserError where a process has taken the folder, or the run is another than the plan was made for.
    """
    with _held(plan.run.folder):
        if not (plan.run.folder / RESULT).is_file() or not (plan.run.folder / CONFIG).is_file():
            raise UserError(f"{plan.run.folder} was started again meanwhile; nothing of it was removed")
        freed = 0
        for path, size_bytes in plan.removable.items():
            remove(path)
            freed += size_bytes
    return freed


def clean_runs(runs: Sequence[Run], keep_best: int, keep_optimizer: bool, confirmed: bool) -> list[str]:
    """Print what each run would free, and free it where that is confirmed; returns what could not be done."""
    plans = [plan_of(run, keep_best, keep_optimizer) for run in runs]
    table = table_of([("run", False), ("state", False), ("MB", True), ("what", False)])
    for plan in plans:
        shown = plan.kept_because or ", ".join(
            str(path.relative_to(plan.run.folder / "checkpoints")) for path in plan.removable
        )
        table.add_row(path_text(plan.run.folder), plan.run.state, f"{plan.size_bytes / 1e6:,.1f}", shown or "nothing")
    print_table(table, "")
    if not confirmed:
        total_mb = sum(plan.size_bytes for plan in plans) / 1e6
        print_table(f"{total_mb:,.1f} MB can be freed; nothing was removed: add --yes to remove it")
        return []
    freed, problems = 0, []
    for plan in plans:
        try:
            freed += clean(plan) if plan.removable else 0
        except UserError as error:
            problems += error.problems
    print_table(f"{freed / 1e6:,.1f} MB freed")
    return problems


@contextmanager
def _held(folder: Path) -> Iterator[None]:
    """Hold the lock of a run, and of the one that it is a part of, without waiting."""
    with ExitStack() as held:
        for place in (folder, folder.parent):
            if place != folder and not (place / LOCK).exists():
                continue
            try:
                held.enter_context(hold_lock(place / LOCK, wait_s=0))
            except Locked:
                raise UserError(f"{place} is held by a process; wait for it, then clean again") from None
        yield
