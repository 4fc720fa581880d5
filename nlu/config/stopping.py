"""Being asked to stop: one set of handlers for SIGTERM, SIGUSR1 and Ctrl-C, from the beginning of a command to its end.

What a signal does depends on the part of the command that it meets:

- By default it raises `Stopped` at once. A state that was saved before survives that, as it survives a kill.
- Inside `polled`, where work is under way that is to be saved first, it is only noted. Whoever opened the block looks
  at `asked` again and again, saves, and leaves.
- Inside `passed_on` it is noted and handed to the processes that do the work.

The first signal decides the exit status and the sentence. A Ctrl-C after it raises `Stopped` at once, which carries
the first signal; other signals after it are ignored, because a queue that ends a job may send several.
"""

import logging
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

log = logging.getLogger(__name__)

EXIT_REQUEUE = 75
"""The same command continues, where it has `resume=auto` (the "temporary failure" of sysexits.h)."""
EXIT_INTERRUPTED = 130
"""The same, after Ctrl-C."""
STOPPED = (EXIT_REQUEUE, EXIT_INTERRUPTED)
SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)


class Stopped(KeyboardInterrupt):
    """A signal ends what runs, at once. What lets Ctrl-C through lets this through, and no failure is made of it."""

    def __init__(self, number: int):
        self.signal = signal.Signals(number)
        super().__init__(self.signal.name)


Heard = Callable[[int], None]


class _Signals:
    """What is known of the signals of this process."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        self.is_listening = self.is_told = False
        self.received: signal.Signals | None = None
        self.modes: list[Heard | None] = []
        """what the blocks that are open do with a signal, the innermost last; None: raise `Stopped`"""
        self.when_saved: Callable[[], None] | None = None

    def receive(self, number: int, frame: FrameType | None = None) -> None:
        # The code that was interrupted may hold the lock of a log or of a stream, so nothing is said here.
        is_first = self.received is None
        if self.received is None:
            self.received = signal.Signals(number)
        heard = self.modes[-1] if self.modes else None
        if heard is not None and (is_first or heard is not _note):
            heard(number)
        elif is_first or number == signal.SIGINT:
            raise Stopped(self.received)


def _note(number: int) -> None:
    """Leave a signal to whoever polls."""


_signals = _Signals()


@contextmanager
def listening() -> Iterator[None]:
    """Have the signals handled as this module says; inside another such block, or outside the main thread, nothing
    changes. What was received is forgotten when the outermost block ends."""
    if _signals.is_listening or threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, _signals.receive) for number in SIGNALS}
    _signals.is_listening = True
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        _signals.forget()


@contextmanager
def _mode(heard: Heard | None) -> Iterator[None]:
    _signals.modes.append(heard)
    try:
        yield
    finally:
        _signals.modes.pop()


@contextmanager
def polled() -> Iterator[None]:
    """Let a signal be noted only: the block looks at `asked` soon, and saves what it has."""
    with listening(), _mode(_note):
        yield


@contextmanager
def passed_on(to: Heard) -> Iterator[None]:
    """Hand every signal to `to`, which may be called at any instruction of the block."""
    with listening(), _mode(to):
        yield


@contextmanager
def at_once() -> Iterator[None]:
    """Have a signal raise `Stopped` also where an outer block polls; raises it where one has come already."""
    with listening(), _mode(None):
        if _signals.received is not None:
            raise Stopped(_signals.received)
        yield


def receive(number: int) -> None:
    """Do what a signal of this number does."""
    _signals.receive(number)


def received() -> signal.Signals | None:
    """Return the first signal that asked to stop."""
    return _signals.received


def asked() -> bool:
    """Whether a signal came; the first call after it says so in the log, which a handler must not touch."""
    if _signals.received is not None and not _signals.is_told:
        _signals.is_told = True
        log.info("%s: stopping after this step", _signals.received.name)
    return _signals.received is not None


def is_polled() -> bool:
    """Whether a signal would be noted or handed on, and not raise `Stopped`."""
    return bool(_signals.modes) and _signals.modes[-1] is not None


def note(number: int) -> None:
    """Count a signal as received without doing anything about it."""
    if _signals.received is None:
        _signals.received = signal.Signals(number)


def exit_code(error: BaseException | None = None) -> int:
    """Return the exit status that the first signal, or the KeyboardInterrupt that ended the command, stands for."""
    number = error.signal if isinstance(error, Stopped) else _signals.received if error is None else signal.SIGINT
    return EXIT_INTERRUPTED if number == signal.SIGINT else EXIT_REQUEUE


def sentence(error: BaseException | None = None) -> str:
    """Return what to say of the same."""
    number = error.signal if isinstance(error, Stopped) else _signals.received if error is None else signal.SIGINT
    return "interrupted" if number in (signal.SIGINT, None) else f"stopped by {number.name}"


@contextmanager
def told_when_saved(tell: Callable[[], None]) -> Iterator[None]:
    """Have `tell` called once a run that was asked to stop has saved its state, before it does anything else."""
    before, _signals.when_saved = _signals.when_saved, tell
    try:
        yield
    finally:
        _signals.when_saved = before


def tell_saved() -> None:
    """Say that the state is saved: whoever started this run need wait for nothing else."""
    if _signals.when_saved is not None:
        _signals.when_saved()
