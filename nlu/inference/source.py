"""Rows to predict, of a program or a client or in a file, and a report of those that cannot be used."""

import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

from nlu.config.command_keys import STANDARD
from nlu.config.errors import DataError, UserError
from nlu.config.sentences import counted, shortened, show_as
from nlu.data.dataset import find_file
from nlu.data.labels import applies
from nlu.data.layouts import Values
from nlu.data.originals import Original, Originals
from nlu.data.reader import BadRow, BadRows
from nlu.data.reader import Row as RowOfFile
from nlu.inference.trained import Trained

Row = str | Sequence[str] | Mapping[str, object]
"""a text; a pair of texts or a list of tokens, depending on the run; or a mapping, by roles or by the names of the
run's own columns, whose other fields are ignored"""


def values_of(trained: Trained, row: object, place: str, others: Iterable[str] = ()) -> Values:
    """Return the texts of a row by role, and the values of those roles in `others` that it has.

    `place` names the row in errors. Raises DataError if a text that the run reads is missing or cannot be used.
    """
    values = _by_role(trained, row, place)
    require_none(trained.problem(values), values, place)
    if isinstance(row, Mapping):
        for role, name in _names_of(trained, others).items():
            if (known := next((one for one in (name, role) if one in row), None)) is not None:
                values[role] = row[known]
        columns = (trained.config.data.get("fields") or {}).get("label")
        if isinstance(columns, list) and "label" in others and all(name in row for name in columns):
            wrong = next((name for name in columns if applies(row[name]) is None), None)
            require_none(None if wrong is None else (wrong, "is neither 0 nor 1"), dict(row), place)
            values["label"] = [name for name in columns if applies(row[name])]
    return values


def require_none(problem: tuple[str, str] | None, values: Values, place: str) -> None:
    """Raise DataError for a problem of a row: the field that cannot be used, and the rule that its value breaks."""
    if problem is not None:
        role, rule = problem
        raise DataError(f"{place}: {BadRow.of(0, role, values.get(role), rule).sentence}")


def alternatives_of(trained: Trained) -> tuple[tuple[str, ...], ...]:
    """Return the alternative sets of roles of the texts that a run reads; a row needs all roles of one of them."""
    return trained.layout.alternatives


def _by_role(trained: Trained, row: object, place: str) -> dict[str, object]:
    alternatives = alternatives_of(trained)
    if isinstance(row, Mapping):
        return _of_fields(trained, row, place)
    if isinstance(row, str) and ("text",) in alternatives:
        return {"text": row}
    if isinstance(row, list | tuple):
        if ("tokens",) in alternatives:
            return {"tokens": list(row)}
        if len(row) == len(alternatives[0]) == 2:
            return dict(zip(alternatives[0], row, strict=True))
    raise DataError(f"{place} is {_kind(row)}, but the run reads {either(alternatives)}; give it these")


def _of_fields(trained: Trained, row: Mapping[object, object], place: str) -> dict[str, object]:
    alternatives = alternatives_of(trained)
    # As in nlu.predict, the run's own column names come before the names of roles.
    found = [
        {role: row[name] for role, name in names.items()}
        for roles in alternatives
        for names in (_names_of(trained, roles), {role: role for role in roles})
        if all(name in row for name in names.values())
    ]
    if found:
        # The run's column of tokens may have the name of another role, `text`.
        return next((values for values in found if all(map(_fits, values, values.values()))), found[0])
    there = [f"{name!s:.40}" for name in islice(row, 8)]
    absent = next(role for role in alternatives[0] if role not in row)
    raise DataError(
        f"{place} lacks {absent}; it has {', '.join(there) or 'nothing'}, and the run reads "
        f"{either(alternatives)}; give it these"
    )


def _fits(role: str, value: object) -> bool:
    return isinstance(value, list | tuple) if role == "tokens" else isinstance(value, str)


def _names_of(trained: Trained, roles: Iterable[str]) -> dict[str, str]:
    """Return the names of these roles in the run's own rows; a column that is given by its number has none."""
    fields = trained.config.data.get("fields") or {}
    return {role: name if isinstance(name := fields.get(role, role), str) else role for role in roles}


def either(alternatives: Sequence[Sequence[str]]) -> str:
    """Return alternatives of roles in words."""
    return " or ".join(" and ".join(roles) for roles in alternatives)


def _kind(row: object) -> str:
    if isinstance(row, str):
        return "one text"
    return f"a list of {len(row)}" if isinstance(row, list | tuple) else f"{row!r:.40}"


LONGEST_TOKEN = 30
"""characters of a token; a row of one longer token is a text"""
Problem = Callable[[Values], tuple[str, str] | None]
"""returns the field of a row that cannot be used, and the rule that its value breaks, or None"""


@contextmanager
def found(path: str, file_format: str, key: str = "input") -> Iterator[Path]:
    """Yield the file that `input`, or another key, names; standard input is copied to a file first.

    Raises UserError if the format of standard input is not given.
    """
    if path != STANDARD:
        yield find_file(key, path)
        return
    if file_format == "auto":
        remedy = "set input.format, such as input.format=lines" if key == "input" else "give a file"
        raise UserError(f"{key} is -, standard input, which has no suffix; {remedy}")
    # The predictions are already written when it is removed, so a copy that stays must not fail the command.
    with tempfile.TemporaryDirectory(prefix="nlu-input-", ignore_cleanup_errors=True) as folder:
        copy = Path(folder) / "stdin"
        show_as(copy, "standard input")
        # Every row is read twice, to be checked and to be predicted, and a pipe can be read only once.
        with open(copy, "wb") as file:
            shutil.copyfileobj(sys.stdin.buffer, file)
        yield copy


def require_usable(
    source: Originals,
    problem: Problem,
    require_writable: Callable[[Original, str], None],
    *,
    may_skip: bool,
    max_rows: int | None,
) -> int:
    """Read every row once and return the number of rows.

    Raises DataError for rows that cannot be used, unless `may_skip`, for a row that the output cannot hold, and for a
    file without rows.
    """
    count, bad_rows = 0, BadRows()
    several, longest = "tokens" not in source.fields, ""
    for row, original in source.rows():
        count += 1
        if (bad := bad_row(row, source, problem)) is not None:
            bad_rows.add(source.path, bad)
        elif not several and isinstance(row, RowOfFile):
            longest, several = max(longest, row.values["tokens"][0], key=len), len(row.values["tokens"]) > 1
        if bad is None or may_skip:
            require_writable(original, f"{source.path}:{row.number}")
        # Before the next row is read: a bad row behind max_rows does not matter.
        if count == max_rows:
            break
    if not count:
        raise DataError(f"{source.path} contains no rows; give a file with some")
    if bad_rows.count and not may_skip:
        remedy = "correct these rows, or set on_bad_row=skip to leave their predictions empty"
        raise bad_rows.error(counted(count, "row"), remedy)
    if not several and len(longest) > LONGEST_TOKEN:
        raise DataError(
            f"{source.path}: each row is read as one token, such as {shortened(longest)!r}, but the run was trained on "
            f"lists of tokens; set 'input.fields={{text: {source.fields['tokens']}}}' for texts"
        )
    return count


def bad_row(row: RowOfFile | BadRow, source: Originals, problem: Problem) -> BadRow | None:
    """Return what is wrong with a row, or None."""
    if isinstance(row, BadRow):
        return row
    if (wrong := problem(row.values)) is None:
        return None
    role, rule = wrong
    return BadRow.of(row.number, str(source.fields.get(role, role)), row.values.get(role), rule)
