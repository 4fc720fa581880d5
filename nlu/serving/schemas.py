"""The bodies and answers of /predict and /explain, as /openapi.json describes them.

They are written by hand: `nlu.serving.requests` reads bodies without models of pydantic, from which FastAPI would make
them.
"""

from typing import Any, TypedDict


class Route(TypedDict):
    """Arguments of `FastAPI.post`."""

    summary: str
    responses: dict[int | str, dict[str, Any]]
    openapi_extra: dict[str, Any]


_TEXT = {"type": "string"}
_ROW = {
    "description": "Texts by field, as GET /labels names them, or by the run's own columns; also a text, or a list of "
    "two texts or of tokens, by itself",
    "oneOf": [
        {"type": "object", "properties": dict.fromkeys(("text", "text_a", "text_b"), _TEXT)
         | {"tokens": {"type": "array", "items": _TEXT}}},
        _TEXT,
        {"type": "array", "items": _TEXT},
    ],
}  # fmt: skip
_PREDICTED = {
    "type": "object",
    "description": "Columns as nlu.predict writes them",
    "properties": {
        "prediction": {"description": "a label, a list of labels, a number, or spans by type, first, last and text"},
        "probability": {"description": "of the prediction; where several labels apply, of each of them"},
        "similarity": {"type": "number", "description": "the cosine of both texts, of a run that compares them by it"},
        "logits": {"type": "array"},
        "windows": {"type": "integer", "description": "how many windows of the text were read, with long=windows"},
        "cut": {"type": "boolean", "description": "true where the text was longer than data.max_len and was cut"},
    },
    "additionalProperties": {"type": "number", "description": "with scores: probability_LABEL"},
}
_REFUSALS: dict[int | str, dict[str, Any]] = {
    status: {"description": text, "content": {"application/json": {"schema": {
        "type": "object", "properties": {"detail": _TEXT}}}}}
    for status, text in {
        400: "The server is for its own machine", 403: "Another site asks", 408: "The body came too slowly",
        401: "The token is missing or wrong", 413: "The body is too large", 422: "A row or a key cannot be used",
        429: "Too many requests, or too many rows wait", 500: "A mistake of the server", 504: "No answer in time",
    }.items()
}  # fmt: skip


def _route(summary: str, body: dict[str, object], needed: str, answer: dict[str, object]) -> Route:
    asked = {"type": "object", "properties": body, "required": [needed], "additionalProperties": False}
    answered = {"type": "object", "properties": answer}
    return {
        "summary": summary,
        "responses": {
            200: {"description": "Found", "content": {"application/json": {"schema": answered}}},
            **_REFUSALS,
        },
        "openapi_extra": {"requestBody": {"required": True, "content": {"application/json": {"schema": asked}}}},
    }


PREDICT_ROUTE = _route(
    "Predict rows; the prediction of a row does not depend on the others",
    {"rows": {"type": "array", "items": _ROW}, "scores": {"type": "boolean"}, "logits": {"type": "boolean"}},
    "rows",
    {"rows": {"type": "array", "items": _PREDICTED}},
)
EXPLAIN_ROUTE = _route(
    "How much each token of a row adds to its score",
    {
        "row": _ROW,
        "label": {"type": ["string", "null"], "description": "default: what is predicted"},
        "span": {
            "type": ["array", "null"], "items": {"type": "integer"}, "description": "first and last unit, of a tagger"
        },
    },
    "row",
    {
        "score_of": _TEXT, "score": {"type": "number"}, "baseline": {"type": "number"}, "gap": {"type": "number"},
        "marks": {"type": "array", "items": {"type": "object", "properties": {
            "field": _TEXT, "start": {"type": "integer"}, "end": {"type": "integer"},
            "attribution": {"type": "number"}}}},
    },
)  # fmt: skip
