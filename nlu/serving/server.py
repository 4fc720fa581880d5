"""The process that serves a run: start, signals and end."""

import logging
import resource
import signal
import socket

import uvicorn

from nlu.config.command_keys import Serve
from nlu.inference.source import alternatives_of, either
from nlu.runs import logs
from nlu.serving.application import Application
from nlu.serving.listener import BACKLOG
from nlu.serving.served import Newest

log = logging.getLogger(__name__)

MOST_HEADER_BYTES = 1 << 16
MOST_CONNECTIONS = 8192


def run_server(config: Serve, listener: socket.socket) -> int:
    """Serve at a socket until a signal; returns the exit status. Raises UserError if the run cannot be loaded."""
    logs.set_up(None, 0)
    # Loaded before the server starts, so that /health answers only when rows can be predicted.
    newest = Newest(config)
    _allow_files()
    app = Application(config, newest)
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
    _log_start(newest, listener)
    server.run(sockets=[listener])
    log.info("stopped")
    return 0


def _log_start(newest: Newest, listener: socket.socket) -> None:
    host, port = listener.getsockname()[:2]
    address = f"[{host}]" if ":" in host else host
    located = newest.served.trained.located
    log.info("run %s, checkpoint %s, %s", located.run_dir, located.checkpoint.name, newest.served.predictor.device)
    fields = either(alternatives_of(newest.served.trained))
    paths = "POST /predict, GET /labels, /health, /metrics, /openapi.json"
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
