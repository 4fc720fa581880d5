"""The routes of a server: predictions, explanations, health, metrics for Prometheus, a page, and /openapi.json."""

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
from typing import TypeVar

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException

import nlu
from nlu.config.errors import OutOfMemory, UserError
from nlu.config.inference import Serve
from nlu.inference.attribution import explaining
from nlu.serving.batching import Batcher, Busy, Parts
from nlu.serving.listener import LOOPBACK, TOKEN
from nlu.serving.measures import Measures
from nlu.serving.requests import GONE, AskedWhy, Refused, example_of, read_body, read_explain, read_predict
from nlu.serving.schemas import EXPLAIN_ROUTE, PREDICT_ROUTE
from nlu.serving.served import Newest, Served

log = logging.getLogger(__name__)

Handler = Callable[[Request], Awaitable[Response]]
T = TypeVar("T")
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
        self.batcher = Batcher(
            batch_size=config.batch_size,
            most_waiting=config.max_waiting_rows,
            on_batch=self.measures.batch_rows.observe,
            on_phase=self.measures.add,
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
        served, body = self.newest.served, await self._body(request)
        began_s = time.perf_counter()
        asked = read_predict(body, served.trained, self.config)
        self.measures.add("reading", time.perf_counter() - began_s)
        found = await self._answer(
            lambda: self.batcher.submit(served.predictor, asked.values, with_logits=asked.logits), request
        )
        self.measures.rows.inc(len(found))
        began_s = time.perf_counter()
        answer = JSONResponse(
            {"rows": [asked.columns.cells(row, one) for row, one in zip(asked.values, found, strict=True)]}
        )
        self.measures.add("writing", time.perf_counter() - began_s)
        return answer

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
            # FastAPI's own answer to an error would be a text without these headers and would not be counted.
            except Exception:
                log.exception("%s %s", request.method, path)
                response = JSONResponse({"detail": "internal error of the server; its log has the details"}, 500)
            self.measures.requests.labels(path, response.status_code).inc()
            self.measures.seconds.labels(path).observe(time.perf_counter() - began_s)
            return response

        return answer

    async def _wrong_method(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException) and error.headers, "Starlette raises it for 405, with Allow"
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
        if origin.partition("://")[2] != host:
            raise Refused(
                403,
                f"Origin is {origin:.80}, another site than that of this server, {host:.80}; behind a proxy that "
                f"changes Host, set {TOKEN}, and let the proxy send the token",
            )

    def _require_allowed(self, request: Request) -> None:
        given = request.headers.get("authorization", "")
        # Compared in constant time: the time of == would show how many characters are right.
        if self._token and not secrets.compare_digest(given.encode(), f"Bearer {self._token}".encode()):
            raise Refused(401, f"the token is missing or wrong; send Authorization: Bearer, with {TOKEN} of the server")

    async def _body(self, request: Request) -> bytes:
        return await read_body(request, self.config.max_body_kb, self.config.timeout_s)

    async def _answer(self, submit: Callable[[], Future[T]], request: Request) -> T:
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
        except OutOfMemory as error:
            raise Refused(503, " ".join(error.problems), retry_after_s=1) from None
        except UserError as error:
            raise Refused(422, " ".join(error.problems)) from None
        finally:
            # On every way out. Cancelling the answer skips the rows that were not computed yet; it does nothing to a
            # finished one.
            gone.cancel()
            answer.cancel()

    @asynccontextmanager
    async def _life(self, app: FastAPI) -> AsyncIterator[None]:
        watch = asyncio.create_task(self._watch()) if self.config.reload_s else None
        try:
            yield
        finally:
            if watch is not None:
                # First the reload, which could load a checkpoint during the shutdown; then the batcher, which finishes
                # the waiting rows.
                watch.cancel()
                await asyncio.gather(watch, return_exceptions=True)
            await asyncio.to_thread(self.batcher.close)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self.config.reload_s)
            # In another thread, since loading takes seconds in which the event loop must answer.
            await asyncio.to_thread(self.newest.renew, self.measures.reloads.inc)


async def _unknown_path(request: Request, error: Exception) -> Response:
    return JSONResponse({"detail": f"unknown path {request.url.path:.80}; /openapi.json lists all paths"}, 404)


def _explained(served: Served, asked: AskedWhy) -> Parts:
    return asdict((yield from explaining(served.predictor, asked.values, asked.label, asked.span)))


async def _file(name: str, kind: str, request: Request) -> Response:
    return Response(files("nlu.serving").joinpath("page", name).read_bytes(), media_type=kind, headers=HEADERS)


def _name_of(host: str) -> str:
    """Return the name in a Host header, without its port and brackets."""
    name = host.partition("]")[0].removeprefix("[") if host.startswith("[") else host.rpartition(":")[0] or host
    return name.lower()
