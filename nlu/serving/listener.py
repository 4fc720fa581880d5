"""The socket of a server, opened before torch is imported, so that a port in use is reported at once."""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from nlu.config.command_keys import Serve
from nlu.config.errors import UserError
from nlu.config.redaction import name_of

TOKEN = name_of("nlu.serve", "token")
"""the environment variable with the token that clients must send as `Authorization: Bearer ...`"""
LOOPBACK = ("127.0.0.1", "::1", "localhost")
BACKLOG = 4096
"""the number of connections that may wait to be accepted"""


@contextmanager
def listening(config: Serve) -> Iterator[socket.socket]:
    """Yield the socket of the address. Raises UserError if the host is not of this machine or the port is in use."""
    if config.host not in LOOPBACK and not os.environ.get(TOKEN):
        raise UserError(
            f"host is {config.host}, which other machines can reach, but {TOKEN} is not set in the environment; set it "
            "to a secret that clients send, or leave out host"
        )
    try:
        family, _, _, _, address = socket.getaddrinfo(config.host, config.port, type=socket.SOCK_STREAM)[0]
    except socket.gaierror as error:
        raise UserError(
            f"host is {config.host}, which is not an address of this machine ({error.strerror}); set host to one"
        ) from None
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        # Connections of an earlier server stay in TIME_WAIT for a minute, in which the port could not be bound again.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(address)
            listener.listen(BACKLOG)
        except OSError as error:
            raise UserError(
                f"port is {config.port}, which cannot be used at {config.host} ({error.strerror}); set port to "
                "another, or to 0 for any free port"
            ) from None
        yield listener
