"""The routes of a server: predictions, explanations, health, metrics for Prometheus, a page, and /openapi.json.

`nlu.serving.requests` checks bodies itself, with plainer messages than the schemas of /openapi.json would give.
"""

import asyncio
import json
import logging
import os
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import Future
from contextlib import asynccontextmanager
from dataclasses import asdict
from functools import partial
from importlib.resources import files
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

import nlu
from nlu.config.errors import UserError
from nlu.config.inference import Serve
from nlu.inference.attribution import explaining
from nlu.serving.batching import Batcher, Busy, Parts
from nlu.serving.listener import LOOPBACK, TOKEN
from nlu.serving.requests import GONE, AskedWhy, Rates, Refused, example_of, read_body, read_explain, read_predict
from nlu.serving.served import Newest, Served

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
    },
    "additionalProperties": {"type": "number", "description": "with scores: probability_LABEL"},
}
_REFUSALS = {
    status: {"description": text, "content": {"application/json": {"schema": {
        "type": "object", "properties": {"detail": _TEXT}}}}}
    for status, text in {
        400: "The server is for its own machine", 403: "Another site asks", 408: "The body came too slowly",
        401: "The token is missing or wrong", 413: "The body is too large", 422: "A row or a key cannot be used",
        429: "Too many requests, or too many rows wait", 500: "A mistake of the server", 504: "No answer in time",
    }.items()
}  # fmt: skip


def _route(summary: str, body: dict[str, Any], needed: str, answer: dict[str, Any]) -> dict[str, Any]:
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
    "How much each token of a row adds to its score, and the nearest mistakes on the evaluation set",
    {
        "row": _ROW,
        "label": {"type": ["string", "null"], "description": "default: what is predicted"},
        "span": {
            "type": ["array", "null"], "items": {"type": "integer"}, "description": "first and last unit, of a tagger"
        },
        "mistakes": {"type": ["integer", "null"], "description": "how many; default 0"},
    },
    "row",
    {
        "score_of": _TEXT, "score": {"type": "number"}, "baseline": {"type": "number"}, "gap": {"type": "number"},
        "marks": {"type": "array", "items": {"type": "object", "properties": {
            "field": _TEXT, "start": {"type": "integer"}, "end": {"type": "integer"},
            "attribution": {"type": "number"}}}},
        "mistakes": {"type": "array", "items": {"type": "object"}},
    },
)  # fmt: skip


SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Measures:
    """The metrics of one server."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self.requests = Counter("nlu_requests", "Requests answered", ["path", "status"], registry=self._registry)
        what = "Time from a request to its answer"
        self.seconds = Histogram("nlu_request_seconds", what, ["path"], buckets=SECONDS, registry=self._registry)
        self.rows = Counter("nlu_rows", "Rows predicted", registry=self._registry)
        self.batch_rows = Histogram("nlu_batch_rows", "Rows computed together", buckets=ROWS, registry=self._registry)
        self.reloads = Counter("nlu_reloads", "Newer checkpoints loaded", registry=self._registry)

    def watch_waiting(self, waiting_rows: Callable[[], int]) -> None:
        """Read the number of waiting rows from a function."""
        gauge = Gauge("nlu_waiting_rows", "Rows that wait to be computed", registry=self._registry)
        gauge.set_function(waiting_rows)

    def text(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self._registry)


log = logging.getLogger(__name__)

Handler = Callable[[Request], Awaitable[Response]]
PAGE = {
    "/": ("index.html", "text/html"),
    "/page.css": ("page.css", "text/css"),
    "/page.js": ("page.js", "text/javascript"),
}
"""the files of the page, which contain nothing about the run"""
HEADERS = {
    "Content-Security-Policy": "default-src 'self'; img-src data:; frame-ancestors 'none'; base-uri 'none'",
    "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer", "Cache-Control": "no-store",
}  # fmt: skip


class Application:
    """The state of a server. Everything except for the model runs in one event loop."""

    def __init__(self, config: Serve, newest: Newest):
        self.config, self.newest = config, newest
        self.measures = Measures()
        self.rates = Rates(config.requests_per_s)
        self.batcher = Batcher(
            batch_size=config.batch_size,
            most_waiting=config.max_waiting_rows,
            on_batch=self.measures.batch_rows.observe,
        )
        self.measures.watch_waiting(lambda: self.batcher.waiting_rows)
        self._token = os.environ.get(TOKEN)

    def routes(self) -> FastAPI:
        """Return the ASGI application."""
        # FastAPI's pages of documentation would load scripts from other sites, without asking for the token.
        app = FastAPI(
            title="nlu",
            version=nlu.__version__,
            docs_url=None,
            redoc_url=None,
            openapi_url=None,
            redirect_slashes=False,
            lifespan=self._life,
        )
        app.post("/predict", **PREDICT_ROUTE)(self._route("/predict", self.predict))
        app.post("/explain", **EXPLAIN_ROUTE)(self._route("/explain", self.explain))
        app.get("/labels", summary="What the run predicts, and the fields of a row")(
            self._route("/labels", self.labels)
        )
        health = self._route("/health", self.health, is_open=True)
        app.get("/health", summary="Whether the server answers, and by which checkpoint")(health)
        app.get("/metrics", summary="Counts and times, for Prometheus")(self._route("/metrics", self.metrics))

        async def described(request: Request) -> Response:
            return JSONResponse(app.openapi())

        app.get("/openapi.json", include_in_schema=False)(self._route("/openapi.json", described))
        for path, (name, kind) in PAGE.items():
            app.get(path, include_in_schema=False)(self._route(path, partial(_file, name, kind), is_open=True))
        app.add_exception_handler(404, _unknown_path)
        app.add_exception_handler(405, self._wrong_method)
        return app

    async def predict(self, request: Request) -> Response:
        served = self.newest.served
        asked = read_predict(await self._body(request), served.trained, self.config)
        found = await self._answer(
            lambda: self.batcher.submit(served.predictor, asked.values, with_logits=asked.logits), request
        )
        self.measures.rows.inc(len(found))
        return JSONResponse(
            {"rows": [asked.columns.cells(row, one) for row, one in zip(asked.values, found, strict=True)]}
        )

    async def explain(self, request: Request) -> Response:
        served = self.newest.served
        asked = read_explain(await self._body(request), served.trained, self.config)
        return JSONResponse(await self._answer(lambda: self.batcher.submit_long(_explained(served, asked)), request))

    async def labels(self, request: Request) -> Response:
        return JSONResponse(self.newest.served.about())

    async def health(self, request: Request) -> Response:
        is_alive = self.batcher.is_alive
        found = {
            "status": "ok" if is_alive else "broken",
            "checkpoint": self.newest.served.trained.located.checkpoint.name,
            "waiting_rows": self.batcher.waiting_rows,
        }
        return JSONResponse(found, 200 if is_alive else 503)

    async def metrics(self, request: Request) -> Response:
        return Response(self.measures.text(), media_type=CONTENT_TYPE_LATEST)

    def _route(self, path: str, handle: Handler, *, is_open: bool = False) -> Handler:
        """Return a handler that checks and counts requests, calls `handle`, and answers refused ones in one sentence.

        Requests are counted under `path`, since the path of a request is arbitrary. `is_open`: needs no token.
        """

        async def answer(request: Request) -> Response:
            began_s = time.perf_counter()
            try:
                self._require_near(request)
                if not is_open:
                    self._require_allowed(request)
                response = await handle(request)
            except Refused as refused:
                response = JSONResponse({"detail": refused.sentence}, refused.status, refused.headers)
            except Exception:
                log.exception("%s %s", request.method, path)
                response = JSONResponse({"detail": "internal error of the server; its log has the details"}, 500)
            self.measures.requests.labels(path, response.status_code).inc()
            self.measures.seconds.labels(path).observe(time.perf_counter() - began_s)
            return response

        return answer

    async def _wrong_method(self, request: Request, error: Any) -> Response:
        path, allowed, body = request.url.path, error.headers["Allow"], ""
        if path in ("/predict", "/explain"):
            try:
                # The message contains the fields of a row, which are only for allowed clients.
                self._require_near(request)
                self._require_allowed(request)
            except Refused as denied:
                return JSONResponse({"detail": denied.sentence}, denied.status, denied.headers)
            example = example_of(self.newest.served.trained)
            found = {"rows": [example]} if path == "/predict" else {"row": example}
            body = f" with a body such as {json.dumps(found)}"
        refused = f"{request.method:.20} {path:.80} is not answered; send {allowed}{body}"
        return JSONResponse({"detail": refused}, 405, error.headers)

    def _require_near(self, request: Request) -> None:
        """Refuse requests that a page of another site may have sent through a browser."""
        host = request.headers.get("host", "")
        # Such a page could reach this machine under a name of its site (DNS rebinding).
        if self.config.host in LOOPBACK and not self._token and _name_of(host) not in LOOPBACK:
            raise Refused(400, f"Host is {host:.80}, but this server is for its own machine; ask {self.config.host}")
        origin = request.headers.get("origin")
        # A browser does not send the token by itself, so with a token other sites cannot send requests.
        if origin is None or self._token:
            return
        names = {host}
        if self.config.proxies:
            # A page of another site cannot set this header: the browser would ask this server first, which refuses.
            names.add(request.headers.get("x-forwarded-host", host).partition(",")[0].strip())
        if origin.partition("://")[2] not in names:
            raise Refused(
                403,
                f"Origin is {origin:.80}, another site than that of this server, {host:.80}; behind a proxy that "
                "changes Host, set proxies, and let the proxy send X-Forwarded-Host",
            )

    def _require_allowed(self, request: Request) -> None:
        # Rate-limit wrong tokens too.
        self.rates.require(request.client.host if request.client else "")
        given = request.headers.get("authorization", "")
        if self._token and not secrets.compare_digest(given.encode(), f"Bearer {self._token}".encode()):
            raise Refused(401, f"the token is missing or wrong; send Authorization: Bearer, with {TOKEN} of the server")

    async def _body(self, request: Request) -> bytes:
        return await read_body(request, self.config.max_body_kb, self.config.timeout_s)

    async def _answer(self, submit: "Callable[[], Future[Any]]", request: Request) -> Any:
        """Return the result of the thread of the model.

        Raises Refused if too much waits, if it takes too long, or if the client has disconnected.
        """
        try:
            answer = asyncio.wrap_future(submit())
        except Busy as error:
            raise Refused(429, f"too many requests at once: {error}; try again later", retry_after_s=1) from None
        # After the body, the next message is that the client has disconnected.
        gone = asyncio.ensure_future(request.receive())
        try:
            await asyncio.wait((answer, gone), timeout=self.config.timeout_s, return_when=asyncio.FIRST_COMPLETED)
            if answer.done():
                return answer.result()
            if gone.done():
                raise Refused(GONE, "the client has gone")
            raise Refused(
                504, f"no answer within {self.config.timeout_s:g} s, timeout_s of this server; send fewer rows at once"
            )
        except UserError as error:
            raise Refused(422, " ".join(error.problems)) from None
        finally:
            gone.cancel()
            answer.cancel()

    @asynccontextmanager
    async def _life(self, app: FastAPI) -> AsyncIterator[None]:
        watch = asyncio.create_task(self._watch()) if self.config.reload_s else None
        try:
            yield
        finally:
            if watch is not None:
                watch.cancel()
                await asyncio.gather(watch, return_exceptions=True)
            await asyncio.to_thread(self.batcher.close)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self.config.reload_s)
            await asyncio.to_thread(self.newest.renew, self.measures.reloads.inc)


async def _unknown_path(request: Request, error: Exception) -> Response:
    return JSONResponse({"detail": f"unknown path {request.url.path:.80}; /openapi.json lists all paths"}, 404)


def _explained(served: Served, asked: AskedWhy) -> Parts:
    found = asdict((yield from explaining(served.predictor, asked.values, asked.label, asked.span)))
    nearest: list[dict[str, Any]] = []
    if asked.mistakes:
        try:
            nearest = (yield from served.mistakes()).nearest(asked.values, asked.mistakes)
        except UserError as error:
            # The explanation is still valid without the mistakes.
            log.warning("explain: no mistakes: %s", error)
    return {**found, "mistakes": nearest}


async def _file(name: str, kind: str, request: Request) -> Response:
    return Response(files("nlu.serving").joinpath("page", name).read_bytes(), media_type=kind, headers=HEADERS)


def _name_of(host: str) -> str:
    """Return the name in a Host header, without its port and brackets."""
    name = host.partition("]")[0].removeprefix("[") if host.startswith("[") else host.rpartition(":")[0] or host
    return name.lower()
