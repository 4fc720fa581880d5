"""The objectives and constraints of a search, against its other settings, and what it says of them."""

from collections.abc import Mapping, Sequence
from typing import Any

from nlu.config.errors import UserError
from nlu.config.words import listed
from nlu.search import preflight, resources
from nlu.search.goals import CONSTRAINTS, OBJECTIVES, Goals, read_goals


def goals_of(settings: Mapping[str, Any], configs: Sequence[Mapping[str, Any]], *, hands_trial: bool) -> Goals:
    """Return the goals of a search. `configs` are trials of nlu.train, none of another program.

    Raises UserError with all problems.
    """
    if not settings["objectives"] and not settings["constraints"]:
        return Goals()
    if not hands_trial:
        key = OBJECTIVES if settings["objectives"] else CONSTRAINTS
        raise UserError(f"{key} is set, but the program has no key trial, so nothing is measured; leave it out")
    metric, metrics = preflight.metrics_of_trials(configs) if configs else (None, {})
    goals = read_goals(settings["objectives"], settings["constraints"], metric, metrics)
    problems = []
    if goals.objectives and resources.pauses(settings):
        problems.append(
            f"hydra.sweeper.pruner is {resources.pruner_name(settings)}, which continues the trials with the best "
            f"{metric or 'value'} only, but {OBJECTIVES} has {listed(list(goals.objectives), 3)} too; choose "
            "hydra.sweeper.pruner=none"
        )
    if "size_mb" in goals.quantities and any(not config["trainer"]["save"] for config in configs):
        problems.append(
            "size_mb is that of the weights that a trial saves, but trainer.save is false; set it to true, or take "
            "parameters instead"
        )
    if problems:
        raise UserError(*problems)
    return goals


def goal_warnings(goals: Goals, pruner: str) -> list[str]:
    """Return what the user should know before the first trial."""
    if not goals.objectives or pruner == "none":
        return []
    return [
        f"hydra.sweeper.pruner={pruner} stops trials by the metric only, so the front may lack some that are good "
        f"in {listed(list(goals.objectives), 3)}; hydra.sweeper.pruner=none trains each to its end"
    ]
