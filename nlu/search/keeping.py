"""Which checkpoints of a search's trials stay on the disk.

What may go is a function of the trials in the storage, so a search that is killed and started again decides alike.
Only trials that are decided lose anything: this search never continues a trial that is complete, pruned or failed.
"""

from optuna import Study
from optuna.trial import TrialState

from nlu.search.goals import best_trials

ALL, RUNGS, ONLY_BEST = "all", "rungs", "best"
KEEP = [ALL, RUNGS, ONLY_BEST]
DECIDED = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL)


def freed(study: Study, keep: str) -> dict[int, bool]:
    """Return by number each trial whose checkpoints may go, and whether its best ones stay.

    `rungs`: the best ones of trials that passed all rungs stay; `best`: those of the best trial, with several
    objectives of all on the front, and, until one that keeps the constraints is complete, of all pruned ones.
    """
    decided = study.get_trials(deepcopy=False, states=DECIDED)
    if keep == RUNGS:
        return {trial.number: trial.state == TrialState.COMPLETE for trial in decided}
    if keep != ONLY_BEST:
        return {}
    kept = {trial.number for trial in best_trials(study)}
    if not kept:
        # All may end like this, and then the weights of pruned trials are the only ones.
        return {trial.number: trial.state == TrialState.PRUNED for trial in decided}
    return {trial.number: trial.number in kept for trial in decided}
