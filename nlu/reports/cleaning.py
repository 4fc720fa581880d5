"""Freeing disk space in run folders.

A run that has ended, complete or pruned, keeps its best checkpoint and everything that `RUN/last` predicts with: the
weights, their moving average and the state. Removed are further best checkpoints, the optimizer's state and the
method's parameters in `last`, which only a longer training from there needs, and remains of interrupted saves. A run
that has not ended, one that a process holds, and parts of a command that has not ended are left as they are, since a
resume needs all of them.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from nlu.config.errors import UserError
from nlu.config.sentences import path_text
from nlu.display.console_tables import numbers, print_table, table_of, texts
from nlu.reports.runs import CONFIG, LOCK, RESULT, RunRecord, is_run, parts
from nlu.runs.freeing import reason_without_best, size_of
from nlu.storage.locks import Locked, hold_lock
from nlu.storage.settle import is_whole, remove

ENDED = ("complete", "pruned")
OF_TRAINING = ("optimizer.safetensors", "method.safetensors", "parallel.safetensors")
BEST = re.compile(r"best-(\d+)")


@dataclass
class CleaningPlan:
    """What can be removed from one run."""

    run: RunRecord
    kept_because: str = ""
    """why nothing may be removed; empty otherwise"""
    removable: dict[Path, int] = field(default_factory=dict)
    """size in bytes of each file or folder"""

    @property
    def size_bytes(self) -> int:
        return sum(self.removable.values())


def plan_of(run: RunRecord, keep_optimizer: bool = False) -> CleaningPlan:
    """Return what can be removed from a run, with sizes. Nothing is changed."""
    if reason := _why_kept(run):
        return CleaningPlan(run, reason)
    return CleaningPlan(run, removable={path: size_of(path) for path in _removable(run.folder, keep_optimizer)})


def _why_kept(run: RunRecord) -> str:
    parent = run.folder.parent
    if run.state == "running":
        return "a process holds it"
    if run.state not in ENDED:
        return f"{run.state}: a resume needs all of it"
    if is_run(parent) and run.folder in parts(parent) and not (parent / RESULT).is_file():
        return f"part of {parent.name}, which has not ended"
    return ""


def _removable(folder: Path, keep_optimizer: bool) -> Iterator[Path]:
    checkpoints = folder / "checkpoints"
    keeps_best = reason_without_best(folder) is None
    if not is_whole(checkpoints / "last") or (keeps_best and not is_whole(checkpoints / "best-1")):
        # A kill between two renames left other names; a resume repairs them.
        return
    for path in sorted(checkpoints.iterdir()):
        best = BEST.fullmatch(path.name)
        # A folder with a dot in front is left over from a killed save; `last` and `best-1` are complete without it.
        if (best and int(best[1]) > 1) or (path.name.startswith(".") and path.is_dir()):
            yield path
    # `RUN/last` predicts without them; they are as large as the weights or larger.
    for name in () if keep_optimizer else OF_TRAINING:
        if (path := checkpoints / "last" / name).is_file():
            yield path


def clean(plan: CleaningPlan) -> int:
    """Remove what the plan lists, while holding the lock of the run; returns the bytes freed.

    Raises UserError if a process holds the folder, or if the run was started again after the plan was made.
    """
    with _held(plan.run.folder):
        # Checked again under the lock: between the plan and now, a longer training may have started in this folder.
        if not (plan.run.folder / RESULT).is_file() or not (plan.run.folder / CONFIG).is_file():
            raise UserError(f"{plan.run.folder} was started again meanwhile; nothing of it was removed")
        freed = 0
        for path, size_bytes in plan.removable.items():
            remove(path)
            freed += size_bytes
    return freed


def clean_runs(runs: Sequence[RunRecord], keep_optimizer: bool, confirmed: bool) -> list[str]:
    """Print what each run would free and, if `confirmed`, free it; returns a sentence for each failure."""
    # All sizes first: the table is complete before anything is removed.
    plans = [plan_of(run, keep_optimizer) for run in runs]
    table = table_of([*texts("run", "state"), *numbers("MB"), *texts("what")])
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
    """Hold the lock of a run, and of the run that it is a part of; raises UserError instead of waiting."""
    with ExitStack() as held:
        for place in (folder, folder.parent):
            # The parent may be any folder: its lock is taken if it exists, and never created.
            if place != folder and not (place / LOCK).exists():
                continue
            try:
                held.enter_context(hold_lock(place / LOCK, wait_s=0))
            except Locked:
                raise UserError(f"{place} is held by a process; wait for it, then clean again") from None
        yield
