"""Read the rows in the body of a request. An error is one sentence."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nlu.config.errors import UserError
from nlu.config.inference import Serve
from nlu.config.nearest import hint
from nlu.data.layouts import Values
from nlu.inference.predictor import Columns, columns_of
from nlu.inference.source import alternatives_of, values_of
from nlu.inference.trained import Trained
from nlu.serving.limits import Refused

PREDICT = {"rows": "a list of rows", "scores": "true or false", "logits": "true or false"}
EXPLAIN = {"row": "a row", "label": "a label", "span": "the first and the last unit", "mistakes": "a whole number"}
"""the keys of a body, and what each holds"""
MOST_MISTAKES = 20


@dataclass(frozen=True)
class Asked:
    """A request for predictions."""

    values: list[Values]
    columns: Columns
    logits: bool


@dataclass(frozen=True)
class AskedWhy:
    """A request for an explanation."""

    values: Values
    label: str | None
    span: tuple[int, int] | None
    mistakes: int


def read_predict(body: bytes, trained: Trained, limits: Serve) -> Asked:
    """Return the request in a body. Raises Refused."""
    found = _object(body, PREDICT, "rows")
    rows = found["rows"]
    if not isinstance(rows, list):
        raise Refused(422, f"rows is not a list; send {json.dumps({'rows': [example_of(trained)]})}")
    if len(rows) > limits.max_rows:
        raise Refused(
            422, f"rows has {len(rows):,} rows, but max_rows of this server is {limits.max_rows:,}; send fewer"
        )
    flags = {name: found.get(name, False) for name in ("scores", "logits")}
    if wrong := [name for name, value in flags.items() if not isinstance(value, bool)]:
        raise Refused(422, f"{wrong[0]} is {found[wrong[0]]!r:.40} but must be true or false")
    values = [_values(trained, row, f"row {number}", limits) for number, row in enumerate(rows, 1)]
    try:
        return Asked(values, columns_of(trained, prefix="", **flags), flags["logits"])
    except UserError as error:
        raise Refused(422, " ".join(error.problems)) from None


def read_explain(body: bytes, trained: Trained, limits: Serve) -> AskedWhy:
    """Return the request in a body. Raises Refused."""
    found = _object(body, EXPLAIN, "row")
    label, span, mistakes = (found.get(name) for name in ("label", "span", "mistakes"))
    if label is not None and not isinstance(label, str):
        raise Refused(422, f"label is {label!r:.40} but must be a text")
    if span is not None and not (isinstance(span, list) and len(span) == 2 and all(map(_is_whole, span))):
        raise Refused(422, f"span is {span!r:.40} but must be the first and the last unit, such as [0, 3]")
    if mistakes is not None and not (_is_whole(mistakes) and 0 <= mistakes <= MOST_MISTAKES):
        raise Refused(422, f"mistakes is {mistakes!r:.40} but must be a whole number from 0 to {MOST_MISTAKES}")
    values = _values(trained, found["row"], "row", limits)
    return AskedWhy(values, label, None if span is None else (span[0], span[1]), mistakes or 0)


def example_of(trained: Trained) -> dict[str, str]:
    """Return a row that the run can read."""
    return dict.fromkeys(alternatives_of(trained)[-1], "...")


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _object(body: bytes, keys: Mapping[str, str], needed: str) -> dict[str, Any]:
    try:
        found = json.loads(body.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise Refused(422, f"the body is not UTF-8: byte {error.start} ({error.reason}); send JSON") from None
    except (ValueError, RecursionError) as error:
        raise Refused(422, f"the body is not JSON ({error}); send an object with {', '.join(keys)}") from None
    if not isinstance(found, dict):
        raise Refused(422, f"the body is not an object; send one with {', '.join(keys)}")
    if unknown := [name for name in found if name not in keys]:
        raise Refused(422, f"{unknown[0]:.40}: unknown key; {hint(unknown[0], keys)}")
    if needed not in found:
        raise Refused(422, f"the body lacks {needed}, {keys[needed]}; send it")
    return found


def _values(trained: Trained, row: object, place: str, limits: Serve) -> Values:
    try:
        values = values_of(trained, row, place)
    except UserError as error:
        raise Refused(422, " ".join(error.problems)) from None
    if (count := sum(map(_characters, values.values()))) > limits.max_characters:
        raise Refused(
            422,
            f"{place} has {count:,} characters, but max_characters of this server is {limits.max_characters:,}; cut it",
        )
    return values


def _characters(value: str | Sequence[str]) -> int:
    return len(value) if isinstance(value, str) else sum(map(len, value))
