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
        if holder is not None and has_ended(holder):
            _take_away(path, holder["token"])
        elif time.monotonic() >= until_s:
            whose = f"process {holder.get('pid')} on {holder.get('host')}" if holder else "another process"
            raise Claimed(path, whose)
        else:
            time.sleep(PAUSE_S)
    try:
        yield
    finally:
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
    with open(descriptor, "w") as file:
        file.write(text)
    return True


def _take_away(path: Path, token: str) -> None:
    """Remove the file with this token, and no other that has taken its place meanwhile."""
    moved = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    with suppress(FileNotFoundError):
        os.rename(path, moved)
        if (read_json(moved) or {}).get("token") != token:
            with suppress(FileExistsError):
                os.link(moved, path)
        moved.unlink()
