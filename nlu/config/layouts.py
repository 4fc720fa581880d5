"""What a row must hold for each kind of task; known before anything is read, so that it can be checked first."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from nlu.config.errors import UserError
from nlu.config.signature import read_constants

TEXT_ROLES: dict[str, tuple[tuple[str, ...], ...]] = {
    "single": (("text",),),
    "pair": (("text_a", "text_b"),),
    "sides": (("text_a", "text_b"),),
    "units": (("tokens",), ("text",)),
}
"""Which fields hold the text of a layout: all of any one alternative."""

FORMATS = ("auto", "csv", "tsv", "jsonl", "json", "parquet", "xlsx", "conll", "lines")
"""How a file of rows may be read; auto: by its suffix."""
ROLES = ("text", "text_a", "text_b", "tokens", "label", "tags", "spans")


USUAL_PAIRS = (
    ("sentence1", "sentence2"), ("question1", "question2"), ("premise", "hypothesis"), ("question", "sentence"),
    ("#1 String", "#2 String"),
)  # fmt: skip
USUAL_TEXTS = ("sentence",)
USUAL_LABELS = ("gold_label", "is_duplicate", "score", "Quality")
"""What columns are called in GLUE and in sets like those."""


def usual_fields(names: Collection[str], roles: Iterable[str]) -> dict[str, str]:
    """Return the column of each of these roles, as far as columns are called like a role or as in GLUE.

    Where a column is called like a field of texts, those of GLUE are not looked for.
    """
    found = {role: role for role in roles if role in names}
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


def layouts_of(task: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the layouts that a task's class constants name, the preferred one first; none where it names none."""
    return tuple(name for name in task.get("layouts", ()) if name in TEXT_ROLES)


def target_roles(task: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the fields of which one holds what a task's examples are to give; none where it learns from texts alone.

    They are the class constant `roles` of the target that the task's class constants name. Raises UserError where
    there is no such target.
    """
    target = task.get("target")
    return tuple(read_constants(target).get("roles", ())) if isinstance(target, str) else ()


def chosen_layout(layouts: Sequence[str], fields: Iterable[str]) -> str | None:
    """Return the first of a task's layouts all of whose texts are among the fields, or None."""
    present = set(fields)
    return next((name for name in layouts if any(present.issuperset(roles) for roles in TEXT_ROLES[name])), None)


def missing_roles(layouts: Sequence[str], targets: Sequence[str], fields: Iterable[str], file_format: str) -> list[str]:
    """Return the fields that a task needs and that are not among those given; empty where all are there.

    `targets` are the fields one of which holds the target. Of several layouts it is told what the nearest lacks.
    """
    present = {"text", "label"} if file_format == "lines" else set(fields)
    alternatives = [[role for role in roles if role not in present] for name in layouts for roles in TEXT_ROLES[name]]
    lacking = min(alternatives, key=len) if alternatives else []
    return lacking + ([" or ".join(targets)] if targets and present.isdisjoint(targets) else [])


def known_roles(task: Mapping[str, Any]) -> tuple[tuple[str, ...], list[str]]:
    """Return the target's fields of a task, and what is wrong with the name of its target."""
    try:
        return target_roles(task), []
    except UserError as error:
        return (), error.problems
