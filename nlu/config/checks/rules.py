"""Rules that tie several groups of a configuration together, checked after each key has been checked by itself.

Nothing is fetched or read here beyond asking whether a local path exists, so the verdict costs no more than Hydra.
"""

import json
import os
import re
from collections.abc import Iterator
from glob import glob, has_magic
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from nlu.config.checks.mixture import mixture_problems
from nlu.config.checks.parts import part_problems
from nlu.config.choices import choice_of
from nlu.config.defaults import DEFAULT_TARGETS
from nlu.config.elsewhere import metrics_elsewhere
from nlu.config.layouts import ROLES, known_roles, layouts_of, missing_roles
from nlu.config.members import is_composite, is_mixture
from nlu.config.nearest import hint
from nlu.config.signature import read_constants
from nlu.config.targets import TARGET
from nlu.config.unset import MISSING
from nlu.storage.places import address_problems, is_object
from nlu.storage.redaction import credential_problems

DATA_TARGET = DEFAULT_TARGETS["data"]
DEFAULT_DATA_FOLDER = "../shared/data"
BERT_TARGET = "nlu.models.encoders.bert.Bert"
BERT_POSITIONS = 512


def data_folder() -> Path:
    """Return the folder in which relative data paths are looked up after the working folder."""
    return Path(os.environ.get("NLU_DATA", DEFAULT_DATA_FOLDER)).expanduser()


def is_pattern(reference: str) -> bool:
    """Whether a data path is a pattern of several files' names (`split*`); a file that is called so is no pattern."""
    return has_magic(reference) and "://" not in reference and not Path(reference).expanduser().is_file()


def files_like(pattern: str) -> list[Path]:
    """Return the files that match, in the order of their names: those here or, if there are none, in `data_folder`."""
    for folder in (Path(), data_folder()):
        found = sorted(Path(name) for name in glob(str(folder / Path(pattern).expanduser())) if Path(name).is_file())
        if found:
            return found
    return []


def named_file(reference: str) -> Path | None:
    """Return the file that a data path names, here or, if there is none, in `data_folder`; None where neither is."""
    places = (Path(reference).expanduser(), data_folder() / reference)
    return next((path for path in places if path.is_file()), None)


def content_of(folder: Path) -> str:
    """Return what a folder that was named instead of a file holds, for a message."""
    names = sorted(path.name for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))
    shown = ", ".join([*names[:8], f"and {len(names) - 8} more"] if len(names) > 8 else names)
    return f"that holds {shown}" if names else "without files"


def cross_problems(config: dict[str, Any]) -> list[str]:
    """Return every broken rule between groups, as key, value, rule and remedy."""
    if is_mixture(config) or is_composite(config):
        # What several sets have in common is said once.
        return list(dict.fromkeys(mixture_problems(config, cross_problems)))
    task = read_constants(config["task"]["_target_"])
    found = [
        *credential_problems(config),
        *_metric(config, task),
        *part_problems(config, task),
        *_trainer(config["trainer"]),
    ]
    found += [*_repeats(config), *_paths(config), *_tracker(config)]
    if config["data"]["_target_"] == DATA_TARGET:
        found += [*_fields(config, task), *_sets(config["data"], config["folds"]["count"])]
    if config["model"]["_target_"] == BERT_TARGET:
        found += _sizes(config["model"])
    return [*found, *_length(config["model"], config["data"])]


def _sizes(model: dict[str, Any]) -> Iterator[str]:
    width, heads = model["hidden_size"], model["heads"]
    if width and heads and width % heads:
        yield f"model.heads is {heads}, which does not divide model.hidden_size {width}; set one of the two"


def _length(model: dict[str, Any], data: dict[str, Any]) -> Iterator[str]:
    positions, pretrained = model.get("max_positions"), model.get("pretrained")
    if positions is None and pretrained not in (None, MISSING):
        positions = _positions_of(Path(pretrained).expanduser() / "config.json")
    elif positions is None and model["_target_"] == BERT_TARGET:
        positions = BERT_POSITIONS
    if positions is not None and data.get("max_len", 0) > positions:
        yield f"data.max_len is {data['max_len']}, but the model has {positions} positions; set it lower"


def _positions_of(config_json: Path) -> int | None:
    """Return the number of positions of weights in a folder of this machine; None where that is not known."""
    try:
        found = json.loads(config_json.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        # What is wrong with weights is reported when they are loaded.
        return None
    positions = found.get("max_position_embeddings") if isinstance(found, dict) else None
    return positions if isinstance(positions, int) and positions > 0 else None


def _metric(config: dict[str, Any], task: dict[str, Any]) -> Iterator[str]:
    metric = config["trainer"]["major_metric"]
    known = [*task.get("metrics", ()), *task.get("binary_metrics", ())]
    if metric is not None and known and metric not in known:
        meant = metrics_elsewhere(metric, known)
        close = f"it may mean {' or '.join(meant)}; all: {', '.join(known)}" if meant else hint(metric, known)
        yield (
            f"trainer.major_metric is {metric}, which this task and loss cannot produce; {close}; set it to one of "
            "these, or null for the task's own"
        )


def _trainer(trainer: dict[str, Any]) -> Iterator[str]:
    batch_size, devices = trainer["batch_size"], trainer["devices"]
    if batch_size < devices:
        yield (
            f"trainer.batch_size is {batch_size} over all devices, but trainer.devices is {devices}; "
            f"set it to >= {devices}"
        )
    if trainer["patience"] is not None and trainer["eval_interval"] in (0, "0"):
        yield (
            f"trainer.patience is {trainer['patience']}, but trainer.eval_interval=0 scores only at the end; set "
            "trainer.eval_interval to less than the patience, or trainer.patience=null"
        )


def _fields(config: dict[str, Any], task: dict[str, Any]) -> Iterator[str]:
    data = config["data"]
    if data["fields"] == MISSING:
        return
    fields, name = data["fields"] or {}, config["task"]["_target_"].rpartition(".")[2].lower()
    layouts, (targets, wrong) = layouts_of(task), known_roles(task)
    known = list(dict.fromkeys([*ROLES, *targets]))
    for role in fields:
        if role not in known:
            yield f"data.fields.{role}: there is no such field; {hint(role, known)}; map one of these"
    for role, column in fields.items():
        if isinstance(column, int) and column < 0:
            yield f"data.fields.{role} is {column} but columns are counted from 0; set it to a number >= 0"
    for column, roles in _roles_of_columns(fields).items():
        if len(roles) > 1:
            yield (
                f"data.fields gives {' and '.join(roles)} the same column, {column!r}; set each to a column of its own"
            )
    yield from (f"task={name} names a target that cannot be read: {problem}" for problem in wrong)
    if not fields and data["format"] == "conll":
        yield "data.fields is null, but CoNLL columns have no names; set data.fields to e.g. {tokens: 0, tags: 1}"
    # Without fields, columns are taken by the fields' own names, which only the files know.
    elif layouts and (fields or data["format"] == "lines"):
        if lacking := missing_roles(layouts, targets, fields, data["format"]):
            yield (
                f"data.fields is {fields or 'null'}, but task={name} needs {', '.join(lacking)} as well; set "
                "data.fields, or choose the task that fits these rows"
            )


def _roles_of_columns(fields: dict[str, str | int]) -> dict[str | int, list[str]]:
    """Return the fields that are read from each column."""
    roles: dict[str | int, list[str]] = {}
    for role, column in fields.items():
        roles.setdefault(column, []).append(role)
    return roles


def _repeats(config: dict[str, Any]) -> Iterator[str]:
    count, group_by, fold = config["folds"]["count"], config["folds"]["group_by"], config["fold"]
    if fold is not None and count is None:
        yield f"fold is {fold}, but there are no folds; set folds=5 or another number, or fold=null"
    elif fold is not None and fold >= count:
        yield f"fold is {fold}, but folds.count is {count}; folds are counted from 0, set fold to <= {count - 1}"
    if group_by is not None and count is None and config["data"].get("dev") is not None:
        yield (
            f"folds.group_by is {group_by}, but data.dev is set and there are no folds, so no training row is held "
            "out; set folds=5 or another number, data.dev=null to split off data.dev_fraction, or folds.group_by=null"
        )
    if group_by is not None and config["data"].get("format") in ("lines", "conll"):
        yield (
            f"folds.group_by is {group_by}, but with data.format={config['data']['format']} rows have no column to "
            "group by; set folds.group_by=null, or give the rows as a table or jsonl"
        )
    mirror = config.get("mirror")
    if mirror is not None:
        yield from address_problems(mirror, "mirror")
    if config.get("stores") is not None:
        yield from address_problems(config["stores"], "stores")
    if config["resume"] not in ("auto", "never") and (config["seeds"] > 1 or (count is not None and fold is None)):
        yield (
            f"resume is {config['resume']!r}, the state of one run, but folds and seeds make several; set resume to "
            "auto or never"
        )


def _sets(data: dict[str, Any], folds: int | None) -> Iterator[str]:
    if data["exclude_dev_from_train"] and data["dev"] is None:
        yield (
            "data.exclude_dev_from_train is true, but data.dev is null; set data.dev to the files, among those of "
            "data.train, that are to be scored instead of trained on"
        )
    if folds is None and data["dev"] is None and not 0 < data["dev_fraction"] < 1:
        yield (
            f"data.dev is null and data.dev_fraction is {data['dev_fraction']}, so there is nothing to score on or to "
            "train on; set data.dev to a file, or data.dev_fraction between 0 and 1"
        )
    for name in ("train", "test"):
        if data["format"] != "lines" and isinstance(data[name], dict):
            yield (
                f"data.{name} is {data[name]!r}, a file for each label, but data.format is {data['format']}; set "
                f"data.format=lines where each line is a text, or data.{name} to a file or a list of files"
            )
    for name in ("train", "dev", "test"):
        if data["format"] == "lines" and data[name] not in (None, MISSING) and not isinstance(data[name], dict):
            yield (
                f"data.{name} is {data[name]!r}, but with data.format=lines a file holds no labels; set it to "
                "{label: file, ...}, one file for each label, or choose data=files where the rows say their labels"
            )


def _paths(config: dict[str, Any]) -> Iterator[str]:
    if config["data"]["_target_"] == DATA_TARGET:
        data = config["data"]
        for key, path in _named_paths(data):
            if is_pattern(path):
                if not files_like(path):
                    yield (
                        f"{key} is {path!r}, which no file matches here or in {data_folder()} (NLU_DATA); correct {key}"
                    )
            elif not _is_file(path) and not (data_folder() / path).is_file() and path not in (data["urls"] or {}):
                folders = [folder for folder in (Path(path).expanduser(), data_folder() / path) if folder.is_dir()]
                if folders:
                    yield f"{key} is {path!r}, which is a folder {content_of(folders[0])}; set {key} to a file"
                else:
                    yield (
                        f"{key} is {path!r}, which is no file here or in {data_folder()} (NLU_DATA); set {key} to a "
                        "file or URL"
                    )
    vocab, pretrained = config["tokenizer"].get("vocab"), config["model"].get("pretrained")
    if vocab is not None and not _exists(vocab):
        yield f"tokenizer.vocab is {vocab!r}, which is no file; set it to a vocab.txt, or null"
    if pretrained not in (None, MISSING) and not _exists(pretrained) and not _is_part_of_run(pretrained):
        yield (
            f"model.pretrained is {pretrained!r}, which is no folder here; {_on_the_hub(pretrained)}set it to a folder "
            "in Hugging Face layout, a TF1 checkpoint, a former run's folder or RUN/best, pypi://, hf://, a URL, or "
            "null for random weights"
        )
    resume = config["resume"]
    if resume not in ("auto", "never") and not is_object(resume) and not Path(resume).expanduser().is_dir():
        yield f"resume is {resume!r}, which is no folder; set it to auto, never, or a run's folder"


def _on_the_hub(name: str) -> str:
    """Return a hint where a name may be meant as that of a model on the Hugging Face hub."""
    return f"a model of the hub is written hf://{name}; " if re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name) else ""


def _tracker(config: dict[str, Any]) -> Iterator[str]:
    # Runs of earlier versions name none.
    target = config.get("tracker", {}).get(TARGET, "nlu.tracking.nothing.Nothing")
    constants = read_constants(target)
    absent = {name: pip for name, pip in constants.get("packages", {}).items() if find_spec(name) is None}
    if absent:
        extra = f"pip install 'nlu[{constants['extra']}]', or " if "extra" in constants else ""
        yield (
            f"tracker is {choice_of('tracker', target)}, which needs {' and '.join(absent)}, and that is not installed "
            f"here; {extra}pip install {' '.join(absent.values())}, or leave out tracker="
        )


def _named_paths(data: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for name in ("train", "dev", "test"):
        source = data[name]
        if isinstance(source, dict):
            yield from ((f"data.{name}.{label}", path) for label, path in source.items())
        elif source not in (None, MISSING):
            yield from ((f"data.{name}", path) for path in ([source] if isinstance(source, str) else source))


def _exists(reference: str) -> bool:
    """Whether a reference is a local path that exists; of remote ones nothing is known yet, so they count as there."""
    return "://" in reference or Path(reference.partition("#sha256=")[0]).expanduser().exists()


def _is_file(reference: str) -> bool:
    return "://" in reference or Path(reference.partition("#sha256=")[0]).expanduser().is_file()


def _is_part_of_run(reference: str) -> bool:
    path = Path(reference.rstrip("/")).expanduser()
    return path.name in ("best", "last") and (path.parent / "checkpoints").is_dir() or _is_checkpoint_prefix(path)


def _is_checkpoint_prefix(path: Path) -> bool:
    return path.with_name(path.name + ".index").is_file()
