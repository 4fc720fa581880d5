"""The routes of a server: predictions, explanations, what is served and how it fares, and a page to try it."""

import asyncio
import logging
import os
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import Future
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict
from importlib.resources import files
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from starlette.middleware.trustedhost import TrustedHostMiddleware

import nlu
from nlu.config.errors import UserError
from nlu.config.inference import Serve
from nlu.inference.attribution import explain
from nlu.serving.batching import Batcher, Busy
from nlu.serving.limits import Rates, Refused, read_body
from nlu.serving.measures import CONTENT_TYPE, Measures
from nlu.serving.requests import AskedWhy, read_explain, read_predict
from nlu.serving.schema import EXPLAIN_ROUTE, PREDICT_ROUTE
from nlu.serving.served import Newest, Served

log = logging.getLogger(__name__)

TOKEN = "NLU_SERVE_TOKEN"
"""environment variable: what clients must send as `Authorization: Bearer ...`"""
LOOPBACK = ("127.0.0.1", "::1", "localhost")
OPEN = ("/health", "/", "/page.css", "/page.js")
"""what needs no token: neither the state of the server nor the empty page tells anything of the run"""
PAGE = {"/": ("index.html", "text/html"), "/page.css": ("page.css", "text/css"),
        "/page.js": ("page.js", "text/javascript")}  # fmt: skip
HEADERS = {
    "Content-Security-Policy": "default-src 'self'; img-src data:; frame-ancestors 'none'; base-uri 'none'",
    "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer", "Cache-Control": "no-store",
}  # fmt: skip
GONE = 499
"""status that is counted where the client did not wait; nobody reads it"""


class Application:
    """What the routes share. All of it but the model runs on one event loop."""

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
        """Return the application that a server runs."""
        # Its own pages of documentation would load scripts from elsewhere; /openapi.json needs none.
        app = FastAPI(title="nlu", version=nlu.__version__, docs_url=None, redoc_url=None, lifespan=self._life)
        app.post("/predict", **PREDICT_ROUTE)(self._route(self.predict))
        app.post("/explain", **EXPLAIN_ROUTE)(self._route(self.explain))
        app.get("/labels", summary="What the run predicts, and the fields of a row")(self._route(self.labels))
        app.get("/health", summary="Whether the server answers, and by which checkpoint")(self._route(self.health))
        app.get("/metrics", summary="Counts and times, for Prometheus")(self._route(self.metrics))
        for path in PAGE:
            app.get(path, include_in_schema=False)(self._route(self.page))
        app.add_exception_handler(404, _unknown_path)
        if self.config.host in LOOPBACK and not self._token:
            # A page from elsewhere that a browser here shows could reach this server under a name of its own.
            app.add_middleware(TrustedHostMiddleware, allowed_hosts=[*LOOPBACK, "[::1]"])
        return app

    async def predict(self, request: Request) -> Response:
        served = self.newest.served
        asked = read_predict(await read_body(request, self.config.max_body_kb), served.trained, self.config)
        found = await self._answer(
            lambda: self.batcher.submit(served.predictor, asked.values, with_logits=asked.logits), request
        )
        self.measures.rows.inc(len(found))
        return JSONResponse(
            {"rows": [asked.columns.cells(row, one) for row, one in zip(asked.values, found, strict=True)]}
        )

    async def explain(self, request: Request) -> Response:
        served = self.newest.served
        asked = read_explain(await read_body(request, self.config.max_body_kb), served.trained, self.config)
        return JSONResponse(await self._answer(lambda: self.batcher.call(lambda: _explained(served, asked)), request))

    async def labels(self, request: Request) -> Response:
        return JSONResponse(self.newest.served.about())

    async def health(self, request: Request) -> Response:
        return JSONResponse(
            {
                "status": "ok", "checkpoint": self.newest.served.trained.located.checkpoint.name,
                "waiting_rows": self.batcher.waiting_rows,
            }
        )  # fmt: skip

    async def metrics(self, request: Request) -> Response:
        return Response(self.measures.text(), media_type=CONTENT_TYPE)

    async def page(self, request: Request) -> Response:
        name, kind = PAGE[request.url.path]
        return Response(files("nlu.serving").joinpath("page", name).read_bytes(), media_type=kind, headers=HEADERS)

    def _route(self, handle: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
        """Return what answers requests by `handle`: counted, allowed, and refused in one sentence."""

        async def answer(request: Request) -> Response:
            began_s, path = time.perf_counter(), request.url.path
            try:
                self._require_allowed(request)
                response = await handle(request)
            except Refused as refused:
                response = JSONResponse({"detail": refused.sentence}, refused.status, refused.headers)
            except Exception:
                log.exception("%s %s", request.method, path)
                response = JSONResponse({"detail": "a mistake of the server, which its log tells of"}, 500)
            self.measures.requests.labels(path, response.status_code).inc()
            self.measures.seconds.labels(path).observe(time.perf_counter() - began_s)
            return response

        return answer

    def _require_allowed(self, request: Request) -> None:
        if request.url.path in OPEN:
            return
        given = request.headers.get("authorization", "")
        if self._token and not secrets.compare_digest(given.encode(), f"Bearer {self._token}".encode()):
            raise Refused(401, f"the token is missing or wrong; send Authorization: Bearer, with {TOKEN} of the server")
        self.rates.require(request.client.host if request.client else "")

    async def _answer(self, submit: "Callable[[], Future[Any]]", request: Request) -> Any:
        """Return what the model's thread finds. Raises Refused where too much waits, and where it takes too long."""
        try:
            answer = submit()
        except Busy as error:
            raise Refused(429, f"too much is asked at once: {error}; try again later", retry_after_s=1) from None
        try:
            return await asyncio.wait_for(asyncio.wrap_future(answer), self.config.timeout_s)
        except TimeoutError:
            raise Refused(
                504, f"no answer within {self.config.timeout_s:g} s, timeout_s of this server; send fewer rows at once"
            ) from None
        except UserError as error:
            raise Refused(422, " ".join(error.problems)) from None

    @asynccontextmanager
    async def _life(self, app: FastAPI) -> AsyncIterator[None]:
        watch = asyncio.create_task(self._watch()) if self.config.reload_s else None
        try:
            yield
        finally:
            if watch is not None:
                watch.cancel()
                with suppress(asyncio.CancelledError):
                    await watch
            await asyncio.to_thread(self.batcher.close)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self.config.reload_s)
            if await asyncio.to_thread(self.newest.renew):
                self.measures.reloads.inc()


async def _unknown_path(request: Request, error: Exception) -> Response:
    return JSONResponse({"detail": f"there is no {request.url.path:.80}; /openapi.json lists what there is"}, 404)


def _explained(served: Served, asked: AskedWhy) -> dict[str, Any]:
    found = asdict(explain(served.predictor, asked.values, asked.label, asked.span))
    nearest = served.mistakes.nearest(asked.values, asked.mistakes) if asked.mistakes else []
    return {**found, "mistakes": nearest}
