"""The rules of tasks over classes and of pretraining, which validation calls with the whole configuration, before
anything heavy is imported."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from nlu.config.errors import UserError
from nlu.config.keys import facts_of
from nlu.config.nearest import require_known
from nlu.config.targets import TARGET
from nlu.config.types import ConfigLike
from nlu.data.data_rules import OF_ONE_DOCUMENT, halves_problem


def class_problems(config: ConfigLike, constants: ConfigLike) -> Iterator[str]:
    """Yield each broken rule as key, value, rule and remedy. A derived class may lack any of the keys."""
    task, loss = config["task"], config["loss"]
    threshold, fallback = task.get("threshold"), task.get("fallback")
    if "fallback" in task and threshold is not None:
        with suppress(UserError):
            if facts_of(loss[TARGET]).get("has_own_decision"):
                yield (
                    f"task.threshold is {_shown(threshold)}, but this loss decides by its own rule; set "
                    "task.threshold=null, and for loss=bce loss.threshold"
                )
    yield from threshold_problems(config, constants)
    if "fallback" in task and threshold == "auto" and fallback is None:
        yield (
            "task.threshold is auto, but task.fallback is null; set task.fallback to the class of texts below their "
            "threshold"
        )
    if fallback is not None and threshold is None:
        yield f"task.fallback is {fallback}, but task.threshold is null; set task.threshold, or task.fallback=null"
    if task.get("chosen_classes") == []:
        yield "task.chosen_classes is [], which names no class; name some classes, or set task.chosen_classes=null"
    # With data.labels as a list the classes are known before the rows are read.
    labels = config["data"].get("labels")
    if isinstance(labels, list):
        yield from _unknown(task, loss, [str(name) for name in labels])


def threshold_problems(config: ConfigLike, constants: ConfigLike) -> Iterator[str]:
    """Yield where keys say how thresholds are chosen that are not. A derived class may lack any of the keys."""
    task = config["task"]
    for key, otherwise in (("threshold_beta", 1.0), ("threshold_precision", None)):
        if task.get(key, otherwise) != otherwise and task.get("threshold") != "auto":
            yield (
                f"task.{key} is {task[key]}, but task.threshold is {_shown(task.get('threshold'))}; set "
                f"task.threshold=auto, or leave out task.{key}"
            )


def mlm_problems(config: ConfigLike, constants: ConfigLike) -> Iterator[str]:
    """Yield where the keys of a task of masked words are impossible. A derived class may lack any of them."""
    task = config["task"]
    if task.get("mask_fraction") == 0:
        yield "task.mask_fraction is 0, so no token is predicted; set it to a share of the tokens, such as 0.15"
    # Of two terms of the loss, only the second one has classes.
    if (weights := config["loss"].get("class_weights")) is not None:
        yield f"loss.class_weights is {_shown(weights)}, but words have no weights; set loss.class_weights=null"
    keep, replace = task.get("keep", 0), task.get("replace", 0)
    if keep + replace > 1:
        yield (
            f"task.keep is {keep} and task.replace is {replace}, more than all masked tokens together; set both so "
            "that their sum is at most 1"
        )


def structbert_problems(config: ConfigLike, constants: ConfigLike) -> Iterator[str]:
    """Yield where the keys of task=structbert are impossible, or the data has no documents."""
    yield from mlm_problems(config, constants)
    break_mode = config["data"].get("break_mode")
    if break_mode is None:
        yield "task=structbert needs documents, whose sentences have an order; set data=corpus"
    elif break_mode not in OF_ONE_DOCUMENT:
        yield halves_problem(break_mode)


def _unknown(task: ConfigLike, loss: ConfigLike, names: list[str]) -> Iterator[str]:
    given = {
        "task.threshold": task.get("threshold"),
        "task.chosen_classes": task.get("chosen_classes"),
        "task.fallback": None if task.get("fallback") is None else [task["fallback"]],
        "loss.threshold": loss.get("threshold"),
    }
    for key, classes in given.items():
        if isinstance(classes, (list, Mapping)):
            try:
                require_known(key, map(str, classes), names)
            except UserError as error:
                yield from error.problems


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{k}: {v}" for k, v in value.items()) + "}"
    return "null" if value is None else str(value)
