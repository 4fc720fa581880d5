"""What a run folder holds at every instant at which a kill may fall: a copy of it before each operation on its files.

The interpreter tells of every operation itself (sys.addaudithook), so that no function of the code under test is named
here. What a process has written is there whether or not it lives on, so that a copy is what SIGKILL would leave.
"""

import hashlib
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHANGING = (
    "open", "os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.chmod", "os.truncate", "os.link", "os.symlink",
)  # fmt: skip
"""events of the interpreter before what may change a folder; a rename is also a replacement, opening also a touch"""
_listeners: list[Callable[[str, tuple[Any, ...]], None]] = []
_installed: list[Any] = []
"""A hook stays for as long as the process lives."""


@contextmanager
def listening_to_operations(listener: Callable[[str, tuple[Any, ...]], None]) -> Iterator[None]:
    """Call `listener` with the name and the arguments of each operation before it is done, except its own."""
    if _hear not in _installed:
        sys.addaudithook(_hear)
        _installed.append(_hear)
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


def _hear(event: str, arguments: tuple[Any, ...]) -> None:
    if _listeners and event in CHANGING:
        heard, _listeners[:] = _listeners[:], []
        try:
            for listener in heard:
                listener(event, arguments)
        finally:
            _listeners[:] = heard


class Instants:
    """Copies of a folder, one for each state that it was in, in `copies`/0, 1, ...; with each, what came next."""

    def __init__(self, folder: Path, copies: Path):
        self.folder, self.copies = folder, copies
        self.next_operation: list[str] = []
        self._seen: set[str] = set()

    def look(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Copy the folder if it is as it never was before."""
        if not self.folder.is_dir() or (found := digest(self.folder)) in self._seen:
            return
        self._seen.add(found)
        shutil.copytree(self.folder, self.copies / str(len(self.next_operation)))
        self.next_operation.append(f"{event} {' '.join(map(str, arguments[:2]))}")


def digest(folder: Path) -> str:
    """Return what tells one state of a folder from another: the names and contents of all its files."""
    found = hashlib.sha256()
    for root, folders, files in os.walk(folder):
        folders.sort()
        for name in sorted(files):
            path = os.path.join(root, name)
            with open(path, "rb") as file:
                found.update(f"{os.path.relpath(path, folder)}\0".encode() + hashlib.sha256(file.read()).digest())
    return found.hexdigest()
