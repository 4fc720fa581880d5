"""The rules of `data=files` and `data=corpus`, which validation calls with the whole configuration
before anything heavy is imported.

Nothing is fetched or read, except that local paths are looked up. A derived class may lack any of the keys.
"""

import re
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path

from nlu.config.choices import choice_of
from nlu.config.keys import facts_of
from nlu.config.nearest import hint
from nlu.config.resolving import MISSING
from nlu.config.targets import TARGET
from nlu.config.types import ConfigLike
from nlu.data.fields import (
    IN_WINDOWS,
    LISTS,
    NO_WINDOWS,
    ROLES,
    SENTENCE,
    chosen_layout,
    format_by_suffix,
    idle_keys,
    known_roles,
    layouts_of,
    missing_roles,
)  # fmt: skip
from nlu.storage.locations import path_problem

EPOCHS = re.compile(r"[0-9.]+ep")


def file_problems(config: ConfigLike, task: ConfigLike) -> Iterator[str]:
    """Yield each broken rule as key, value, rule and remedy; `task` are the class constants of the task."""
    data, folds = config["data"], config["folds"]
    if folds["group_by"] is not None and formats_of(data) & {"lines", "conll"}:
        yield (
            f"folds.group_by is {folds['group_by']}, but rows of CoNLL files and plain lines have no column to group "
            "by; set folds.group_by=null, or give the rows as a table or jsonl"
        )
    yield from _path_problems(data)
    if data.get("reader") is not None and data.get("format") not in (None, "auto"):
        yield (
            f"data.reader is set and data.format is {data['format']}, but a reader decides what the format is; leave "
            "data.format out, or set data.reader=null"
        )
    # A run that is scored was trained with its keys; nlu.evaluate checks those that are given.
    if config.get("run") is config.get("export") is None:
        yield from idle_keys(data, formats_of(data), "data")
    yield from _long_problems(config, task)
    if data.get("fields", MISSING) != MISSING:
        yield from _fields(
            data, choice_of("task", config["task"][TARGET]), task, facts_of(config["loss"][TARGET]).get("reads")
        )
    yield from _sets(data, folds["count"])


def _long_problems(config: ConfigLike, task: ConfigLike) -> Iterator[str]:
    data, is_scored = config["data"], config.get("run") is not None or config.get("export") is not None
    long, stride, max_len = (data.get(key) for key in ("long", "stride", "max_len"))
    if long != "windows":
        # The windows of a run that is scored may be left out.
        if stride is not None and not is_scored:
            yield f"data.stride is {stride}, but data.long is {long}; set data.long=windows, or data.stride=null"
        return
    if isinstance(stride, int) and isinstance(max_len, int) and 2 * stride > max_len:
        yield f"data.stride is {stride}, more than half of data.max_len, {max_len}; set it to <= {max_len // 2}"
    if data.get("layout") is not None:
        yield "data.long is windows, but data.layout makes sequences of its own; set data.long=cut, or data.layout=null"
    if facts_of(task.get("target")).get("kind") == "words":
        yield (
            "data.long is windows, but this task masks words, which no window needs; set data=corpus, which makes "
            "blocks of texts of any length, or data.long=cut"
        )
        return
    layouts, fields = layouts_of(task), data.get("fields")
    chosen = chosen_layout(layouts, fields) if fields not in (None, {}, MISSING) else None
    if chosen is not None and chosen not in IN_WINDOWS or layouts and not set(IN_WINDOWS) & set(layouts):
        yield NO_WINDOWS


OF_ONE_DOCUMENT = ("complete_doc", "none_doc", "eos")
"""values of data.break_mode with which a block has sentences of only one document"""


def halves_problem(break_mode: str) -> str:
    """Return why blocks of a corpus made in this way have no halves of one document."""
    return (
        f"data.break_mode is {break_mode}, with which a block may have sentences of several documents, but "
        "task=structbert learns the order of sentences of one document; set data.break_mode=complete_doc, or "
        "one of none_doc and eos"
    )


def corpus_problems(config: ConfigLike, task: ConfigLike) -> Iterator[str]:
    """Yield where `data=corpus` does not fit the task or this machine: its examples are texts without labels."""
    data, folds = config["data"], config["folds"]
    targets, _ = known_roles(task)
    if targets:
        name = choice_of("task", config["task"][TARGET])
        yield (
            f"task={name} needs {' or '.join(targets)}, but data=corpus has only sentences; set task=mlm, or "
            "data=files for rows with labels"
        )
    if folds["group_by"] is not None:
        yield f"folds.group_by is {folds['group_by']}, but lines of a corpus have no column; set folds.group_by=null"
    if data.get("words") == "jieba" and find_spec("jieba") is None:
        yield (
            "data.words is jieba, which is not installed here; pip install 'nlu[zh]' or pip install jieba, or set "
            "data.words=spaces for a corpus with spaces between words"
        )
    if set(data.get("fields") or {"text"}) != {"text"}:
        yield f"data.fields is {data['fields']}, but a corpus has only texts; set data.fields={{text: COLUMN}}"
    min_len, max_len = data.get("min_len"), data.get("max_len")
    if isinstance(min_len, int) and isinstance(max_len, int) and min_len > max_len:
        yield (
            f"data.min_len is {min_len}, but data.max_len is {max_len}, so every block is left out; set data.min_len "
            "lower"
        )
    yield from _path_problems(data)
    yield from _sets(data, folds["count"])
    yield from stream_problems(config, task)


def stream_problems(config: ConfigLike, task: ConfigLike) -> Iterator[str]:
    """Yield what needs all training rows before the first step, where `data.stream` is true."""
    data = config["data"]
    if not data.get("stream"):
        return
    rest = "needs all training rows, which data.stream=true writes while a run trains"
    if "target" in task and not facts_of(task["target"]).get("streams"):
        name = config["task"][TARGET].rpartition(".")[2].lower()
        yield f"task={name} {rest}; set data.stream=false, or task=mlm"
    if config["task"].get("frequency_power"):
        yield f"task.frequency_power is {config['task']['frequency_power']}, which {rest}; set it to 0"
    if config["folds"]["count"] is not None:
        yield f"folds.count is {config['folds']['count']}, which {rest}; set folds.count=null and data.dev to a file"
    elif data["dev"] is None:
        yield f"data.dev is null, and data.dev_fraction {rest}; set data.dev to a file"
    if data["drop_duplicates"]:
        yield f"data.drop_duplicates is true, which {rest}; set it to false, and remove duplicates from the files"
    model = config["model"]
    if model.get("trim_vocab"):
        yield f"model.trim_vocab is true, which {rest}; set it to false, or preprocess without data.stream"
    if model.get("embeddings"):
        yield f"model.embeddings {rest}; set model.embeddings=null, or data.stream=false"
    if model.get("rarity") and not model.get("pretrained"):
        yield f"model.rarity is {model['rarity']}, which {rest}; set model.rarity=0, or data.stream=false"
    if not model.get("pretrained") and not config["tokenizer"].get("vocab"):
        yield f"the vocabulary {rest}; set tokenizer.vocab to a file, or model.pretrained to weights that have one"
    # nlu.preprocess does not train.
    if "show" in config:
        return
    if facts_of(config["method"][TARGET]).get("reads_all_rows"):
        yield f"method {rest}; set data.stream=false, or another method"
    if config["trainer"]["batch_size"] == "auto":
        yield f"trainer.batch_size is auto, which {rest}; set it to a number"
    if config["trainer"].get("batch_tokens"):
        yield (
            f"trainer.batch_tokens is {config['trainer']['batch_tokens']}, which {rest}; set it to null, or "
            "data.stream=false"
        )
    elif config["trainer"]["window_rows"] is None:
        yield (
            "trainer.window_rows is null, but with data.stream=true examples are taken window by window; set it to a "
            "number of rows, such as 100000"
        )
    for group in ("trainer", "scheduler"):
        for key, value in config[group].items():
            if isinstance(value, str) and EPOCHS.fullmatch(value):
                yield (
                    f"{group}.{key} is {value}, but with data.stream=true the length of an epoch is unknown; write it "
                    "in steps, such as 5000st, or in examples (ex)"
                )


def _path_problems(data: ConfigLike) -> Iterator[str]:
    for key, path in _paths(data):
        # What can be fetched is not looked up here: validation sends no request.
        is_checked = "://" in path or path in (data.get("urls") or {}) or "#sha256=" in path and _is_file(path)
        if not is_checked and (problem := path_problem(key, path)):
            yield problem


def formats_of(data: ConfigLike) -> set[str | None]:
    """Return the formats of the files of all sets; None among them stands for one that the name does not tell."""
    if data.get("reader") is not None:
        return {"read by data.reader"}
    if data.get("format", "auto") != "auto":
        return {data["format"]}
    return {format_by_suffix(path) for key, path in _paths(data) if key != "data.labels"}


def soft_problems(config: ConfigLike, task: ConfigLike) -> Iterator[str]:
    """Yield where the data or the loss does not fit soft targets: logits or probabilities of each class in a row."""
    data, fields = config["data"], config["data"].get("fields") or {}
    # A run that is scored has its labels, and rows with labels only have scores, too.
    is_training = config.get("run") is None and config.get("export") is None
    is_incomplete = fields in ({}, MISSING)
    soft = [role for role in ("logits", "probabilities") if not is_incomplete and role in fields]
    if is_training and data.get("labels", MISSING) is None:
        yield (
            "data.labels is null, but task=soft reads a number for each label, in their order; set data.labels to all "
            "labels in the order of these numbers"
        )
    are_lines = data.get("format") == "lines"
    if is_training and (are_lines or (not is_incomplete and "label" in fields and not soft)):
        shown = "data.format is lines" if are_lines else f"data.fields is {fields}"
        yield (
            f"{shown}, but task=soft learns from logits or probabilities; set data.fields.logits or "
            "data.fields.probabilities, or choose task=classify or task=match"
        )
    if len(soft) > 1:
        yield (
            "data.fields names both logits and probabilities, but a row has one soft target; leave one of the two out"
        )
    if soft == ["probabilities"] and facts_of(config["loss"][TARGET]).get("needs_logits"):
        yield (
            "loss compares logits, but data.fields names probabilities; set loss=kl, or data.fields.logits to a column "
            "of logits"
        )
    metric = config["trainer"]["major_metric"]
    if is_training and soft and "label" not in fields and metric not in (None, "loss", "agreement"):
        yield (
            f"trainer.major_metric is {metric}, a score of labels, but data.fields has no label; set "
            "data.fields.label, or trainer.major_metric to loss or agreement"
        )


def _paths(data: ConfigLike) -> Iterator[tuple[str, str]]:
    for name in ("train", "dev", "test"):
        source = data.get(name)
        if isinstance(source, dict):
            yield from ((f"data.{name}.{label}", path) for label, path in source.items())
        elif source not in (None, MISSING):
            yield from ((f"data.{name}", path) for path in ([source] if isinstance(source, str) else source))
    if isinstance(labels := data.get("labels"), str) and labels != MISSING:
        yield "data.labels", labels


def _is_file(reference: str) -> bool:
    return Path(reference.partition("#sha256=")[0]).expanduser().is_file()


def _fields(data: ConfigLike, task_name: str, task: ConfigLike, reads: str | None) -> Iterator[str]:
    fields, layouts, (targets, wrong) = data["fields"] or {}, layouts_of(task), known_roles(task)
    own = _own_roles(data)
    file_format = data.get("format", "auto")
    roles = [role for role in ROLES if role not in LISTS or {"pair", "sides"}.intersection(layouts)]
    known = list(dict.fromkeys([*(own or ()), *roles, SENTENCE, *targets]))
    # The fields of a task whose class cannot be read are not known.
    for role in fields if task else ():
        if role not in known:
            yield f"data.fields.{role}: unknown field; {hint(role, known)}; map one of these"
    roles_of: dict[str | int, list[str]] = {}
    for role, given in fields.items():
        may_be_several = role == "negatives" or role == "label" and facts_of(task.get("target")).get("takes_columns")
        if isinstance(given, list) and not may_be_several:
            yield (
                f"data.fields.{role} is {given}, but only negatives, and the label of task=multilabel or classify with "
                f"columns of 0 and 1, may have several columns; set data.fields.{role} to one column"
            )
        for column in given if isinstance(given, list) else [given]:
            roles_of.setdefault(column, []).append(role)
            if isinstance(column, int) and column < 0:
                yield f"data.fields.{role} is {column} but columns are counted from 0; set it to a number >= 0"
    for column, roles in roles_of.items():
        # A loss with in-batch negatives can compare a text with itself under two dropout masks (SimCSE).
        if len(roles) > 1 and not (reads == "similarities" and roles == ["text_a", "text_b"]):
            yield (
                f"data.fields gives {' and '.join(roles)} the same column, {column!r}; set each to a column of its "
                f"own, or leave one out: '~data.fields.{roles[0]}'"
            )
    if "candidates" in fields and (other := {"text_b", "negatives"}.intersection(fields)):
        yield (
            f"data.fields names candidates, which are all second texts of a row, and {' and '.join(sorted(other))}; "
            f"leave one of them out: '~data.fields.candidates'"
        )
    yield from (f"task={task_name} names a target that cannot be read: {problem}" for problem in wrong)
    if not fields and file_format == "conll":
        yield "data.fields is null, but CoNLL columns have no names; set data.fields to e.g. {tokens: 0, tags: 1}"
    # Without data.fields, columns are found by the names of the fields once the files are read.
    elif layouts and (fields or file_format == "lines"):
        if lacking := missing_roles(layouts, targets, fields, file_format, None if own is None else [own]):
            yield (
                f"data.fields is {fields or 'null'}, but task={task_name} needs {', '.join(lacking)} as well; set "
                "data.fields, or choose the task that fits these rows"
            )


def _own_roles(data: ConfigLike) -> tuple[str, ...] | None:
    """Return the fields that a user's layout needs; None for a layout of nlu, or one that does not name its fields."""
    node = data.get("layout")
    roles = facts_of(node.get(TARGET)).get("roles") if isinstance(node, Mapping) else None
    return tuple(roles) if isinstance(roles, tuple | list) else None


def _sets(data: ConfigLike, num_folds: int | None) -> Iterator[str]:
    has_no_dev = "dev" in data and data["dev"] is None
    if has_no_dev and data.get("exclude_dev_from_train"):
        yield (
            "data.exclude_dev_from_train is true, but data.dev is null; set data.dev to the files, among those of "
            "data.train, that are to be scored instead of trained on"
        )
    if num_folds is None and has_no_dev and "dev_fraction" in data and not 0 < data["dev_fraction"] < 1:
        yield (
            f"data.dev is null and data.dev_fraction is {data['dev_fraction']}, so there is nothing to score on or to "
            "train on; set data.dev to a file, or data.dev_fraction between 0 and 1"
        )
    is_lines = data.get("format") == "lines"
    for name in [name for name in ("train", "dev", "test") if "format" in data and name in data]:
        has_file_per_label = isinstance(data[name], dict)
        if has_file_per_label and not is_lines and name != "dev":
            yield (
                f"data.{name} is {data[name]!r}, a file for each label, but data.format is {data['format']}; set "
                f"data.format=lines where each line is a text, or data.{name} to a file or a list of files"
            )
        if is_lines and data[name] not in (None, MISSING) and not has_file_per_label:
            yield (
                f"data.{name} is {data[name]!r}, but with data.format=lines a file holds no labels; set it to "
                "{label: file, ...}, one file for each label, or choose data=files where the rows say their labels"
            )
