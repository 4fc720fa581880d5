"""Limits for requests and clients, and the answer to a request that is refused."""

import asyncio
import math
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from starlette.requests import ClientDisconnect, Request

MOST_DRAINED = 16
"""a body that is too large is read up to this multiple of the limit, so that its sender gets the answer"""
MOST_CLIENTS = 10_000
"""the number of clients whose rates are kept; above it, the one with the oldest request is forgotten"""
GONE = 499
"""the status that is counted if a client disconnects before the answer"""


class Refused(Exception):
    """A refused request: the status of the answer and one sentence."""

    def __init__(self, status: int, sentence: str, *, retry_after_s: float | None = None):
        super().__init__(sentence)
        # JSON may contain half of a surrogate pair, which cannot be encoded in the answer.
        self.sentence = sentence.encode("utf-8", "backslashreplace").decode()
        self.status, self.retry_after_s = status, retry_after_s

    @property
    def headers(self) -> dict[str, str]:
        """The headers of the answer."""
        found = {"WWW-Authenticate": "Bearer"} if self.status == 401 else {}
        if self.retry_after_s is not None:
            found["Retry-After"] = str(max(1, math.ceil(self.retry_after_s)))
        return found


async def read_body(request: Request, most_kb: int, timeout_s: float) -> bytes:
    """Return the body. Raises Refused if it is larger than `most_kb`, or takes longer than `timeout_s`."""
    most = most_kb * 1024
    body = bytearray()
    size = 0
    try:
        async with asyncio.timeout(timeout_s):
            async for piece in request.stream():
                size += len(piece)
                if size <= most:
                    body += piece
                elif size > MOST_DRAINED * most:
                    break
    except ClientDisconnect:
        raise Refused(GONE, "the client has gone") from None
    except TimeoutError:
        raise Refused(408, f"the body did not arrive within {timeout_s:g} s, timeout_s of this server") from None
    if size > most:
        raise Refused(413, f"the body is larger than {most_kb} KB, max_body_kb of this server; send fewer rows at once")
    return bytes(body)


@dataclass
class Rates:
    """Limits the requests of each client to `requests_per_s`, with bursts of the same number (a token bucket)."""

    requests_per_s: float | None
    clock: Callable[[], float] = time.monotonic
    _left: OrderedDict[str, tuple[float, float]] = field(default_factory=OrderedDict)
    """by client, the one with the newest request last: the tokens that were left, and when"""

    def require(self, client: str) -> None:
        """Count a request. Raises Refused if the client exceeds the limit."""
        if self.requests_per_s is None:
            return
        now_s, burst = self.clock(), max(1.0, self.requests_per_s)
        left, since_s = self._left.get(client, (burst, now_s))
        left = min(burst, left + (now_s - since_s) * self.requests_per_s)
        if left < 1:
            sentence = f"more than {self.requests_per_s:g} requests a second from {client}; send fewer"
            raise Refused(429, sentence, retry_after_s=(1 - left) / self.requests_per_s)
        self._left[client] = (left - 1, now_s)
        self._left.move_to_end(client)
        if len(self._left) > MOST_CLIENTS:
            self._left.popitem(last=False)
