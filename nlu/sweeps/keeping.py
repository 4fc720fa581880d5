"""Which checkpoints of a search's trials stay on the disk, and how much disk they need.

What may go is a function of the trials in the storage, so a search that is killed and started again decides alike.
Only trials that are decided lose anything: this search never continues a trial that is complete, pruned or failed.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from optuna.trial import FrozenTrial, TrialState

from nlu.config.schema import num_repeats
from nlu.config.words import counted
from nlu.runs.freeing import BEST, CHECKPOINTS, run_folders, size_of
from nlu.sweeps.goals import NO_GOALS, Goals, best_of, front_of

ALL, RUNGS, ONLY_BEST = "all", "rungs", "best"
KEEP = [ALL, RUNGS, ONLY_BEST]
DECIDED = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL)
ADAMW, NO_ADAPTER = "nlu.optim.adamw.AdamW", "nlu.models.adapters.none.NoAdapter"
WEIGHTS = ("model.safetensors", "pytorch_model.bin")


def freed(trials: Iterable[FrozenTrial], keep: str, *, maximize: bool, goals: Goals = NO_GOALS) -> dict[int, bool]:
    """Return by number each trial whose checkpoints may go, and whether its best ones stay.

    `rungs`: the best ones of trials that passed all rungs stay; `best`: those of the best trial, with several
    objectives of all on the front, and, until one that keeps the constraints is complete, of all pruned ones.
    """
    decided = [trial for trial in trials if trial.state in DECIDED]
    if keep == RUNGS:
        return {trial.number: trial.state == TrialState.COMPLETE for trial in decided}
    if keep != ONLY_BEST:
        return {}
    best = best_of(decided, goals, maximize=maximize)
    if best is None:
        # All may end like this, and then the weights of pruned trials are the only ones.
        return {trial.number: trial.state == TrialState.PRUNED for trial in decided}
    kept = front_of(decided, goals, maximize=maximize) or [best.number]
    return {trial.number: trial.number in kept for trial in decided}


@dataclass(frozen=True)
class Sizes:
    """The bytes of the checkpoints of one run."""

    last: int
    best: int
    """of all best checkpoints together"""
    runs: int = 1
    """runs of a trial: folds times seeds"""

    def needed(self, keep: str, n_trials: int, at_once: int) -> int:
        """Return the most bytes that a search needs, if every trial completes."""
        whole, at_once = self.runs * (self.last + self.best), min(n_trials, at_once)
        # While `last` is replaced, there are two of it.
        running = at_once * (whole + self.last)
        if keep == ALL:
            return n_trials * whole + at_once * self.last
        kept = n_trials - at_once if keep == RUNGS else 1
        return kept * self.runs * self.best + running


def expected(configs: Sequence[Mapping[str, Any]]) -> Sizes | None:
    """Return the largest sizes that trials of these configurations will have, from the file of their weights.

    None if that is not known before the first trial: weights that are random, not local, or partly trained.
    """
    known = [sizes for sizes in map(_expected, configs) if sizes is not None]
    if not known or len(known) < len(configs):
        return None
    return max(known, key=lambda sizes: sizes.runs * (sizes.last + sizes.best))


def _expected(config: Mapping[str, Any]) -> Sizes | None:
    trainer, pretrained = config["trainer"], config["model"].get("pretrained")
    if not isinstance(pretrained, str) or config["optimizer"]["_target_"] != ADAMW:
        return None
    # Otherwise the optimizer has numbers for a part of the weights only.
    if config["adapter"]["_target_"] != NO_ADAPTER or config["optimizer"]["freeze"]:
        return None
    folder = Path(pretrained).expanduser()
    places = [folder / name for name in WEIGHTS] + [folder / CHECKPOINTS / "best-1" / WEIGHTS[0]]
    weights = next((path.stat().st_size for path in places if path.is_file()), None)
    if weights is None:
        return None
    # AdamW has two numbers for each weight.
    last = weights * (3 + (trainer["ema_decay"] > 0))
    return Sizes(last, weights * trainer["keep_best"], num_repeats(config))


def measured(run_dir: Path) -> Sizes | None:
    """Return the sizes of a trial that has ended, in its folder here; None without checkpoints."""
    if not run_dir.is_dir():
        return None
    found = [folder / CHECKPOINTS for folder in run_folders(run_dir) if (folder / CHECKPOINTS / "last").is_dir()]
    if not found:
        return None
    best = [sum(size_of(path) for path in folder.iterdir() if BEST.fullmatch(path.name)) for folder in found]
    return Sizes(max(size_of(folder / "last") for folder in found), max(best), len(found))


def held(sweep_dir: Path) -> int:
    """Return the bytes of all checkpoints of trials that are in the folder of a search."""
    found = [path for path in sweep_dir.glob("*") if path.name.isdigit() and path.is_dir()]
    return sum(size_of(folder / CHECKPOINTS) for path in found for folder in run_folders(path))


def sentences(
    sizes: Sizes, keep: str, n_trials: int, at_once: int, bucket: str | None, *, free: int, there: int
) -> list[str]:
    """Return the line about the disk that a search needs and, if less is `free`, a warning; both in bytes.

    Its checkpoints use `there` bytes already.
    """
    need = sizes.needed(keep, n_trials, at_once)
    runs = f" of {counted(sizes.runs, 'run')}" if sizes.runs > 1 else ""
    mirrored = f", and as much in {bucket}" if bucket else ""
    lines = [
        f"disk: at most about {size_text(need)} with hydra.sweeper.keep={keep}{mirrored}; each trial{runs}: last "
        f"{size_text(sizes.last)}, best {size_text(sizes.best)}"
    ]
    if need - there > free:
        less = {other: sizes.needed(other, n_trials, at_once) for other in KEEP[KEEP.index(keep) + 1 :]}
        others = [f"hydra.sweeper.keep={other} ({size_text(size)})" for other, size in less.items() if size < need]
        remedy = f", or set {' or '.join(others)}" if others else ""
        lines.append(
            f"warning: the search may need {size_text(need - there)} more, but {size_text(free)} are free; free some "
            f"space{remedy}"
        )
    return lines


def size_text(size_bytes: int) -> str:
    """Return a size with a unit, such as 1.2 GB."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6)):
        if size_bytes >= factor:
            return f"{size_bytes / factor:.1f} {unit}"
    return f"{size_bytes / 1e3:.1f} kB"


def to_json(sizes: Sizes) -> dict[str, int]:
    return asdict(sizes)
