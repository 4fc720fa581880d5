"""Read the rows in the body of a request, within limits. An error is one sentence."""

import asyncio
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeGuard

from starlette.requests import ClientDisconnect, Request

from nlu.config.errors import UserError
from nlu.config.inference import Serve
from nlu.config.nearest import hint
from nlu.data.layouts import Values
from nlu.inference.predictor import Columns, columns_of
from nlu.inference.source import alternatives_of, values_of
from nlu.inference.trained import Trained

MOST_DRAINED = 16
"""a body that is too large is read up to this multiple of the limit, so that its sender gets the answer"""
GONE = 499
"""the status that is counted if a client disconnects before the answer"""


class Refused(Exception):
    """A refused request: the status of the answer and one sentence."""

    def __init__(self, status: int, sentence: str, *, retry_after_s: float | None = None):
        super().__init__(sentence)
        # JSON may contain half of a surrogate pair, which cannot be encoded in the answer.
        self.sentence = sentence.encode("utf-8", "backslashreplace").decode()
        self.status, self.retry_after_s = status, retry_after_s

    @property
    def headers(self) -> dict[str, str]:
        """The headers of the answer."""
        found = {"WWW-Authenticate": "Bearer"} if self.status == 401 else {}
        if self.retry_after_s is not None:
            found["Retry-After"] = str(max(1, math.ceil(self.retry_after_s)))
        return found


async def read_body(request: Request, most_kb: int, timeout_s: float) -> bytes:
    """Return the body. Raises Refused if it is larger than `most_kb`, or takes longer than `timeout_s`."""
    most = most_kb * 1024
    body = bytearray()
    size = 0
    try:
        # One limit for the whole body: a client that sends a byte now and then would keep a limit for each piece
        # forever.
        async with asyncio.timeout(timeout_s):
            async for piece in request.stream():
                size += len(piece)
                if size <= most:
                    body += piece
                elif size > MOST_DRAINED * most:
                    break
    except ClientDisconnect:
        raise Refused(GONE, "the client has gone") from None
    except TimeoutError:
        raise Refused(408, f"the body did not arrive within {timeout_s:g} s, timeout_s of this server") from None
    if size > most:
        raise Refused(413, f"the body is larger than {most_kb} KB, max_body_kb of this server; send fewer rows at once")
    return bytes(body)


PREDICT = {"rows": "a list of rows", "scores": "true or false", "logits": "true or false"}
EXPLAIN = {"row": "a row", "label": "a label", "span": "the first and the last unit"}
"""the keys of a body, and what each holds"""


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
    scores, logits = (_flag(found, name) for name in ("scores", "logits"))
    values = [_values(trained, row, f"row {number}", limits) for number, row in enumerate(rows, 1)]
    try:
        return Asked(values, columns_of(trained, prefix="", scores=scores, logits=logits), logits)
    except UserError as error:
        raise Refused(422, " ".join(error.problems)) from None


def read_explain(body: bytes, trained: Trained, limits: Serve) -> AskedWhy:
    """Return the request in a body. Raises Refused."""
    found = _object(body, EXPLAIN, "row")
    label, span = found.get("label"), found.get("span")
    if label is not None and not isinstance(label, str):
        raise Refused(422, f"label is {label!r:.40} but must be a text")
    if span is not None and not (isinstance(span, list) and len(span) == 2 and all(map(_is_whole, span))):
        raise Refused(422, f"span is {span!r:.40} but must be the first and the last unit, such as [0, 3]")
    values = _values(trained, found["row"], "row", limits)
    return AskedWhy(values, label, None if span is None else (span[0], span[1]))


def example_of(trained: Trained) -> dict[str, str]:
    """Return a row that the run can read."""
    return dict.fromkeys(alternatives_of(trained)[-1], "...")


def _flag(found: Mapping[str, object], name: str) -> bool:
    """Return a key that is true or false, by default false. Raises Refused for another value."""
    value = found.get(name, False)
    if not isinstance(value, bool):
        raise Refused(422, f"{name} is {value!r:.40} but must be true or false")
    return value


def _is_whole(value: object) -> TypeGuard[int]:
    # True and False are integers too.
    return isinstance(value, int) and not isinstance(value, bool)


def _object(body: bytes, keys: Mapping[str, str], needed: str) -> dict[str, object]:
    try:
        found = json.loads(body.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise Refused(422, f"the body is not UTF-8: byte {error.start} ({error.reason}); send JSON") from None
    # Deeply nested JSON exceeds the recursion limit of Python's parser.
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
