"""Convert a row from a program or a client into the fields that a run reads."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

from nlu.config.errors import DataError
from nlu.data.fields import TEXT_ROLES
from nlu.data.layouts import Values
from nlu.data.readers import BadRow
from nlu.inference.trained import Trained

Row = str | Sequence[str] | Mapping[str, Any]
"""a text; a pair of texts or a list of tokens, depending on the run; or a mapping, by roles or by the names of the
run's own columns, whose other fields are ignored"""


def values_of(trained: Trained, row: object, place: str, others: Iterable[str] = ()) -> Values:
    """Return the texts of a row by role, and the values of those roles in `others` that it has.

    `place` names the row in errors. Raises DataError if a text that the run reads is missing or cannot be used.
    """
    values = _by_role(trained, row, place)
    require_none(trained.layout.problem(values), values, place)
    if isinstance(row, Mapping):
        for role, name in _names_of(trained, others).items():
            if (known := next((one for one in (name, role) if one in row), None)) is not None:
                values[role] = row[known]
    return values


def require_none(problem: tuple[str, str] | None, values: Values, place: str) -> None:
    """Raise DataError for a problem of a row: the field that cannot be used, and the rule that its value breaks."""
    if problem is not None:
        role, rule = problem
        raise DataError(f"{place}: {BadRow.of(0, role, values.get(role), rule).told}")


def alternatives_of(trained: Trained) -> tuple[tuple[str, ...], ...]:
    """Return the alternative sets of roles of the texts that a run reads; a row needs all roles of one of them."""
    return TEXT_ROLES[trained.layout.name]


def _by_role(trained: Trained, row: object, place: str) -> dict[str, Any]:
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


def _of_fields(trained: Trained, row: Mapping[Any, Any], place: str) -> dict[str, Any]:
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
    fields = trained.config.data["fields"] or {}
    return {role: name if isinstance(name := fields.get(role, role), str) else role for role in roles}


def either(alternatives: Sequence[Sequence[str]]) -> str:
    """Return alternatives of roles in words."""
    return " or ".join(" and ".join(roles) for roles in alternatives)


def _kind(row: object) -> str:
    if isinstance(row, str):
        return "one text"
    return f"a list of {len(row)}" if isinstance(row, list | tuple) else f"{row!r:.40}"
