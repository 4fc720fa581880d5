"""Stop trials of a search for good, whether the search runs or not: `python -m nlu.jobs FOLDER --stop NUMBER`."""

import json
import time
from collections.abc import Sequence
from pathlib import Path

from nlu.config.errors import UserError
from nlu.config.words import numbered
from nlu.sweeps.steps import STOP
from nlu.sweeps.storage import JOURNAL, open_storage, storage_url

SEARCH = "search.json"
"""in the folder of a search: its study and storage"""


def stop_trials(folder: Path, numbers: Sequence[int]) -> list[int]:
    """Note in the storage of a search that these trials are stopped for good, and return those that had not ended.

    Their jobs end at their next report, and the search closes the trials as pruned, now or when it continues. Raises
    UserError, before anything is written, if the folder holds no search or a number is unknown.
    """
    import optuna
    from optuna.exceptions import UpdateFinishedTrialError

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    if not (folder / SEARCH).is_file():
        raise UserError(f"{folder} holds no search; --stop ends trials of one, and --cancel jobs of a grid")
    held = json.loads((folder / SEARCH).read_text(encoding="utf-8"))
    # A journal inside the folder moves with it.
    url = storage_url(None, folder) if (folder / JOURNAL).is_file() else held["storage"]
    storage = open_storage(url, is_known=True)
    try:
        study_id = storage.get_study_id_from_name(held["study"])
    except KeyError:
        raise UserError(f"{folder} names the study {held['study']}, which its storage {url} lacks") from None
    trials = {trial.number: trial for trial in storage.get_all_trials(study_id, deepcopy=False)}
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
            storage.set_trial_user_attr(trials[number]._trial_id, STOP, {"time_s": time.time()})
        except UpdateFinishedTrialError:
            # It has just ended.
            continue
        found.append(number)
    return found
