"""A process of a shared study: `python study_worker.py STORAGE STUDY TRIALS` asks, reports, and tells or prunes.

A trial's value after `step` is x * step; it knows by a user attribute which process ran it.
"""

import os
import sys

import optuna

from nlu.search.pruners import HalvingPruner
from nlu.search.storage.open_study import open_storage

STEPS = 8
HYPERBAND = {"name": "hyperband", "min_resource": 2, "max_resource": STEPS, "reduction_factor": 2}


def main(storage_url: str, study_name: str, trials: str) -> None:
    """Run this many trials."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    storage = open_storage(storage_url)
    study = optuna.load_study(
        study_name=study_name, storage=storage, sampler=optuna.samplers.RandomSampler(),
        pruner=HalvingPruner(HYPERBAND, storage),  # type: ignore[arg-type]
    )  # fmt: skip
    for _ in range(int(trials)):
        trial = study.ask()
        trial.set_user_attr("process", os.getpid())
        x = trial.suggest_float("x", 0, 1)
        state = optuna.trial.TrialState.COMPLETE
        step = 0
        for step in range(1, STEPS + 1):
            trial.report(x * step, step)
            if trial.should_prune():
                state = optuna.trial.TrialState.PRUNED
                break
        study.tell(trial, None if state == optuna.trial.TrialState.PRUNED else x * step, state=state)


if __name__ == "__main__":
    main(*sys.argv[1:])
