"""The sets of a mixture, each with its task, as ordinary configurations of one set and one task.

This module imports nothing heavy, because validation needs it.
"""

import re
from collections.abc import Mapping

from nlu.config.choices import constant_of, target_of
from nlu.config.targets import TARGET
from nlu.config.types import Config, ConfigLike

MEAN = "mean"
"""the metric of all heads together: the mean of the default metrics of their tasks"""
PARTS_OF_TASK = {"task": "tasks", "loss": "losses", "head": "heads"}
"""The groups that each set may choose, and the keys of task=composite with these choices."""


def metrics_of(task: ConfigLike, constants: ConfigLike) -> list[str]:
    """Return the metrics that a task with these keys and class constants can have."""
    by_key = constants.get("metrics_by_key", {}).items()
    return [
        *constants.get("metrics", ()),
        *constants.get("binary_metrics", ()),
        *(name for key, names in by_key if task.get(key) for name in names),
    ]


def is_mixture(config: Mapping[str, object]) -> bool:
    """Return whether a plain configuration has several training sets."""
    return constant_of(config.get("data"), "has_sets") is True


def is_composite(config: Mapping[str, object]) -> bool:
    """Return whether a plain configuration has several tasks."""
    return constant_of(config.get("task"), "has_tasks") is True


def names_of(config: ConfigLike) -> list[str]:
    """Return the names of the sets of a mixture; [] for other data."""
    sets = config["data"].get("sets") if is_mixture(config) else None
    return list(sets) if isinstance(sets, Mapping) else []


def member_of(config: ConfigLike, name: str) -> Config:
    """Return the configuration of one set of a mixture, with its own task, loss and head.

    A task without a loss in task.losses has its own loss, and one without a head the run's. The major metric becomes
    null, since that of a mixture names a set.
    """
    own = {**config, "data": config["data"]["sets"][name]}
    for group, key in PARTS_OF_TASK.items() if is_composite(config) else ():
        if (node := (config["task"].get(key) or {}).get(name)) is not None:
            own[group] = node
        elif group == "loss":
            own["loss"] = {TARGET: own_loss_of(own["task"])}
    own["trainer"] = {**config["trainer"], "major_metric": None}
    return own


def default_loss() -> str:
    """Return the dotted name of the loss that a run has by default."""
    return target_of("loss", "cross_entropy") or ""


def own_loss_of(task: Mapping[str, object]) -> str:
    """Return the dotted name of the loss that a task has by default."""
    return constant_of(task, "own_loss") or default_loss()


def own_name(metric: str) -> str:
    """Return the task's name of a metric: that of a mixture may begin with the name of a set, as in news/loss."""
    return metric.rpartition("/")[2]


def keys_of(name: str, text: str) -> str:
    """Return a message about a configuration of `member_of` with the keys of the mixture's configuration."""
    whose = {group: f"task.{key}.{name}" for group, key in PARTS_OF_TASK.items()}
    whose["data"] = f"data.sets.{name}"

    def path(found: re.Match[str]) -> str:
        return whose[found[0]]

    # Only where a key begins: "data" within a path or a longer word stays.
    return re.sub(rf"(?<![\w./-])({'|'.join(whose)})(?=\.\w| is |=)", path, text)
