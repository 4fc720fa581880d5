"""The server of a run: the process with its start, signals and end, and its routes.

The routes are predictions, explanations, vectors, health, metrics for Prometheus, a page, and /openapi.json.
"""

import asyncio
import logging
import os
import resource
import secrets
import signal
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from concurrent.futures import Future
from contextlib import asynccontextmanager
from dataclasses import asdict
from functools import partial
from importlib.resources import files
from typing import Any, TypeVar

import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

import nlu
from nlu.config.command_keys import Serve
from nlu.config.errors import OutOfMemory, UserError
from nlu.data.layouts import Values
from nlu.inference.attribution import explaining
from nlu.inference.input_rows import alternatives_of, either
from nlu.runs import logs
from nlu.serving.batching import Batcher, Busy, Parts
from nlu.serving.bodies import GONE, ExplainBody, PredictBody, Refused, sentence_of
from nlu.serving.listener import BACKLOG, LOOPBACK, TOKEN
from nlu.serving.runs import Runs
from nlu.serving.served import Served
from nlu.serving.vectors import VectorRoutes

log = logging.getLogger(__name__)

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)

Handler = Callable[[Request], Coroutine[object, object, Response]]
T = TypeVar("T")
PAGE = {
    "/": ("index.html", "text/html"),
    "/page.css": ("page.css", "text/css"),
    "/page.js": ("page.js", "text/javascript"),
}
"""the files of the page, which contain nothing about the run"""
OPEN = {"/health", *PAGE}
"""the paths that need no token"""
REFUSALS: dict[int | str, dict[str, Any]] = {
    401: {"description": "The token is missing or wrong"},
    413: {"description": "The body is too large"},
    422: {"description": "A row or a key cannot be used"},
    429: {"description": "Too many rows wait"},
    504: {"description": "No answer in time"},
}
"""statuses of a refused request, whose answer is {"detail": SENTENCE}"""
HEADERS = {
    "Content-Security-Policy": "default-src 'self'; img-src data:; frame-ancestors 'none'; base-uri 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
MOST_HEADER_BYTES = 1 << 16
MOST_CONNECTIONS = 8192


class Measures:
    """The metrics of one server."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self.requests = Counter("nlu_requests", "Requests answered", ["path", "status"], registry=self._registry)
        what = "Time from a request to its answer"
        self.seconds = Histogram("nlu_request_seconds", what, ["path"], buckets=SECONDS, registry=self._registry)
        self.rows = Counter("nlu_rows", "Rows predicted", registry=self._registry)
        self.batch_rows = Histogram("nlu_batch_rows", "Rows computed together", buckets=ROWS, registry=self._registry)
        what = "Time of predictions by phase: reading, waiting, tokenizing, computing, writing"
        self.phases = Counter("nlu_phase_seconds", what, ["phase"], registry=self._registry)
        self.reloads = Counter("nlu_reloads", "Newer checkpoints loaded", registry=self._registry)

    def add(self, phase: str, seconds: float) -> None:
        """Add the time of a phase. Requests wait at the same time, so waiting may grow faster than time passes."""
        self.phases.labels(phase).inc(seconds)

    def watch_waiting(self, waiting_rows: Callable[[], int]) -> None:
        """Read the number of waiting rows from a function."""
        gauge = Gauge("nlu_waiting_rows", "Rows that wait to be computed", registry=self._registry)
        gauge.set_function(waiting_rows)

    def text(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self._registry)


class Application:
    """The state of a server. Everything except for the model runs in one event loop."""

    def __init__(self, config: Serve, runs: Runs):
        self.config, self.runs = config, runs
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
        answered = self._answered

        class Route(APIRoute):
            """A route whose requests are checked, counted, and refused in one sentence."""

            def get_route_handler(self) -> Handler:
                return partial(answered, self.path, super().get_route_handler())

        # FastAPI's pages of documentation would load scripts from other sites, without asking for the token.
        app = FastAPI(
            title="nlu",
            version=nlu.__version__,
            docs_url=None,
            redoc_url=None,
            openapi_url=None,
            redirect_slashes=False,
            lifespan=self._life,
            responses=REFUSALS,
        )
        app.router.route_class = Route
        app.post("/predict", summary="Predict rows, each independent of the others")(self.predict)
        app.post("/explain", summary="How much each token of a row adds to its score")(self.explain)
        VectorRoutes(self).add(app)
        app.get("/labels", summary="What the run predicts, and the fields of a row")(self.labels)
        app.get("/health", summary="Whether the server answers, and by which checkpoint")(self.health)
        app.get("/metrics", summary="Counts and times, for Prometheus")(self.metrics)

        async def described() -> Response:
            return JSONResponse(app.openapi())

        app.get("/openapi.json", include_in_schema=False)(described)
        for path, (name, kind) in PAGE.items():
            app.get(path, include_in_schema=False)(_file_of(name, kind))
        return app

    async def predict(self, asked: PredictBody, request: Request) -> Response:
        runs = self.runs
        served = runs.of(asked.run)
        columns, values = asked.columns(served.trained), asked.values(served.trained, self.config)
        self.measures.add("reading", time.perf_counter() - request.state.read_s)
        found = await self.result(
            lambda: self.batcher.submit(*runs.computing(asked.run, values), with_logits=asked.logits), request
        )
        self.count_rows(len(found))
        began_s = time.perf_counter()
        answer = JSONResponse({"rows": [columns.cells(row, one) for row, one in zip(values, found, strict=True)]})
        self.measures.add("writing", time.perf_counter() - began_s)
        return answer

    async def explain(self, asked: ExplainBody, request: Request) -> Response:
        served = self.runs.of(asked.run)
        values = asked.values(served.trained, self.config)
        span = None if asked.span is None else (asked.span[0], asked.span[1])
        parts = _explained(served, values, asked.label, span)
        return JSONResponse(await self.result(lambda: self.batcher.submit_long(parts), request))

    async def labels(self) -> Response:
        return JSONResponse(self.runs.of_each(Served.about, "runs"))

    async def health(self) -> Response:
        is_alive = self.batcher.is_alive
        found = {
            "status": "ok" if is_alive else "broken",
            "checkpoint": self.runs.of_each(lambda each: each.trained.located.checkpoint.name, "runs"),
            "waiting_rows": self.batcher.waiting_rows,
        }
        return JSONResponse(found, 200 if is_alive else 503)

    async def metrics(self) -> Response:
        return Response(self.measures.text(), media_type=CONTENT_TYPE_LATEST)

    async def _answered(self, path: str, handle: Handler, request: Request) -> Response:
        """Check and count a request, and answer it by `handle`, or in one sentence if it is refused.

        Requests are counted under `path`, since the path of a request is arbitrary.
        """
        # curl -d names another type, and FastAPI would not read the body as JSON.
        MutableHeaders(scope=request.scope)["Content-Type"] = "application/json"
        began_s = time.perf_counter()
        try:
            self._require_near(request)
            if path not in OPEN:
                self._require_allowed(request)
            await self._read_body(request)
            response = await handle(request)
        except Refused as error:
            response = _refusal(error)
        except RequestValidationError as error:
            response = _refusal(Refused(422, sentence_of(error, [each.trained for each in self.runs.served.values()])))
        except UserError as error:
            response = _refusal(Refused(422, " ".join(error.problems)))
        except HTTPException as error:
            # Bytes that are no text, or JSON that is nested too deeply.
            response = _refusal(Refused(422, f"{error.detail}; send JSON"))
        # FastAPI's own answer to an error would be a text without these headers and would not be counted.
        except Exception:
            log.exception("%s %s", request.method, path)
            response = _refusal(Refused(500, "internal error of the server; its log has the details"))
        self.measures.requests.labels(path, response.status_code).inc()
        self.measures.seconds.labels(path).observe(time.perf_counter() - began_s)
        return response

    async def _read_body(self, request: Request) -> None:
        """Wait for the body. Raises Refused if it is too large, or does not arrive in time."""
        limit_s, limit_kb, body = self.config.timeout_s, self.config.max_body_kb, bytearray()
        try:
            # One limit for the whole body: a client that sends a byte now and then would keep a limit for each piece
            # forever.
            async with asyncio.timeout(limit_s):
                async for piece in request.stream():
                    body += piece
                    if len(body) > limit_kb * 1024:
                        raise Refused(
                            413, f"the body is larger than {limit_kb} KB, max_body_kb of this server; send fewer rows"
                        )
        except ClientDisconnect:
            raise Refused(GONE, "the client has gone") from None
        except TimeoutError:
            raise Refused(408, f"the body did not arrive within {limit_s:g} s, timeout_s of this server") from None
        # FastAPI takes it from there.
        request._body = bytes(body)
        request.state.read_s = time.perf_counter()

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

    def count_rows(self, rows: int) -> None:
        """Count rows that were answered."""
        self.measures.rows.inc(rows)

    async def result(self, submit: Callable[[], Future[T]], request: Request) -> T:
        """Return the result of the thread of the model.

        Raises Refused if too much waits, if it takes too long, or if the client has disconnected.
        """
        try:
            answer = asyncio.wrap_future(submit())
        except Busy as error:
            raise Refused(429, f"too many requests at once: {error}; try again later") from None
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
            raise Refused(503, " ".join(error.problems)) from None
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
            self.runs = await asyncio.to_thread(self.runs.renewed, self.measures.reloads.inc)


def _refusal(refused: Refused) -> Response:
    return JSONResponse({"detail": refused.sentence}, refused.status, refused.headers)


def _explained(served: Served, values: Values, label: str | None, span: tuple[int, int] | None) -> Parts:
    return asdict((yield from explaining(served.predictor, values, label, span)))


def _file_of(name: str, kind: str) -> Callable[[], Awaitable[Response]]:
    async def answer() -> Response:
        content = files("nlu.serving").joinpath("page", name).read_bytes()
        return Response(content, media_type=kind, headers=HEADERS)

    return answer


def _name_of(host: str) -> str:
    """Return the name in a Host header, without its port and brackets."""
    name = host.partition("]")[0].removeprefix("[") if host.startswith("[") else host.rpartition(":")[0] or host
    return name.lower()


def run_server(config: Serve, listener: socket.socket) -> int:
    """Serve at a socket until a signal; returns the exit status. Raises UserError if the run cannot be loaded."""
    logs.set_up(None, 0)
    # Loaded before the server starts, so that /health answers only when rows can be predicted.
    runs = Runs.of_config(config)
    _allow_files()
    app = Application(config, runs)
    if config.compile:
        # Before any client waits, and in the thread of the model, to which CUDA graphs belong.
        only = runs.of(None).predictor
        app.batcher.submit(only, [only.simple_row()]).result()
    settings = uvicorn.Config(
        app.routes(),
        log_config=None,
        access_log=False,
        server_header=False,
        backlog=BACKLOG,
        ws="none",
        # The other parser does not limit the size of headers.
        http="h11",
        h11_max_incomplete_event_size=MOST_HEADER_BYTES,
        proxy_headers=False,
        limit_concurrency=MOST_CONNECTIONS,
        # A request that is running has at most this time left anyway.
        timeout_graceful_shutdown=max(1, round(config.timeout_s)),
    )
    server = uvicorn.Server(settings)
    _end_by_signals(server)
    _log_start(runs, listener)
    server.run(sockets=[listener])
    log.info("stopped")
    return 0


def _log_start(runs: Runs, listener: socket.socket) -> None:
    host, port = listener.getsockname()[:2]
    address = f"[{host}]" if ":" in host else host
    for served in runs.served.values():
        located = served.trained.located
        log.info("run %s, checkpoint %s, %s", located.run_dir, located.checkpoint.name, served.predictor.device)
    fields = f"rows of {', '.join(runs.served)}" if runs.mix else either(alternatives_of(served.trained))
    paths = "POST /predict, /encode, /similar, GET /labels, /health, /metrics, /openapi.json"
    log.info("http://%s:%d/ takes %s; %s", address, port, fields, paths)


def _end_by_signals(server: uvicorn.Server) -> None:
    """Handle signals before the server installs its own handlers, and after it, when it raises them again."""

    def end(*_: object) -> None:
        server.should_exit = True

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end)


def _allow_files() -> None:
    """Raise the limit of open files, and so of connections, to the maximum of this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
