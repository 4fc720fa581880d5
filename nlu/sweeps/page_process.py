"""The process that writes the page of a search, so that no decision of the search waits for it.

It gets a snapshot of the search and needs no storage. It writes the page once, and ends before that if the search ends:
then it removes the file that it was writing, and the last page stays.
"""

import os
import pickle
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from typing import IO

from nlu.config.parent import end_with
from nlu.storage.redaction import hide
from nlu.sweeps.snapshot import Snapshot

NICE = 10
"""how much the priority of a page is below that of the search and of trials on the same machine"""
END_S = 5.0
"""how long a process that should end may remove its files"""


class PageProcess:
    """A process that writes the page of a snapshot. Raises OSError if it cannot be started."""

    def __init__(self, snapshot: Snapshot, *, nice: int = NICE):
        # Files, because a pipe would make the search wait until the other process has imported its libraries.
        self._output: IO[bytes] = tempfile.TemporaryFile()
        with tempfile.TemporaryFile() as file:
            pickle.dump(snapshot, file)
            file.seek(0)
            # Like this process, it imports nothing from the current folder unless that is on the path: `-m` would.
            safe = () if {"", os.getcwd()} & set(sys.path) else ("-P",)
            # In a session of its own: Ctrl-C of a terminal and a signal to the process group are for the search.
            self._process = subprocess.Popen(
                [sys.executable, *safe, "-m", "nlu.sweeps.page_process", str(os.getpid()), str(nice)],
                stdin=file,
                stdout=self._output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def number(self) -> int:
        """The id of the process."""
        return self._process.pid

    def has_ended(self) -> bool:
        """Return whether the page is written, or never will be."""
        return self._process.poll() is not None

    def wait(self) -> None:
        """Return when the process has ended."""
        self._process.wait()

    def end(self) -> None:
        """End the process if it still runs."""
        if self.has_ended():
            return
        self._process.terminate()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def result(self) -> tuple[float, str | None]:
        """Return the CPU seconds that the page took, and why it was not written, None if it was.

        The process must have ended. This can be called once.
        """
        with self._output:
            self._output.seek(0)
            lines = self._output.read().decode(errors="replace").strip().splitlines()
        last = lines[-1] if lines else ""
        status = self._process.returncode
        if status < 0:
            return 0.0, f"its process was ended by signal {-status} ({signal.strsignal(-status)})"
        if status > 0:
            return 0.0, hide(last) or f"its process ended with {status}"
        # A library may print something at the end of the process.
        with suppress(ValueError):
            return float(last), None
        return 0.0, None


def main() -> None:
    """Write the page of the snapshot on standard input; the last line of the output is the CPU time or the error."""
    parent, nice = map(int, sys.argv[1:])
    # Raises SystemExit, so that a file that is being written is removed.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    end_with(parent, signal.SIGTERM)
    if hasattr(os, "nice"):
        os.nice(nice)
    snapshot: Snapshot = pickle.load(sys.stdin.buffer)
    import optuna

    from nlu.sweeps.faults import last_line
    from nlu.sweeps.summary import write_page_so_far

    # The message of each study in memory.
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        write_page_so_far(snapshot.study(), snapshot.folder, snapshot.taken_s)
    except Exception as error:
        print(last_line(error))
        sys.exit(1)
    print(time.process_time())


if __name__ == "__main__":
    main()
