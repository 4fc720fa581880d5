"""Which checkpoints of a search's trials stay on the disk.

What may go is a function of the trials in the storage, so a search that is killed and started again decides alike.
Only trials that are decided lose anything: this search never continues a trial that is complete, pruned or failed.
"""

from collections.abc import Iterable

from optuna.trial import FrozenTrial, TrialState

from nlu.search.goals import NO_GOALS, Goals, best_of, front_of

ALL, RUNGS, ONLY_BEST = "all", "rungs", "best"
KEEP = [ALL, RUNGS, ONLY_BEST]
DECIDED = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL)


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
