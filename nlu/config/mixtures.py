"""A mixture: each set with its task as an ordinary configuration, and the rules that hold besides those of one set.

This module imports nothing heavy, because validation needs it.
"""

import re
from collections.abc import Callable, Iterator, Mapping

from nlu.config.choices import RUN, choice_of, constant_of, target_of, with_defaults
from nlu.config.keys import facts_of
from nlu.config.nearest import hint
from nlu.config.targets import TARGET
from nlu.config.types import Config, ConfigLike

MEAN = "mean"
"""the metric of all heads together: the mean of the default metrics of their tasks"""
PARTS_OF_TASK = {"task": "tasks", "loss": "losses", "head": "heads"}
"""The groups that each set may choose, and the keys of task=composite with these choices."""

NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")


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


def mixture_problems(config: Config, of_one_set: Callable[[Config], list[str]]) -> Iterator[str]:
    """Yield each broken rule, as key, value, rule and remedy; `of_one_set` checks a set with its task."""
    if not (is_mixture(config) and is_composite(config)):
        yield (
            "task is composite, but data is not a mixture; set data=mixture, or the task of these rows"
            if is_composite(config)
            else "data is mixture, but task is not composite; set task=composite, which has a task for each set"
        )
        return
    names = names_of(config)
    # If names do not fit, the sets are not checked by themselves, since each needs its task.
    own = list(_names(config, names))
    yield from own
    yield from _groups(config)
    yield from _loss(config, names)
    yield from _major_metric(config, names)
    for name in names if not own else ():
        yield from (keys_of(name, text) for text in of_one_set(with_defaults(member_of(config, name), RUN)))


def _names(config: ConfigLike, names: list[str]) -> Iterator[str]:
    if not names:
        yield "data.sets is {}, which names no set; add one with +data@data.sets.NAME=CHOICE"
    for name in names:
        if NAME.fullmatch(name) is None:
            yield (
                f"data.sets.{name}: a set cannot be called {name}; begin with a letter, and use letters, digits and _"
            )
    task = config["task"]
    tasks = task["tasks"] if isinstance(task["tasks"], Mapping) else {}
    for name in names:
        if name not in tasks:
            yield f"task.tasks has no {name}, a set of data.sets; add it with +task@task.tasks.{name}=CHOICE"
    for key in (*PARTS_OF_TASK.values(), "weights"):
        for name in task[key] or {} if isinstance(task[key], Mapping) else ():
            if name not in names:
                yield f"task.{key}.{name}: data.sets has no {name}; {hint(name, names)}; set one of these"


def _groups(config: ConfigLike) -> Iterator[str]:
    if config["folds"]["count"] is not None:
        yield f"folds.count is {config['folds']['count']}, but a mixture cannot be divided into folds; set folds=none"
    if config["folds"]["group_by"] is not None:
        yield f"folds.group_by is {config['folds']['group_by']}, but rows of a mixture have no groups; leave it out"
    if config["tokenizer"].get("vocab") is None and config["model"].get("pretrained") is None:
        yield (
            "tokenizer.vocab is null and model.pretrained too, but the sets of a mixture share a vocabulary, which is "
            "not built from their rows; set tokenizer.vocab to a vocab.txt"
        )
    for name, node in config["data"]["sets"].items() if names_of(config) else ():
        if isinstance(node, Mapping) and node.get("stream"):
            yield f"data.sets.{name}.stream is {node['stream']}, but a mixture is prepared as a whole; leave it out"


def _loss(config: ConfigLike, names: list[str]) -> Iterator[str]:
    """Yield a choice of `loss`, which has no effect. A task's own loss is accepted: choosing the task may set it."""
    loss = str(config["loss"].get(TARGET))
    tasks = [node for name in names if isinstance(node := (config["task"]["tasks"] or {}).get(name), Mapping)]
    if loss not in (default_loss(), *map(own_loss_of, tasks)):
        yield (
            f"loss is {choice_of('loss', loss)}, but with task=composite each task has its own loss; leave it out, and "
            "set task.losses.NAME to change the loss of a task"
        )


def _major_metric(config: ConfigLike, names: list[str]) -> Iterator[str]:
    metric = config["trainer"]["major_metric"]
    tasks = {
        name: (node, facts_of(node[TARGET]))
        for name in names
        if isinstance(node := (config["task"]["tasks"] or {}).get(name), Mapping)
    }
    known = [f"{name}/{each}" for name, (node, constants) in tasks.items() for each in metrics_of(node, constants)]
    if metric in (None, MEAN):
        own = {name: str(constants.get("default_metric")) for name, (_, constants) in tasks.items()}
        falling = [name for name, (_, constants) in tasks.items() if own[name] in constants.get("lower_is_better", ())]
        if falling:
            # The first one that rises is what most want, if there is one.
            usual = min(own, key=lambda name: name in falling)
            yield (
                f"trainer.major_metric is {metric or 'null'}, the mean of the tasks' own metrics, but lower values of "
                f"{own[falling[0]]}, that of {falling[0]}, are better; set trainer.major_metric=NAME/METRIC, such as "
                f"{usual}/{own[usual]}"
            )
        return
    if known and metric not in known:
        yield (
            f"trainer.major_metric is {metric}, but with several tasks it must be {MEAN} or NAME/METRIC; "
            f"{hint(metric, [MEAN, *known])}; set it to one of these, or null for the mean of their own metrics"
        )
