"""The runs that conditions of a command line keep: `KEY=VALUE` of their configuration, or a text in folder or note."""

from collections.abc import Sequence
from contextlib import suppress
from difflib import get_close_matches
from fnmatch import fnmatchcase

from nlu.config.errors import UserError
from nlu.config.nearest import nearest
from nlu.config.words import listed, path_text
from nlu.reports.runs import CHOICES, RunRecord

MOST_NEAR = 3
MOST_VALUES = 8
"""values of a key in an error"""


def selected(runs: Sequence[RunRecord], conditions: Sequence[str]) -> list[RunRecord]:
    """Return the runs that meet all conditions, in their order.

    `KEY=VALUE` compares a key of the configuration, or the choice of a group (`model=bert`); VALUE may be a pattern
    with * and ?. Any other text must be part of the path of the folder or of the note, in upper or lower case. Raises
    UserError for a key that no run has, and if no run is left.
    """
    for condition in conditions:
        kept = [run for run in runs if _meets(run, condition, _require_key(runs, condition))]
        if not kept:
            raise UserError(f"--where is {condition}, which no run here meets{_there(runs, condition)}")
        # One condition after the other, so that the error names the first that leaves no run.
        runs = kept
    return list(runs)


def _require_key(runs: Sequence[RunRecord], condition: str) -> str | None:
    """Return the key of a condition, None if it is a text. Raises UserError for a key that no run has."""
    key, equals, _ = condition.partition("=")
    if not equals:
        return None
    known = {text for run in runs for name in run.config for text in (name, name.removeprefix(CHOICES))}
    if key not in known:
        near = nearest(key, known) or get_close_matches(key.rpartition(".")[2], sorted(known), MOST_NEAR, cutoff=0)
        raise UserError(
            f"--where is {condition}, but no run here has the key {key}; nearest: {', '.join(near)}; config.yaml of a "
            "run has all keys"
        )
    return key


def _meets(run: RunRecord, condition: str, key: str | None) -> bool:
    if key is None:
        text = condition.casefold()
        return text in path_text(run.folder).casefold() or text in (run.note or "").casefold()
    value = condition.partition("=")[2]
    return any(_is_number(there, value) or fnmatchcase(_written(there), value) for there in _values(run, key))


def _is_number(there: object, value: str) -> bool:
    """Whether a text is another form of a number, such as 1e-5 of 0.00001."""
    if isinstance(there, bool) or not isinstance(there, int | float):
        return False
    with suppress(ValueError):
        return float(value) == there
    return False


def _values(run: RunRecord, key: str) -> list[object]:
    """Return the value of a key and the name of a choice, as far as the run has them."""
    return [run.config[name] for name in (key, f"{CHOICES}{key}") if name in run.config]


def _written(value: object) -> str:
    """Return a value as a configuration has it."""
    return (
        {None: "null", True: "true", False: "false"}[value] if value is None or isinstance(value, bool) else str(value)
    )


def _there(runs: Sequence[RunRecord], condition: str) -> str:
    key, equals, _ = condition.partition("=")
    if not equals:
        return "; give a part of the path of a folder, or of a note"
    values = dict.fromkeys(_written(value) for run in runs for value in _values(run, key))
    return f"; {key} is {listed(sorted(values), MOST_VALUES)}"
