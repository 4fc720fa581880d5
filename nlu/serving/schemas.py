"""The answers of /predict and /explain, and what they refuse, as /openapi.json describes them."""

from typing import Any, TypedDict

from pydantic import BaseModel

from nlu.serving.requests import ExplainBody, PredictBody


class Route(TypedDict):
    """Arguments of `FastAPI.post`."""

    summary: str
    responses: dict[int | str, dict[str, Any]]
    openapi_extra: dict[str, Any]


_REFUSALS: dict[int | str, dict[str, Any]] = {
    status: {"description": text, "content": {"application/json": {"schema": {
        "type": "object", "properties": {"detail": {"type": "string"}}}}}}
    for status, text in {
        400: "The server is for its own machine", 403: "Another site asks", 408: "The body came too slowly",
        401: "The token is missing or wrong", 413: "The body is too large", 422: "A row or a key cannot be used",
        429: "Too many rows wait", 500: "A mistake of the server", 504: "No answer in time",
    }.items()
}  # fmt: skip


def _route(summary: str, body: type[BaseModel], answer: str) -> Route:
    asked = {"required": True, "content": {"application/json": {"schema": body.model_json_schema()}}}
    return {
        "summary": summary,
        "responses": {200: {"description": answer}, **_REFUSALS},
        "openapi_extra": {"requestBody": asked},
    }


PREDICT_ROUTE = _route(
    "Predict rows; the prediction of a row does not depend on the others",
    PredictBody,
    "rows: for each row, columns as nlu.predict writes them",
)
EXPLAIN_ROUTE = _route(
    "How much each token of a row adds to its score",
    ExplainBody,
    "score_of, score, baseline, gap, and marks with field, start, end and attribution",
)
