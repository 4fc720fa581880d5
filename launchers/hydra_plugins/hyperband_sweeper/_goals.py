"""The objectives and constraints of a search, against its other settings, and what it says of them."""

from collections.abc import Mapping, Sequence
from typing import Any

from nlu.config.errors import UserError
from nlu.config.words import listed
from nlu.sweeps import preflight, resources
from nlu.sweeps.goals import CONSTRAINTS, OBJECTIVES, Goals, read_goals


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
    if goals.objectives and _is_cma(settings):
        problems.append(f"hydra/sweeper/sampler is cmaes, which has one objective, but {OBJECTIVES} is set; take tpe")
    if "size_mb" in goals.quantities and any(not config["trainer"]["save"] for config in configs):
        problems.append(
            "size_mb is that of the weights that a trial saves, but trainer.save is false; set it to true, or take "
            "parameters instead"
        )
    if problems:
        raise UserError(*problems)
    return goals


def goal_warnings(goals: Goals, settings: Mapping[str, Any], pruner: str, *, at_once: int) -> list[str]:
    """Return what the user should know before the first trial."""
    found = []
    if goals.objectives and pruner != "none":
        found.append(
            f"hydra.sweeper.pruner={pruner} stops trials by the metric only, so the front may lack some that are good "
            f"in {listed(list(goals.objectives), 3)}; hydra.sweeper.pruner=none trains each to its end"
        )
    if at_once > 1 and "latency_ms" in goals.quantities:
        found.append(
            f"{at_once} trials at a time slow each other down, also while latency_ms is measured; "
            "hydra.sweeper.n_jobs=1 measures them alone"
        )
    return found


def announced(goals: Goals, direction: str) -> list[str]:
    """Return the lines that a search prints before its first trial."""
    lines = []
    if goals.objectives:
        others = (f"{'maximize' if more else 'minimize'} {name}" for name, more in goals.objectives.items())
        lines.append(f"objectives: {', '.join([f'{direction} the metric', *others])}")
    if goals.constraints:
        lines.append(f"constraints: {', '.join(each.text for each in goals.constraints)}")
    return lines


def _is_cma(settings: Mapping[str, Any]) -> bool:
    sampler = settings["sampler"]
    return isinstance(sampler, Mapping) and str(sampler.get("_target_")).endswith(".CmaEsSampler")
