"""Read the rows in the body of a request, within limits. An error is one sentence."""

import asyncio
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from annotated_types import Len
from pydantic import BaseModel, ConfigDict, ValidationError
from starlette.requests import ClientDisconnect, Request

from nlu.config.checks.values import rule_of
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


class PredictBody(BaseModel):
    """The body of a request to /predict."""

    model_config = ConfigDict(strict=True, extra="forbid")
    rows: list[Any]
    """texts by field, as GET /labels names them, or by the run's own columns; also a text, or a list of two texts or of
    tokens, by itself"""
    scores: bool = False
    logits: bool = False


class ExplainBody(BaseModel):
    """The body of a request to /explain."""

    model_config = ConfigDict(strict=True, extra="forbid")
    row: Any
    label: str | None = None
    """by default what is predicted"""
    span: Annotated[list[int], Len(2, 2)] | None = None
    """first and last unit, of a tagger"""


B = TypeVar("B", PredictBody, ExplainBody)


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
    found = _read(PredictBody, body, example_of(trained))
    if len(found.rows) > limits.max_rows:
        raise Refused(
            422, f"rows has {len(found.rows):,} rows, but max_rows of this server is {limits.max_rows:,}; send fewer"
        )
    values = [_values(trained, row, f"row {number}", limits) for number, row in enumerate(found.rows, 1)]
    try:
        return Asked(values, columns_of(trained, prefix="", scores=found.scores, logits=found.logits), found.logits)
    except UserError as error:
        raise Refused(422, " ".join(error.problems)) from None


def read_explain(body: bytes, trained: Trained, limits: Serve) -> AskedWhy:
    """Return the request in a body. Raises Refused."""
    found = _read(ExplainBody, body, example_of(trained))
    span = None if found.span is None else (found.span[0], found.span[1])
    return AskedWhy(_values(trained, found.row, "row", limits), found.label, span)


def example_of(trained: Trained) -> dict[str, str]:
    """Return a row that the run can read."""
    return dict.fromkeys(alternatives_of(trained)[-1], "...")


def _read(kind: type[B], body: bytes, example: dict[str, str]) -> B:
    keys = list(kind.model_fields)
    try:
        return kind.model_validate(json.loads(body.decode("utf-8")))
    except UnicodeDecodeError as error:
        raise Refused(422, f"the body is not UTF-8: byte {error.start} ({error.reason}); send JSON") from None
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False)
        # A wrong name explains that another one is missing.
        first = max(found, key=lambda one: one["type"] == "extra_forbidden")
        name = str(first["loc"][0]) if first["loc"] else ""
    # Deeply nested JSON exceeds the recursion limit of Python's parser.
    except (ValueError, RecursionError) as error:
        raise Refused(422, f"the body is not JSON ({error}); send an object with {', '.join(keys)}") from None
    if not name:
        raise Refused(422, f"the body is not an object, or has a key that is no text; send one with {', '.join(keys)}")
    if name not in keys:
        raise Refused(422, f"{name:.40}: unknown key; {hint(name, keys)}")
    if name == "rows" or first["type"] == "missing":
        wrong = f"the body lacks {name}" if first["type"] == "missing" else f"{name} is not a list"
        valid = {"rows": [example]} if kind is PredictBody else {"row": example}
        raise Refused(422, f"{wrong}; send {json.dumps(valid)}")
    rule = rule_of(kind.model_fields[name].annotation)
    raise Refused(422, f"{name} is {first['input']!r:.40} but must be {rule}")


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
