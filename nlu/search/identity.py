"""Whether a study belongs to this search: what identifies it, and what may change when it continues."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from optuna.study import Study

from nlu.config.errors import UserError
from nlu.config.schema import has_effect
from nlu.search.goals import Goals
from nlu.search.pruners import PRUNER
from nlu.search.schedulers.scheduler import PAUSING
from nlu.search.space import space_differences
from nlu.search.storage.opening import held_search

SPACE, SHARED, FOLDER = "space", "shared", "folder"
"""user attributes of a study: the space, the values that all trials share, the sweep folder"""


def refuse_another(
    study: Study, where: str, now: Mapping[str, Any], direction: str, settings: Mapping[str, Any]
) -> None:
    """Raise UserError if the attributes of a study are not those of a search with the attributes `now`."""
    before = study.user_attrs
    # A folder that holds the search may have been moved; then its study is the same one.
    if before[FOLDER] != now[FOLDER] and held_search(Path(now[FOLDER])) is None:
        raise UserError(
            f"{where} belongs to the sweep folder {before[FOLDER]}, not {now[FOLDER]}; set hydra.sweep.dir to that "
            "folder to continue it, or hydra.sweeper.study_name to another name"
        )
    if (known := study.directions[0].name.lower()) != direction:
        raise UserError(f"{where} is to {known}, this search to {direction}")
    # With only another name its trials would have the folders of this search.
    named = " and hydra.sweeper.study_name" if settings["study_name"] else ""
    remedy = f"write the same to continue it, or choose another hydra.sweep.dir{named}"
    if found := space_differences(before[SPACE], now[SPACE]):
        raise UserError(*found, summary=f"{where} draws from another space", remedy=remedy)
    # Here, since the attributes of a study that an earlier version began have all keys.
    shared = ({key: value for key, value in each[SHARED].items() if has_effect(key)} for each in (before, now))
    if found := space_differences(*shared, absent="absent"):
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


def short_name(sampler: str) -> str:
    """Return the name of a sampler, of which NSGA-II and -III are functions that make them."""
    return sampler.removesuffix("Sampler").removeprefix("create_").removesuffix("_sampler").lower()
