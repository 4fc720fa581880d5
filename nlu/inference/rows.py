"""A row as a program or a client hands it over, to the values of the fields that a run reads."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

from nlu.config.errors import DataError
from nlu.config.layouts import TEXT_ROLES
from nlu.data.layouts import Values
from nlu.data.readers import BadRow
from nlu.inference.trained import Trained

Row = str | Sequence[str] | Mapping[str, Any]
"""a text; a pair of texts or a list of tokens, as the run reads; or fields by the names of roles or of the run's own
columns, of which those that the run does not read are passed over"""


def values_of(trained: Trained, row: object, place: str, others: Iterable[str] = ()) -> Values:
    """Return the texts of a row by role, and of the roles `others` what it has.

    Raises DataError, which calls the row `place`, where it lacks a text that the run reads, or has one that cannot be
    used.
    """
    values = _by_role(trained, row, place)
    require_none(trained.layout.problem(values), values, place)
    if isinstance(row, Mapping):
        for role, name in _names_of(trained, others).items():
            if (known := next((one for one in (name, role) if one in row), None)) is not None:
                values[role] = row[known]
    return values


def require_none(problem: tuple[str, str] | None, values: Values, place: str) -> None:
    """Raise DataError for the field of a row that cannot be used, and the rule that its value breaks, if any."""
    if problem is not None:
        role, rule = problem
        raise DataError(f"{place}: {BadRow.of(0, role, values.get(role), rule).told}")


def alternatives_of(trained: Trained) -> tuple[tuple[str, ...], ...]:
    """Return the roles of the texts that a run reads: all of any one alternative."""
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
    # As nlu.predict looks for columns: the run's own names before those of roles.
    found = [
        {role: row[name] for role, name in names.items()}
        for roles in alternatives
        for names in (_names_of(trained, roles), {role: role for role in roles})
        if all(name in row for name in names.values())
    ]
    if found:
        # What the run calls its tokens may be called like the role of a text.
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
    """Return what the run's own rows call these roles; columns that it tells by their number have no name."""
    fields = trained.config.data["fields"] or {}
    return {role: name if isinstance(name := fields.get(role, role), str) else role for role in roles}


def either(alternatives: Sequence[Sequence[str]]) -> str:
    """Return alternatives of roles in words."""
    return " or ".join(" and ".join(roles) for roles in alternatives)


def _kind(row: object) -> str:
    if isinstance(row, str):
        return "one text"
    return f"a list of {len(row)}" if isinstance(row, list | tuple) else f"{row!r:.40}"
