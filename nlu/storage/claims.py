"""Files that one process alone may make: what keeps commands apart where a file system knows no locks.

Unlike a lock such a file stays when its maker is killed. On the machine of its maker that is found out; elsewhere
nobody can tell, so a user has to.
"""

import json
import os
import secrets
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from nlu.storage.cache import read_json
from nlu.storage.processes import has_ended, identity_of

PAUSE_S = 0.1


class Claimed(Exception):
    """Another process holds the file, and held it for all of the time that was granted; `holder` says which."""

    def __init__(self, path: Path, holder: str):
        super().__init__(f"{path} is held by {holder}")
        self.path, self.holder = path, holder


@contextmanager
def hold_claim(path: Path, *, wait_s: float) -> Iterator[None]:
    """Hold the file, whose folder is made, while the block runs. Raises Claimed after `wait_s` seconds."""
    own = {"host": socket.gethostname(), **identity_of(os.getpid()), "token": secrets.token_hex(8)}
    until_s = time.monotonic() + wait_s
    while not _made(path, json.dumps(own)):
        holder = read_json(path)
        if holder is not None and has_ended(holder) and _take_away(path):
            continue
        if time.monotonic() >= until_s:
            whose = f"process {holder.get('pid')} on {holder.get('host')}" if holder else "another process"
            raise Claimed(path, whose)
        time.sleep(PAUSE_S)
    try:
        yield
    finally:
        # A user may have removed it, and another command have come.
        if (read_json(path) or {}).get("token") == own["token"]:
            path.unlink(missing_ok=True)


def _made(path: Path, text: str) -> bool:
    try:
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
    except FileExistsError:
        return False
    except FileNotFoundError:
        # Its last holder took the folder along.
        path.parent.mkdir(parents=True, exist_ok=True)
        return False
    try:
        with open(descriptor, "w") as file:
            file.write(text)
    except BaseException:
        # A disk that is full; an empty file would keep all others out for ever.
        path.unlink(missing_ok=True)
        raise
    return True


def _take_away(path: Path) -> bool:
    """Remove the file of a process that has ended; returns whether nobody else was about to."""
    with suppress(Claimed), hold_claim(path.with_name(f"{path.name}.ended"), wait_s=0):
        # Another may have taken it away since it was read, and a living one have made its own.
        if has_ended(read_json(path) or {}):
            path.unlink(missing_ok=True)
        return True
    return False
