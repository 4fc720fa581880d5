"""The address of a server: it is taken before torch is imported, so that a port in use is told at once."""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import ip_network

from nlu.config.errors import UserError
from nlu.config.inference import Serve
from nlu.storage.environment import name_of

TOKEN = name_of("nlu.serve", "token")
"""environment variable: what clients must send as `Authorization: Bearer ...`"""
LOOPBACK = ("127.0.0.1", "::1", "localhost")
BACKLOG = 4096
"""connections that wait to be taken"""


@contextmanager
def listening(config: Serve) -> Iterator[socket.socket]:
    """Give the socket of the address. Raises UserError where that is another's, or its port in use."""
    _require_addresses(config.proxies)
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
        yield listener


def _require_addresses(proxies: list[str]) -> None:
    for proxy in proxies:
        try:
            ip_network(proxy)
        except ValueError as error:
            raise UserError(f"proxies has {proxy!r}, which is no address ({error}); give e.g. 10.0.0.7") from None
