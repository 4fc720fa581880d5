"""What a client may send: bodies, which FastAPI reads, their rows within the limits of a server, and refusals."""

import json
from collections.abc import Sequence
from typing import Annotated, Any

from annotated_types import Len
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict

from nlu.config.command_keys import Serve
from nlu.data.layouts import Values
from nlu.inference.cells import Columns, columns_of
from nlu.inference.input_rows import alternatives_of, values_of
from nlu.inference.trained import Trained

GONE = 499
"""the status that is counted if a client disconnects before the answer"""


class Refused(Exception):
    """A refused request: the status of the answer and one sentence."""

    def __init__(self, status: int, sentence: str):
        super().__init__(sentence)
        # JSON may contain half of a surrogate pair, which cannot be encoded in the answer.
        self.status, self.sentence = status, sentence.encode("utf-8", "backslashreplace").decode()

    @property
    def headers(self) -> dict[str, str]:
        """The headers of the answer."""
        return {401: {"WWW-Authenticate": "Bearer"}, 429: {"Retry-After": "1"}, 503: {"Retry-After": "1"}}.get(
            self.status, {}
        )


class PredictBody(BaseModel):
    """The body of a request to /predict."""

    model_config = ConfigDict(strict=True, extra="forbid")
    rows: list[Any]
    """texts by field, as GET /labels names them, or by the run's own columns; also a text, or a list of two texts or of
    tokens, by itself"""
    scores: bool = False
    logits: bool = False
    run: str | None = None
    """the name of the run, of a server of several"""

    def columns(self, trained: Trained) -> Columns:
        """Return what the answer has for each row. Raises UserError for what the run does not predict."""
        return columns_of(trained, prefix="", scores=self.scores, logits=self.logits)

    def values(self, trained: Trained, limits: Serve) -> list[Values]:
        """Return the texts of the rows by role. Raises Refused, and UserError for a row that cannot be used."""
        require_few_rows(len(self.rows), "rows", limits)
        return [_values(trained, row, f"row {number}", limits) for number, row in enumerate(self.rows, 1)]


class ExplainBody(BaseModel):
    """The body of a request to /explain."""

    model_config = ConfigDict(strict=True, extra="forbid")
    row: Any
    label: str | None = None
    """by default what is predicted"""
    span: Annotated[list[int], Len(2, 2)] | None = None
    """first and last unit, of a tagger"""
    run: str | None = None
    """the name of the run, of a server of several"""

    def values(self, trained: Trained, limits: Serve) -> Values:
        """Return the texts of the row by role. Raises Refused, and UserError for a row that cannot be used."""
        return _values(trained, self.row, "row", limits)


def _values(trained: Trained, row: object, place: str, limits: Serve) -> Values:
    values = values_of(trained, row, place)
    require_few_characters(values, place, limits)
    return values


def require_few_rows(count: int, what: str, limits: Serve) -> None:
    """Raise Refused for more rows than a request may have."""
    if count > limits.max_rows:
        raise Refused(422, f"{what} has {count:,} rows, but max_rows of this server is {limits.max_rows:,}; send fewer")


def require_few_characters(values: Values, place: str, limits: Serve) -> None:
    """Raise Refused for longer texts than a row may have."""
    if (count := sum(map(_characters, values.values()))) > limits.max_characters:
        raise Refused(
            422,
            f"{place} has {count:,} characters, but max_characters of this server is {limits.max_characters:,}; cut it",
        )


def _characters(value: str | Sequence[str]) -> int:
    return len(value) if isinstance(value, str) else sum(map(len, value))


def sentence_of(error: RequestValidationError, runs: Sequence[Trained]) -> str:
    """Return what is wrong with a body, as pydantic says it, with a row that the run can read, if there is one run."""
    # A wrong name explains that another one is missing.
    first = max(error.errors(), key=lambda one: one["type"] == "extra_forbidden")
    place, why = ".".join(map(str, first["loc"])), first.get("ctx", {}).get("error")
    said = first["msg"] if why is None else f"{first['msg']} ({why})"
    row = f"a row is {json.dumps(dict.fromkeys(alternatives_of(runs[0])[-1], '...'))}"
    row = row if len(runs) == 1 else "GET /labels the fields of a row"
    return f"{place:.80}: {said}; GET /openapi.json has the keys, and {row}"
