"""The process that serves a run: its socket, its signals, its end."""

import logging
import os
import resource
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import ip_network

import uvicorn

from nlu.config.errors import UserError
from nlu.config.inference import Serve
from nlu.inference.rows import alternatives_of, either
from nlu.runs import logs
from nlu.serving.application import LOOPBACK, TOKEN, Application
from nlu.serving.served import Newest

log = logging.getLogger(__name__)

MOST_HEADER_BYTES = 1 << 16
MOST_CONNECTIONS = 8192
BACKLOG = 4096
"""connections that wait to be taken"""


def run_server(config: Serve) -> int:
    """Serve until a signal ends it; returns the exit status.

    Raises UserError where the run cannot be loaded, the address is another's, or the port is in use.
    """
    logs.set_up(None, 0)
    _require_addresses(config.proxies)
    with _listening(config) as listener:
        newest = Newest(config)
        _allow_files()
        app = Application(config, newest)
        settings = uvicorn.Config(
            app.routes(), log_config=None, access_log=False, server_header=False, backlog=BACKLOG, ws="none",
            # The other parser bounds no headers.
            http="h11", h11_max_incomplete_event_size=MOST_HEADER_BYTES,
            # Who else says for whom it asks may make it up.
            proxy_headers=bool(config.proxies), forwarded_allow_ips=config.proxies,
            limit_concurrency=MOST_CONNECTIONS, timeout_graceful_shutdown=max(1, round(config.timeout_s)),
        )  # fmt: skip
        server = uvicorn.Server(settings)
        _end_by_signals(server)
        _tell(newest, listener)
        server.run(sockets=[listener])
    log.info("stopped")
    return 0


def _require_addresses(proxies: list[str]) -> None:
    for proxy in proxies:
        try:
            ip_network(proxy)
        except ValueError as error:
            raise UserError(f"proxies has {proxy!r}, which is no address ({error}); give e.g. 10.0.0.7") from None


@contextmanager
def _listening(config: Serve) -> Iterator[socket.socket]:
    """Give the socket of the address, taken before anything is loaded."""
    if config.host not in LOOPBACK and not os.environ.get(TOKEN):
        raise UserError(
            f"host is {config.host}, which others can reach, but the environment has no {TOKEN}; set it to a secret "
            "that clients send, or leave out host"
        )
    try:
        family, _, _, _, address = socket.getaddrinfo(config.host, config.port, type=socket.SOCK_STREAM)[0]
    except socket.gaierror as error:
        raise UserError(f"host is {config.host}, which is no address here ({error.strerror}); set host") from None
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(address)
            listener.listen(BACKLOG)
        except OSError as error:
            raise UserError(
                f"port is {config.port}, which cannot be used at {config.host} ({error.strerror}); set port to "
                "another, or to 0 for one that is free"
            ) from None
        listener.setblocking(False)
        yield listener


def _tell(newest: Newest, listener: socket.socket) -> None:
    host, port = listener.getsockname()[:2]
    address = f"[{host}]" if ":" in host else host
    located = newest.served.trained.located
    log.info("run %s, checkpoint %s, %s", located.run_dir, located.checkpoint.name, newest.served.predictor.device)
    fields = either(alternatives_of(newest.served.trained))
    log.info("http://%s:%d/ takes %s; POST /predict, GET /labels, /health, /metrics, /openapi.json",
             address, port, fields)  # fmt: skip


def _end_by_signals(server: uvicorn.Server) -> None:
    """Have a signal end the server also before and after it minds signals itself, when it raises them once more."""

    def end(*_: object) -> None:
        server.should_exit = True

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end)


def _allow_files() -> None:
    """Let as many connections be open as the system allows this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
