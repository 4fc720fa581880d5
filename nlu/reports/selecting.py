"""The runs that conditions of a command line keep: `KEY=VALUE` of their configuration, or a text in folder or note."""

from collections.abc import Sequence
from fnmatch import fnmatchcase

from nlu.config.errors import UserError
from nlu.config.nearest import hint
from nlu.config.words import listed, path_text
from nlu.reports.runs import CHOICES, RunRecord

MOST_VALUES = 8
"""values of a key in an error"""


def selected(runs: Sequence[RunRecord], conditions: Sequence[str]) -> list[RunRecord]:
    """Return the runs that meet all conditions, in their order.

    `KEY=VALUE` compares a key of the configuration, or the choice of a group (`model=bert`); VALUE may be a pattern
    with * and ?. Any other text must be part of the path of the folder or of the note, in upper or lower case. Raises
    UserError for a key that no run has, and if no run is left.
    """
    kept = list(runs)
    for condition in conditions:
        key, equals, value = condition.partition("=")
        known = {text for run in kept for name in run.config for text in (name, name.removeprefix(CHOICES))}
        if equals and key not in known:
            raise UserError(
                f"--where is {condition}, but no run here has the key {key}; {hint(key, known)}; config.yaml of a run "
                "has all keys"
            )
        meeting = [run for run in kept if (_has(run, key, value) if equals else _says(run, condition))]
        if not meeting:
            values = sorted({_written(there) for run in kept for there in _values(run, key)}) if equals else []
            there = f"{key} is {listed(values, MOST_VALUES)}" if equals else "give a part of a folder's path or a note"
            raise UserError(f"--where is {condition}, which no run here meets; {there}")
        # One condition after the other, so that the error names the first that leaves no run.
        kept = meeting
    return kept


def _says(run: RunRecord, text: str) -> bool:
    return text.casefold() in f"{path_text(run.folder)}\n{run.note or ''}".casefold()


def _has(run: RunRecord, key: str, value: str) -> bool:
    """Whether a run has a value that matches, or that is another form of a number, such as 1e-5 of 0.00001."""
    held = _values(run, key)
    try:
        # A boolean is no number, although it equals one.
        is_equal = any(there == float(value) and not isinstance(there, bool) for there in held)
    except ValueError:
        is_equal = False
    return is_equal or any(fnmatchcase(_written(there), value) for there in held)


def _values(run: RunRecord, key: str) -> list[object]:
    """Return the value of a key and the name of a choice, as far as the run has them."""
    return [run.config[name] for name in (key, f"{CHOICES}{key}") if name in run.config]


def _written(value: object) -> str:
    """Return a value as a configuration has it."""
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
