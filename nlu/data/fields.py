"""The fields that the rows of a task must have, and the usual names of columns; known before any file is read."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from pathlib import Path, PurePosixPath
from typing import get_args

from nlu.config.errors import UserError
from nlu.config.keys import schema_of
from nlu.config.types import ConfigLike
from nlu.data.keys import Format
from nlu.storage.locations import plain_name

TEXT_ROLES: dict[str, tuple[tuple[str, ...], ...]] = {
    "single": (("text",),),
    "pair": (("text_a", "text_b"),),
    "sides": (("text_a", "text_b"),),
    "units": (("tokens",), ("text",)),
}
"""The fields with the text of a layout; each tuple is an alternative of which all fields are needed."""

FORMATS: tuple[str, ...] = get_args(Format)
"""Formats of a file of rows; auto = by its suffix."""
SUFFIX_FORMATS = {
    ".csv": "csv", ".tsv": "tsv", ".txt": "tsv", ".jsonl": "jsonl", ".json": "json", ".parquet": "parquet",
    ".conll": "conll", ".conllu": "conll", ".xlsx": "xlsx", ".xlsm": "xlsx", ".xlsb": "xlsx", ".xls": "xlsx",
    ".ods": "xlsx",
}  # fmt: skip
FORMATS_OF_KEYS = {
    "separator": ("csv", "tsv"), "quote": ("csv", "tsv"), "sheet": ("xlsx",), "records": ("json", "jsonl"),
    "skip_lines": ("csv", "tsv", "xlsx", "jsonl", "json", "conll", "lines"),
}  # fmt: skip
"""Keys of reading that apply only to some formats."""
NAMES_OF_TEXTS = (
    "text sentence content review comment body question query title utterance document doc news message input passage "
    "文本 内容 评论 句子 标题 问题 正文 评价"
).split()
"""Usual names of a column of texts."""
LISTS = ("negatives", "candidates")
"""fields with several second texts in a row, which is taken apart into pairs"""
ROLES = ("text", "text_a", "text_b", "tokens", "label", "tags", "spans", *LISTS)
SENTENCE = "sentence_id"
"""the field that tells the sentences of a table with one token a row apart"""
IN_WINDOWS = ("single", "units")
"""layouts of one text, which may be read in windows"""
NO_WINDOWS = (
    "data.long is windows, which reads one long text, but a row of this task has two; set data.long=cut, which cuts "
    "both, or data.long=error, which refuses longer rows"
)
USUAL_PAIRS = (
    ("sentence1", "sentence2"), ("question1", "question2"), ("premise", "hypothesis"), ("question", "sentence"),
    ("#1 String", "#2 String"),
)  # fmt: skip
USUAL_TEXTS = ("sentence",)
USUAL_LABELS = ("gold_label", "is_duplicate", "score", "Quality")
"""Names of columns in GLUE and similar data sets."""
USUAL_OF_TAGGING = {
    "tokens": ("words", "word", "token"),
    "tags": ("ner_tags", "ner", "tag", "labels", "label", "pos_tags", "upos"),
    "spans": ("entities", "label", "labels", "result", "annotations"),
}
"""Names of columns of tagged rows, in lower case."""


def format_by_suffix(reference: str) -> str | None:
    """Return the format of a path or an address by its suffix, None if that is unknown."""
    return SUFFIX_FORMATS.get(PurePosixPath(plain_name(reference.partition("#")[0].partition("?")[0])).suffix.lower())


def has_rows(path: Path) -> bool:
    """Return whether a file of a corpus has rows, by its suffix; any other is read line by line."""
    return path.suffix.lower() not in (".txt", ".conll", ".conllu") and path.suffix.lower() in SUFFIX_FORMATS


def idle_keys(values: ConfigLike, formats: Set[str | None], group: str) -> Iterator[str]:
    """Yield a problem for each key of FORMATS_OF_KEYS that applies to none of the formats.

    `formats` are those of all files; None is one that is not known yet, to which every key may apply. `group` is the
    one of the keys in messages: data or input.
    """
    for key, able in FORMATS_OF_KEYS.items():
        value = values.get(key)
        # The first sheet has the number 0.
        is_set = value is not None and (value != 0 or key == "sheet")
        if is_set and formats and formats.isdisjoint((*able, None)):
            read = f"the files are {' and '.join(sorted(map(str, formats)))}"
            yield (
                f"{group}.{key} is {value!r}, but {read}, and it applies to {', '.join(able)} only; leave out "
                f"{group}.{key}, or correct {group}.format"
            )


def usual_fields(names: Collection[str], roles: Iterable[str]) -> dict[str, str]:
    """Return the column of each role for which a column is named like the role or as in GLUE.

    Names of GLUE are used only if no column is named like a field of texts.
    """
    # A name that a user gave on purpose takes precedence over one that only looks familiar.
    found = {role: role for role in roles if role in names}
    # Only a pair can have several second texts.
    for role in LISTS if "text_a" not in found else LISTS[1:] if "text_b" in found else ():
        found.pop(role, None)
    if {"text", "text_a", "text_b", "tokens"} & found.keys():
        return found
    pairs = [pair for pair in USUAL_PAIRS if set(pair) <= set(names)]
    texts = [name for name in USUAL_TEXTS if name in names]
    labels = [name for name in USUAL_LABELS if name in names]
    if pairs:
        found |= dict(zip(("text_a", "text_b"), pairs[0], strict=True))
    elif texts:
        found["text"] = texts[0]
    if "label" in roles and labels and (pairs or texts):
        found.setdefault("label", labels[0])
    return found


def tagging_fields(found: Mapping[str, str], names: Sequence[str]) -> dict[str, str]:
    """Return the column of each role of tagged rows: those that are found, and those with a usual name."""
    fields, lower = dict(found), {name.lower(): name for name in reversed(names)}

    def take(role: str) -> None:
        if role not in fields and (usual := [name for name in USUAL_OF_TAGGING[role] if name in lower]):
            fields[role] = lower[usual[0]]
            # The column of labels may be that of tags.
            fields.pop("label" if role != "tokens" else "", None)

    # Label Studio keeps the text in an object beside its annotations.
    if not {"text", "tokens"} & fields.keys() and {"data", "annotations"} <= set(names):
        fields["text"] = "data.text"
    # Other tools write the tokens of a text beside its spans.
    if {"text", "spans"} <= fields.keys() and "tags" not in fields:
        fields.pop("tokens", None)
        return fields
    if "text" not in fields:
        take("tokens")
    take("tags" if "tokens" in fields else "spans")
    return fields


def layouts_of(task: ConfigLike) -> tuple[str, ...]:
    """Return the layouts in a task's class constants, the preferred one first."""
    return tuple(name for name in task.get("layouts", ()) if name in TEXT_ROLES)


def target_roles(task: ConfigLike) -> tuple[str, ...]:
    """Return the fields of which one has the target of an example; () if a task needs only texts.

    They are the fact `roles` of the task's target. Raises UserError if that target does not exist.
    """
    target = task.get("target")
    return tuple(schema_of(target).constants.get("roles", ())) if isinstance(target, str) else ()


def provided(fields: Iterable[str]) -> set[str]:
    """Return the fields of the pairs that rows with these fields become."""
    present = set(fields)
    of_lists = {"label"} | ({"text_b"} if "candidates" in present else set())
    return present | (of_lists if present.intersection(LISTS) else set())


def chosen_layout(layouts: Sequence[str], fields: Iterable[str]) -> str | None:
    """Return the first layout whose texts are all among the fields, or None."""
    present = provided(fields)
    return next((name for name in layouts if any(present.issuperset(roles) for roles in TEXT_ROLES[name])), None)


def missing_roles(
    layouts: Sequence[str],
    targets: Sequence[str],
    fields: Iterable[str],
    file_format: str,
    own: Iterable[Sequence[str]] | None = None,
) -> list[str]:
    """Return the fields that a task needs and that are missing in `fields`; [] if none is missing.

    One of `targets` is needed. Among several layouts, the one that lacks the fewest fields counts. `own`: the
    alternatives of the user's own layout, which replaces those of the task.
    """
    present = {"text", "label"} if file_format == "lines" else provided(fields)
    needed = [roles for name in layouts for roles in TEXT_ROLES[name]] if own is None else own
    alternatives = [[role for role in roles if role not in present] for roles in needed]
    lacking = min(alternatives, key=len) if alternatives else []
    return lacking + ([" or ".join(targets)] if targets and present.isdisjoint(targets) else [])


def known_roles(task: ConfigLike) -> tuple[tuple[str, ...], list[str]]:
    """Return the fields of a task's target, and the problems of reading that target."""
    try:
        return target_roles(task), []
    except UserError as error:
        return (), error.problems
