"""Whether the loss and the head of a configuration are made for what its task gives, and for each other."""

from collections.abc import Iterator
from functools import partial
from typing import Any

from nlu.config.choices import choice_of, targets_of
from nlu.config.defaults import defaults_of
from nlu.config.members import DEFAULT_LOSS
from nlu.config.signature import read_constants
from nlu.config.targets import TARGET

AUTO_HEAD = "nlu.models.heads.auto.Auto"
CRF_HEAD = "nlu.models.heads.crf.CrfHead"
SIDES_HEAD = "nlu.models.heads.pairs.SidesHead"


def part_problems(config: dict[str, Any], task: dict[str, Any]) -> Iterator[str]:
    """Yield each broken rule, as key, value, rule and remedy; `task` are the constants of the task's class."""
    # What a class is called is read from all files of its group, so it is asked for only where something is to be said.
    name, what = partial(choice_of, "task", config["task"][TARGET]), partial(choice_of, "loss", config["loss"][TARGET])
    if "metrics" in task and "kind" not in task:
        yield (
            f"task is {name()}, whose class does not name the kind of its records; add the class constant kind, such "
            "as kind = 'nlu.metrics.kinds.ClassKind'"
        )
    misfit = _misfit(config["loss"][TARGET], task)
    if misfit:
        reads, gives = misfit
        fitting = [choice for choice, target in targets_of("loss").items() if not _misfit(target, task)]
        yield (
            f"loss is {what()}, which reads {reads}, but task={name()} gives {gives}; leave out loss= for the task's "
            f"own, or choose one that fits: {', '.join(fitting)}"
        )
    head, heads = config["head"][TARGET], task.get("heads")
    reads = read_constants(config["loss"][TARGET]).get("reads", "logits")
    # Of a head of the user's own package nobody but its constructor knows what it is made for.
    if heads and head.startswith("nlu.") and head != AUTO_HEAD and head not in heads:
        fitting = [choice_of("head", path) for path in heads]
        yield (
            f"head is {choice_of('head', head)}, but task={name()} takes {', '.join(fitting)}; set head=auto for the "
            "task's own"
        )
    elif head == SIDES_HEAD and (config["head"]["features"] == "cosine") != (reads != "logits"):
        wanted = "concat" if reads == "logits" else "cosine"
        yield (
            f"head.features is {config['head']['features']}, but loss is {what()}, which reads {reads}; set "
            f"head.features={wanted}, or head=auto"
        )
    elif head == CRF_HEAD and not misfit:
        yield from _beside_crf(config)
    batch_size, devices = config["trainer"]["batch_size"], config["trainer"]["devices"]
    if reads == "similarities" and batch_size < 2 * devices:
        yield (
            f"loss is {what()}, which compares a pair with the others of its micro-batch, but trainer.batch_size is "
            f"{batch_size} over {devices} device(s), so there are none; set trainer.batch_size to >= {2 * devices}"
        )


def _misfit(loss: str, task: dict[str, Any]) -> tuple[str, str] | None:
    """Return what a loss reads and what the task gives instead; None where they fit."""
    constants = read_constants(loss)
    kind = read_constants(task["target"]).get("kind") if "target" in task else None
    kinds, reads = constants.get("kinds"), constants.get("reads", "logits")
    if kind and kinds and kind not in kinds:
        return " or ".join(kinds), kind
    if task.get("reads") and reads not in task["reads"]:
        return reads, " or ".join(task["reads"])
    return None


def _beside_crf(config: dict[str, Any]) -> Iterator[str]:
    """Yield what was chosen in vain, since a CRF brings the loss and the decoding itself."""
    loss = config["loss"]
    if loss[TARGET] != DEFAULT_LOSS:
        yield (
            f"loss is {choice_of('loss', loss[TARGET])}, but head=crf takes the place of the loss; leave out loss=, or "
            "set head=linear"
        )
    else:
        usual = defaults_of(DEFAULT_LOSS)
        for key, value in loss.items():
            if key in usual and value != usual[key]:
                yield (
                    f"loss.{key} is {value}, but head=crf takes the place of the loss; leave out loss.{key}, or set "
                    "head=linear"
                )
    if config["task"].get("decode") == "greedy":
        yield "task.decode is greedy, but head=crf decodes by itself; leave out task.decode, or set head=linear"
