"""Holders of a mirror that are suspended with SIGSTOP and continue: `python -m tests.suspending ARGUMENTS`.

A holder stops itself at a named point, so that a test knows what it had done by then. A test waits until it is stopped,
does what a successor does, lets it continue and reads how it ended.
"""

import functools
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from nlu.config.errors import EXIT_USER_ERROR, UserError
from tests import warm

WAIT_S = 120.0
"""for a condition that comes about in a moment, on a machine with other work"""


class Holder:
    """A process that has stopped itself."""

    def __init__(self, process: warm.Process):
        self._process, self.pid = process, process.pid

    def continued(self) -> tuple[int, str]:
        """Let it continue to its end; returns its exit status and what it said."""
        os.kill(self.pid, signal.SIGCONT)
        said, errors = self._process.communicate(timeout=WAIT_S)
        return self._process.wait(), str(said) + str(errors)


@contextmanager
def suspended(*arguments: object) -> Iterator[Holder | None]:
    """Start a holder, and wait until it has stopped itself; None if it has ended well without that."""
    command = ["-m", "tests.suspending", *map(str, arguments)]
    pipe = subprocess.PIPE
    process = warm.start(command, cwd=warm.REPOSITORY, env=os.environ, stdout=pipe, stderr=pipe)
    try:
        deadline_s = time.monotonic() + WAIT_S
        while not is_stopped(process.pid):
            if process.poll() is not None:
                assert process.wait() == 0, process.communicate()
                yield None
                return
            assert time.monotonic() < deadline_s, "it did not stop itself"
            time.sleep(0.005)
        yield Holder(process)
    finally:
        process.kill()


def is_stopped(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    except FileNotFoundError:
        return False


def stop() -> None:
    """Suspend this process, with all its threads, until a signal continues it."""
    # Sent to the process, it would stop this thread a moment later.
    signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)


def stops(owner: Any, names: Sequence[str], point: int, *, after: bool, thread: str) -> None:
    """Suspend this process before, or after, the call with this number of any of these functions by a thread."""
    calls = itertools.count()

    def stopping_at(real: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(real)
        def call(*arguments: Any, **named: Any) -> Any:
            is_point = threading.current_thread().name == thread and next(calls) == point
            if is_point and not after:
                stop()
            found = real(*arguments, **named)
            if is_point and after:
                stop()
            return found

        return call

    for name in names:
        pytest.MonkeyPatch().setattr(owner, name, stopping_at(getattr(owner, name)))


def write_state(folder: Path, step: int, text: str) -> None:
    """Make a folder that of a run whose state was saved at a step."""
    from nlu.storage.settle import aside, replace

    new = aside(folder / "checkpoints/last")
    (new / "state.json").write_text(json.dumps({"state": {"step": step, "best": []}}))
    (new / "model.safetensors").write_text(text)
    replace(new, folder / "checkpoints/last")
    for name in ("train.tsv", "config.yaml"):
        (folder / name).write_text(text)


REQUESTS = ("put_file", "put_new", "get", "list", "copy", "delete")


def mirror(url: str, folder: str, point: str, when: str, ends: str) -> None:
    """Keep a run in a mirror, suspended at a request of its second save, with which it ends or not."""
    from nlu.runs import mirror as mirrors
    from nlu.storage.objects import ObjectStore

    kept = mirrors.Mirror(url, Path(folder))
    kept.open(may_hold_a_run=True)
    for step in (1, 2):
        write_state(Path(folder), step, f"the holder's, step {step}")
        if step == 2:
            if ends == "True":
                (Path(folder) / "result.json").write_text("{}")
            stops(ObjectStore, REQUESTS, int(point), after=when == "after", thread="mirror")
        kept.saved()
        while kept._pending is not None or list(kept._outbox.glob("*")):
            time.sleep(0.005)
            if kept._failure is not None:
                raise kept._failure
    kept.close()


def main(*arguments: str) -> int:
    try:
        mirror(*arguments)
        return 0
    except UserError as error:
        print(type(error).__name__, error, file=sys.stderr)
        return EXIT_USER_ERROR


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
