"""Stop trials of a search for good, whether the search runs or not: `python -m nlu.jobs FOLDER --stop NUMBER`."""

import time
from collections.abc import Sequence
from pathlib import Path

from nlu.config.errors import UserError
from nlu.config.words import numbered
from nlu.search.steps import STOP
from nlu.search.storage.opening import study_in


def stop_trials(folder: Path, numbers: Sequence[int]) -> list[int]:
    """Note in the storage of a search that these trials are stopped for good, and return those that had not ended.

    Their jobs end at their next report, and the search closes the trials as pruned, now or when it continues. Raises
    UserError, before anything is written, if the folder holds no search or a number is unknown.
    """
    import optuna
    from optuna.exceptions import UpdateFinishedTrialError

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = study_in(folder)
    trials = {trial.number: trial for trial in study.get_trials(deepcopy=False)}
    if unknown := sorted(set(numbers) - trials.keys()):
        known = (
            f"its trials are 0 to {max(trials)}" if len(trials) > 1 else "only trial 0" if trials else "it has none yet"
        )
        raise UserError(f"{folder} has no {numbered('trial', unknown)}; {known}")
    found = []
    for number in dict.fromkeys(numbers):
        if trials[number].state.is_finished():
            continue
        try:
            study._storage.set_trial_user_attr(trials[number]._trial_id, STOP, {"time_s": time.time()})
        except UpdateFinishedTrialError:
            # It has just ended.
            continue
        found.append(number)
    return found
