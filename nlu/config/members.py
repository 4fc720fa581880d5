"""The sets of a mixture, each with its task, as ordinary configurations of one set and one task.

This module imports nothing heavy: rules are checked, and runs are told apart, by it.
"""

import re
from collections.abc import Mapping
from typing import Any

from nlu.config.errors import UserError
from nlu.config.signature import read_constants

MIXTURE = "nlu.data.mixture.Mixture"
COMPOSITE = "nlu.tasks.composite.Composite"
DEFAULT_LOSS = "nlu.losses.cross_entropy.CrossEntropy"
TARGET = "_target_"
MEAN = "mean"
"""the metric of all heads together: the mean of the default metrics of their tasks"""
PARTS_OF_TASK = {"task": "tasks", "loss": "losses", "head": "heads"}
"""groups that each head has its own of, and where task=composite keeps them"""


def is_mixture(config: Mapping[str, Any]) -> bool:
    """Whether a plain configuration is of several training sets."""
    data = config.get("data")
    return isinstance(data, Mapping) and data.get(TARGET) == MIXTURE


def is_composite(config: Mapping[str, Any]) -> bool:
    """Whether a plain configuration is of several tasks."""
    task = config.get("task")
    return isinstance(task, Mapping) and task.get(TARGET) == COMPOSITE


def names_of(config: Mapping[str, Any]) -> list[str]:
    """Return the names of the sets of a mixture; none of one that is not."""
    sets = config["data"].get("sets") if is_mixture(config) else None
    return list(sets) if isinstance(sets, Mapping) else []


def member_of(config: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the configuration of one set of a mixture, with its own task, loss and head.

    A task without a loss in task.losses has that which it names as its own; without a head it has the run's. The metric
    that decides is left open, since a mixture's names the set as well.
    """
    own = {**config, "data": config["data"]["sets"][name]}
    for group, key in PARTS_OF_TASK.items() if is_composite(config) else ():
        if (node := (config["task"].get(key) or {}).get(name)) is not None:
            own[group] = node
        elif group == "loss":
            own["loss"] = {TARGET: own_loss_of(own["task"])}
    own["trainer"] = {**config["trainer"], "major_metric": None}
    return own


def own_loss_of(task: Mapping[str, Any]) -> str:
    """Return the dotted name of the loss that a task has where none is chosen."""
    try:
        return str(read_constants(task[TARGET]).get("own_loss", DEFAULT_LOSS))
    except (UserError, KeyError, TypeError):
        # What is wrong with the task is reported by itself.
        return DEFAULT_LOSS


def own_name(metric: str) -> str:
    """Return what a metric is called by its task: a mixture's may stand behind the name of a set, as in news/loss."""
    return metric.rpartition("/")[2]


def keys_of(name: str, text: str) -> str:
    """Return what is said of a configuration that `member_of` gave, with the keys of the one that it was taken
    from."""
    whose = {group: f"task.{key}.{name}" for group, key in PARTS_OF_TASK.items()}
    whose["data"] = f"data.sets.{name}"

    def path(found: re.Match[str]) -> str:
        return whose[found[0]]

    return re.sub(rf"(?<![\w./-])({'|'.join(whose)})(?=\.\w| is |=)", path, text)
