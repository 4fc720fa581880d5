"""Whether a study belongs to this search: what identifies it, and what may change when it continues."""

from collections.abc import Mapping, Sequence
from typing import Any

from optuna.study import Study
from optuna.trial import FrozenTrial

from nlu.config.errors import UserError
from nlu.config.words import counted
from nlu.sweeps.brackets import PRUNER
from nlu.sweeps.goals import Goals
from nlu.sweeps.schedulers.scheduler import PAUSING
from nlu.sweeps.space import space_differences
from nlu.sweeps.steps import PART_ENDS, PART_VALUES

SPACE, SHARED, FOLDER, SAMPLER = "space", "shared", "folder", "sampler"
"""user attributes of a study: the space, the values that all trials share, the sweep folder, the name and parameters of
the sampler"""


def refuse_another(
    study: Study, where: str, now: Mapping[str, Any], direction: str, settings: Mapping[str, Any]
) -> None:
    """Raise UserError if the attributes of a study are not those of a search with the attributes `now`."""
    before = study.user_attrs
    # A journal inside the folder moves with it.
    if before[FOLDER] != now[FOLDER] and settings["storage"] is not None:
        raise UserError(
            f"{where} belongs to the sweep folder {before[FOLDER]}, not {now[FOLDER]}; set hydra.sweep.dir to that "
            "folder to continue it, or hydra.sweeper.study_name to another name"
        )
    if study.direction.name.lower() != direction:
        raise UserError(f"{where} is to {study.direction.name.lower()}, this search to {direction}")
    # With only another name its trials would have the folders of this search.
    named = " and hydra.sweeper.study_name" if settings["study_name"] else ""
    remedy = f"write the same to continue it, or choose another hydra.sweep.dir{named}"
    if found := space_differences(before[SPACE], now[SPACE]):
        raise UserError(*found, summary=f"{where} draws from another space", remedy=remedy)
    if found := space_differences(before[SHARED], now[SHARED], absent="absent"):
        raise UserError(*found, summary=f"{where} has other values that all its trials share", remedy=remedy)
    if (before_goals := Goals.of(before)) != (now_goals := Goals.of(now)):
        raise UserError(
            f"{where} has {before_goals.words}, this search {now_goals.words}, and trials that have ended were "
            f"measured and judged by the former; {remedy}"
        )
    old, new = (spec["name"] for spec in (before.get(PRUNER, now[PRUNER]), now[PRUNER]))
    if (old in PAUSING) != (new in PAUSING):
        raise UserError(
            f"{where} has the pruner {old}, this search {new}, but only one of the two pauses trials, and trials of "
            f"the other kind do not continue; {remedy}"
        )


def _without_budget(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return what decides about trials: more examples in all only continue the search."""
    return {key: value for key, value in spec.items() if key != "max_examples"}


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return warnings about another sampler or pruner than so far."""
    found = []
    for key in (SAMPLER, PRUNER):
        old, new = before.get(key, now[key]), now[key]
        if key == SAMPLER:
            # Former versions stored the names of NSGA-II and -III in full.
            old = {**old, "name": short_name(old["name"])}
        if key == SAMPLER and now[PRUNER]["name"] == "freeze_thaw":
            # Of the sampler, it uses only the seed and the prior.
            kept = [{name: each[name] for name in ("seed", "prior") if name in each} for each in (old, new)]
            old, new = ({"name": new["name"], **each} for each in kept)
        if _without_budget(old) != _without_budget(new):
            change = " so far, ".join(_described(spec, besides) for spec, besides in ((old, new), (new, old)))
            found.append(f"the search had another {key}: {change} from now on")
    return found


def short_name(sampler: str) -> str:
    """Return the name of a sampler, of which NSGA-II and -III are functions that make them."""
    return sampler.removesuffix("Sampler").removeprefix("create_").removesuffix("_sampler").lower()


def without_means(trials: Sequence[FrozenTrial]) -> list[str]:
    """Return a warning if folds of trials ended under a former version, which did not note their means."""
    count = sum(
        not {str(end) for end in trial.user_attrs.get(PART_ENDS, [])} <= trial.user_attrs.get(PART_VALUES, {}).keys()
        for trial in trials
    )
    if not count:
        return []
    return [
        f"{counted(count, 'trial')} ended folds under a former version of nlu; there the search compares their last "
        "values, and of folds that end now the mean of the best values"
    ]


def _described(spec: Mapping[str, Any], besides: Mapping[str, Any]) -> str:
    """Return the name of a sampler or pruner and, if both have the same name, the parameters that differ."""
    if spec["name"] != besides["name"]:
        return str(spec["name"])
    differing = [f"{key}={value}" for key, value in spec.items() if value != besides.get(key)]
    return f"{spec['name']} ({', '.join(differing)})"
