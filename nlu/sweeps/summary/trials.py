"""Read the trials of a study as the records behind the table, the figures and the page; the importance of its keys."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeGuard

from nlu.display.trials import SearchedKey, Summary, TrialRow, written
from nlu.sweeps.channel import OUTCOME

if TYPE_CHECKING:
    import optuna
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial

if TYPE_CHECKING:
    import optuna


STATES = {"COMPLETE": "complete", "PRUNED": "pruned", "FAIL": "failed", "RUNNING": "running", "WAITING": "waiting"}
"""our words for optuna's states"""
FOLDER = "folder"
"""user attribute of a study: the folder of its search"""


class OfNumbers(Protocol):
    """A distribution over numbers."""

    low: float
    high: float
    log: bool


def read_summary(study: optuna.Study) -> Summary:
    """Read all trials of a study."""
    from optuna.study import StudyDirection

    trials = study.get_trials(deepcopy=False)
    maximize = study.direction == StudyDirection.MAXIMIZE
    place = study.user_attrs.get(FOLDER)
    rows = [replace(row, folder=_folder_here(row, place)) for row in (_row(trial, maximize) for trial in trials)]
    params = list(_parameters(trials))
    return Summary(study.study_name, _metric_of(rows) or "value", maximize=maximize, trials=rows, params=params)


def _folder_here(row: TrialRow, place: str | None) -> str | None:
    """Return the folder of a trial's run: if it ran elsewhere, the folder to which it was copied back."""
    if row.folder and place and not Path(row.folder).is_dir() and (own := Path(place) / str(row.number)).is_dir():
        return str(own)
    return row.folder


def _metric_of(rows: list[TrialRow]) -> str | None:
    """Return the metric of the trials, from the first result that can be read here; None if none can."""
    for row in rows:
        path = Path(row.folder or "") / "result.json"
        if row.folder and path.is_file():
            best = json.loads(path.read_text(encoding="utf-8")).get("best") or {}
            if "metric" in best:
                return f"{best['set']}/{best['metric']}" if best.get("set") else best["metric"]
    return None


def _row(trial: FrozenTrial, maximize: bool) -> TrialRow:
    outcome: dict[str, Any] = trial.user_attrs.get(OUTCOME) or {}
    steps = [(step, value) for step, value in sorted(trial.intermediate_values.items()) if math.isfinite(value)]
    last_step = steps[-1][0] if steps else None
    state = STATES[trial.state.name]
    value = trial.values[0] if state == "complete" and trial.values else None
    if value is None and state != "failed":
        # The job wrote it, unless it still runs.
        best = (max if maximize else min)((value for _, value in steps), default=None)
        value = outcome.get("value", best)
    wall_s = outcome.get("wall_s") or (trial.duration.total_seconds() if trial.duration else None)
    return TrialRow(
        number=trial.number,
        state=state,
        value=value,
        sd=outcome.get("sd"),
        examples=outcome.get("examples") or last_step,
        wall_s=wall_s,
        params=dict(trial.params),
        steps=steps,
        folder=outcome.get("folder"),
        error=outcome.get("error") or "",
    )


def _parameters(trials: list[FrozenTrial]) -> Iterator[SearchedKey]:
    """Yield every key that any trial drew, with the bounds of all its distributions together."""
    held: dict[str, list[BaseDistribution]] = {}
    for trial in trials:
        for name, distribution in trial.distributions.items():
            held.setdefault(name, []).append(distribution)
    for name, distributions in held.items():
        numbers = [each for each in distributions if _is_of_numbers(each)]
        if len(numbers) == len(distributions):
            low, high = min(each.low for each in numbers), max(each.high for each in numbers)
            yield SearchedKey(name, "log" if numbers[0].log else "linear", float(low), float(high))
        else:
            listed = (choice for each in distributions for choice in getattr(each, "choices", ()))
            yield SearchedKey(name, "choice", choices=list(dict.fromkeys(map(written, listed))))


def _is_of_numbers(distribution: object) -> TypeGuard[OfNumbers]:
    """Whether a distribution has bounds; one that is not over numbers has choices."""
    return hasattr(distribution, "low")


MIN_TRIALS = 2


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
        return {}, "Importances need trials that differ; all complete ones have the same value."
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = get_param_importances(study)
    except (ValueError, RuntimeError) as error:
        return {}, f"Optuna could not estimate importances: {error}."
    if not found or not all(math.isfinite(value) for value in found.values()) or sum(found.values()) <= 0:
        return {}, "These trials do not determine importances."
    return found, f"Estimated by PED-ANOVA from {len(done)} complete trials."
