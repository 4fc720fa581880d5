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

    def for_s(self, mark: Path) -> float:
        """Return for how many seconds it has been missed, 0 at first."""
        own_s = time.monotonic() - self._own_s.setdefault(mark, time.monotonic())
        try:
            return max(own_s, stood_s(mark))
        except OSError:
            return own_s

    def end(self, mark: Path) -> None:
        """Note that it is not missed any more, whichever command missed it."""
        self._own_s.pop(mark, None)
        with suppress(OSError):
            mark.unlink(missing_ok=True)


def stood_s(mark: Path, text: str = "") -> float:
    """Return for how many seconds a mark has said this text, 0 where it is made only now. Raises OSError.

    Both times are those of the disk, since clocks of hosts differ.
    """
    if not mark.is_file() or mark.read_text() != text:
        mark.write_text(text)
    with tempfile.NamedTemporaryFile(dir=mark.parent, prefix=f".{mark.name}.") as now:
        return os.stat(now.name).st_mtime - mark.stat().st_mtime
