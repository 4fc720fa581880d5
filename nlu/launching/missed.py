"""Since when something of a job has been missed, whichever command looks: each alone would begin to wait anew."""

import os
import tempfile
import time
from contextlib import suppress
from pathlib import Path


class Missed:
    """Marks, files beside what is known of a job. Where one cannot be written, this process remembers for itself."""

    def __init__(self) -> None:
        self._own_s: dict[Path, float] = {}
        self._there: set[Path] = set()
        """what was not missed when this process looked last"""

    def for_s(self, mark: Path) -> float:
        """Return for how many seconds it has been missed, 0 at first.

        Both times are those of the disk, since clocks of hosts differ.
        """
        self._there.discard(mark)
        own_s = time.monotonic() - self._own_s.setdefault(mark, time.monotonic())
        try:
            with open(mark, "a"):
                since_s = mark.stat().st_mtime
            with tempfile.NamedTemporaryFile(dir=mark.parent, prefix=f".{mark.name}.") as now:
                return max(own_s, os.stat(now.name).st_mtime - since_s)
        except OSError:
            return own_s

    def end(self, mark: Path) -> None:
        """Note that it is not missed any more."""
        if mark in self._there:
            return
        self._there.add(mark)
        self._own_s.pop(mark, None)
        with suppress(OSError):
            mark.unlink(missing_ok=True)
