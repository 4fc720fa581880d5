"""Holders that are suspended with SIGSTOP and continue: `python -m tests.suspending ROLE ARGUMENTS` in a process.

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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from nlu.config.errors import EXIT_USER_ERROR, UserError
from tests import warm

BEAT_S, SILENCE_S = 0.05, 0.5
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
def suspended(role: str, *arguments: object) -> Iterator[Holder]:
    """Start a holder, and wait until it has stopped itself."""
    command = ["-m", "tests.suspending", role, *map(str, arguments)]
    pipe = subprocess.PIPE
    process = warm.start(command, cwd=warm.REPOSITORY, env=os.environ, stdout=pipe, stderr=pipe)
    try:
        deadline_s = time.monotonic() + WAIT_S
        while not is_stopped(process.pid):
            assert process.poll() is None, f"it ended before it stopped itself: {process.communicate()}"
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


def stops(owner: Any, name: str, *, after: bool = False, thread: str = "") -> None:
    """Suspend this process before, or after, a function is called next, by any thread or by one of this name."""
    real, calls = getattr(owner, name), itertools.count()

    @functools.wraps(real)
    def call(*arguments: Any, **named: Any) -> Any:
        is_point = thread in ("", threading.current_thread().name) and next(calls) == 0
        if is_point and not after:
            stop()
        found = real(*arguments, **named)
        if is_point and after:
            stop()
        return found

    pytest.MonkeyPatch().setattr(owner, name, call)


def write_state(folder: Path, step: int, text: str) -> None:
    """Make a folder that of a run whose state was saved at a step."""
    from nlu.storage.settle import aside, replace

    new = aside(folder / "checkpoints/last")
    (new / "state.json").write_text(json.dumps({"state": {"step": step, "best": []}}))
    (new / "model.safetensors").write_text(text)
    replace(new, folder / "checkpoints/last")
    for name in ("train.tsv", "config.yaml"):
        (folder / name).write_text(text)


def mirror(url: str, folder: str, verb: str, after: str) -> None:
    """Keep a run in a mirror, suspended at a request of its second save."""
    from nlu.runs import mirror as mirrors
    from nlu.storage.ledger import Ledger
    from nlu.storage.objects import ObjectStore

    ledger = Ledger(ObjectStore(url, "mirror"), beat_s=BEAT_S, silence_s=SILENCE_S)
    kept = mirrors.Mirror(url, Path(folder), ledger)
    kept.open(may_hold_a_run=True)
    for step in (1, 2):
        write_state(Path(folder), step, f"the holder's, step {step}")
        if step == 2:
            stops(ObjectStore, verb, after=after == "after", thread="mirror")
        kept.saved()
        while kept._pending is not None or list(kept._outbox.glob("*")):
            time.sleep(0.005)
            kept._raise_failure()
    kept.close()


ROLES: dict[str, Callable[..., int | None]] = {role.__name__: role for role in (mirror,)}


def main(role: str, *arguments: str) -> int:
    try:
        return ROLES[role](*arguments) or 0
    except UserError as error:
        print(type(error).__name__, error, file=sys.stderr)
        return EXIT_USER_ERROR


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
