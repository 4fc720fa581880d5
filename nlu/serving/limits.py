"""What a server takes of a request and of a client, and how it says what it does not."""

import asyncio
import math
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from starlette.requests import ClientDisconnect, Request

MOST_DRAINED = 16
"""times the size that is allowed: what is read of a request that is too large, so that its sender hears why"""
MOST_CLIENTS = 10_000
"""whose rates are known; beyond, the one that was silent for longest is forgotten"""
GONE = 499
"""status that is counted where the client did not wait; nobody reads it"""


class Refused(Exception):
    """A request that gets no answer: the status and one sentence."""

    def __init__(self, status: int, sentence: str, *, retry_after_s: float | None = None):
        super().__init__(sentence)
        # Half of a surrogate pair, which JSON can write, cannot be sent back.
        self.sentence = sentence.encode("utf-8", "backslashreplace").decode()
        self.status, self.retry_after_s = status, retry_after_s

    @property
    def headers(self) -> dict[str, str]:
        """What stands before the answer."""
        found = {"WWW-Authenticate": "Bearer"} if self.status == 401 else {}
        if self.retry_after_s is not None:
            found["Retry-After"] = str(max(1, math.ceil(self.retry_after_s)))
        return found


async def read_body(request: Request, most_kb: int, timeout_s: float) -> bytes:
    """Return the body. Raises Refused where it is larger than that, or does not come within that time."""
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
        raise Refused(408, f"the body did not come within {timeout_s:g} s, timeout_s of this server") from None
    if size > most:
        raise Refused(413, f"the body is larger than {most_kb} KB, max_body_kb of this server; send fewer rows at once")
    return bytes(body)


@dataclass
class Rates:
    """How many requests each client may send: so many a second, and as many at once (a token bucket)."""

    requests_per_s: float | None
    clock: Callable[[], float] = time.monotonic
    _left: OrderedDict[str, tuple[float, float]] = field(default_factory=OrderedDict)
    """of each client, the last to ask at the end: what it had left, and when"""

    def require(self, client: str) -> None:
        """Count a request. Raises Refused where the client has none left."""
        if self.requests_per_s is None:
            return
        now_s, burst = self.clock(), max(1.0, self.requests_per_s)
        left, since_s = self._left.get(client, (burst, now_s))
        left = min(burst, left + (now_s - since_s) * self.requests_per_s)
        if left < 1:
            raise Refused(
                429, f"more than {self.requests_per_s:g} requests a second from {client}; send fewer",
                retry_after_s=(1 - left) / self.requests_per_s,
            )  # fmt: skip
        self._left[client] = (left - 1, now_s)
        self._left.move_to_end(client)
        if len(self._left) > MOST_CLIENTS:
            self._left.popitem(last=False)
