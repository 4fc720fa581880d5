"""Signals that ask a command to stop: one set of handlers for SIGTERM, SIGUSR1 and Ctrl-C, until the command ends.

The effect of a signal depends on where the command is:

- By default it raises `Stopped` immediately. What was saved before is safe, as after a kill.
- Inside `polled` it is only recorded. The block checks `asked` regularly, saves its work, and ends.
- Inside `passed_on` it is recorded and passed to the processes that do the work.

The first signal determines the exit status and the message. A later Ctrl-C raises `Stopped` immediately, with the first
signal. Other later signals are ignored, because a queue may send several to end a job.
"""

import ctypes
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

log = logging.getLogger(__name__)

EXIT_REQUEUE = 75
"""With `resume=auto` the same command continues ("temporary failure" in sysexits.h)."""
EXIT_INTERRUPTED = 130
"""The same, after Ctrl-C."""
STOPPED = (EXIT_REQUEUE, EXIT_INTERRUPTED)
PR_SET_PDEATHSIG = 1
SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)


class Stopped(KeyboardInterrupt):
    """Raised by a signal that stops the command. Code that lets Ctrl-C pass lets this pass, not as a failure."""

    def __init__(self, number: int):
        self.signal = signal.Signals(number)
        super().__init__(self.signal.name)


Heard = Callable[[int], None]


class _Signals:
    """State of the signal handlers of this process."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        self.is_listening = self.is_logged = False
        self.received: signal.Signals | None = None
        self.modes: list[Heard | None] = []
        """what the open blocks do with a signal, the innermost last; None = raise `Stopped`"""
        self.when_saved: Callable[[], None] | None = None

    def receive(self, number: int, frame: FrameType | None = None) -> None:
        # Nothing is logged or printed here, because the interrupted code may hold the lock of a log or stream.
        is_first = self.received is None
        if self.received is None:
            self.received = signal.Signals(number)
        heard = self.modes[-1] if self.modes else None
        if heard is not None and (is_first or heard is not _note):
            heard(number)
        elif is_first or number == signal.SIGINT:
            raise Stopped(self.received)


def _note(number: int) -> None:
    """Do nothing: the block polls."""


signals = _Signals()


@contextmanager
def listening() -> Iterator[None]:
    """Install the handlers, unless an outer block has done so or this is another than the main thread.

    When the outermost block ends, received signals are forgotten.
    """
    # Python installs handlers only from the main thread.
    if signals.is_listening or threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, signals.receive) for number in SIGNALS}
    signals.is_listening = True
    try:
        yield
    finally:
        # A process that runs several commands gets its own handlers back.
        for number, handler in before.items():
            signal.signal(number, handler)
        signals.forget()


@contextmanager
def _mode(heard: Heard | None) -> Iterator[None]:
    signals.modes.append(heard)
    try:
        yield
    finally:
        signals.modes.pop()


@contextmanager
def polled() -> Iterator[None]:
    """Only record signals in this block, which must check `asked` regularly and save its work."""
    with listening(), _mode(_note):
        yield


@contextmanager
def passed_on(to: Heard) -> Iterator[None]:
    """Pass every signal to `to`, which may be called at any instruction of the block."""
    with listening(), _mode(to):
        yield


@contextmanager
def at_once() -> Iterator[None]:
    """Make signals raise `Stopped` even inside `polled`; raise it immediately if one was received before."""
    with listening(), _mode(None):
        if signals.received is not None:
            raise Stopped(signals.received)
        yield


def receive(number: int) -> None:
    """Handle a signal of this number."""
    signals.receive(number)


def received() -> signal.Signals | None:
    """Return the first received signal."""
    return signals.received


def asked() -> bool:
    """Return whether a signal was received; log it on the first call after it, since a handler must not log."""
    if signals.received is not None and not signals.is_logged:
        signals.is_logged = True
        log.info("%s: stopping after this step", signals.received.name)
    return signals.received is not None


def is_polled() -> bool:
    """Return whether a signal would be recorded or passed on instead of raising `Stopped`."""
    return bool(signals.modes) and signals.modes[-1] is not None


def note(number: int) -> None:
    """Record a signal as received, without any effect now."""
    if signals.received is None:
        signals.received = signal.Signals(number)


def exit_code(error: BaseException | None = None) -> int:
    """Return the exit status for the first signal, or for the KeyboardInterrupt that ended the command."""
    number = error.signal if isinstance(error, Stopped) else signals.received if error is None else signal.SIGINT
    return EXIT_INTERRUPTED if number == signal.SIGINT else EXIT_REQUEUE


def sentence(error: BaseException | None = None) -> str:
    """Return the message for the first signal, or for the KeyboardInterrupt that ended the command."""
    number = error.signal if isinstance(error, Stopped) else signals.received if error is None else signal.SIGINT
    return "interrupted" if number in (signal.SIGINT, None) else f"stopped by {number.name}"


@contextmanager
def told_when_saved(tell: Callable[[], None]) -> Iterator[None]:
    """Make a run call `tell` as soon as it has saved its state to stop, before it does anything else."""
    before, signals.when_saved = signals.when_saved, tell
    try:
        yield
    finally:
        signals.when_saved = before


def tell_saved() -> None:
    """Report that the state is saved, so the process that started this run need not wait longer."""
    if signals.when_saved is not None:
        signals.when_saved()


def end_with(parent: int, number: signal.Signals) -> None:
    """Make the kernel send a signal to this process when its parent, process `parent`, ends. Only Linux can do so."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number)
        # If the parent ended before the kernel was asked, no signal would come.
        if os.getppid() != parent:
            signal.raise_signal(number)
