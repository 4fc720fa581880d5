"""How much of what the values of a study vary is due to each parameter, by Optuna, or why this cannot be said."""

import math
import warnings

import optuna

from nlu.config.words import counted
from nlu.display.tables import metric_text

MIN_TRIALS = 2
"""complete trials from which importances are estimated"""


def importances_of(study: optuna.Study) -> tuple[dict[str, float], str]:
    """Return the share of each parameter, largest first, or none and the reason.

    This is Optuna's PED-ANOVA (Watanabe et al. 2023, https://arxiv.org/abs/2304.10255), which compares the distribution
    of a parameter among the best trials with that among all. Only complete trials count; few of them say little.
    """
    from optuna.importance import get_param_importances
    from optuna.trial import TrialState

    done = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    if len(done) < MIN_TRIALS:
        return {}, f"Importances need {MIN_TRIALS} complete trials; there are {len(done)}."
    if len({trial.value for trial in done}) < 2:
        what = counted(len(done), "complete trial")
        return {}, f"All {what} have the same value, {metric_text(done[0].value)}, so no importance can be computed."
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = get_param_importances(study)
    except (ValueError, RuntimeError) as error:
        return {}, f"Optuna could not estimate importances: {error}."
    if not found or not all(math.isfinite(value) for value in found.values()) or sum(found.values()) <= 0:
        return {}, "These trials do not determine importances."
    return found, f"Estimated by PED-ANOVA from {len(done)} complete trials."
