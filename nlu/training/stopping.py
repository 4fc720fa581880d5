"""Being asked to stop: a signal sets a flag, the step ends, the state is saved, the exit status says what happened."""

import logging
import signal
from types import FrameType, TracebackType
from typing import Any

log = logging.getLogger(__name__)

EXIT_REQUEUE = 75
"""The state is saved and the same command with resume=auto goes on (sysexits' "temporary failure")."""
EXIT_INTERRUPTED = 130
"""The same, after Ctrl-C."""


class StopSignals:
    """As a context: SIGTERM, SIGUSR1 and the first Ctrl-C ask to stop; a second Ctrl-C stops at once."""

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self._told = False
        self._before: dict[signal.Signals, Any] = {}

    @property
    def asked(self) -> bool:
        """Whether a signal came; the first look after it says so in the log, which a handler must not touch."""
        if self.received is not None and not self._told:
            self._told = True
            log.info("%s: stopping after this step", self.received.name)
        return self.received is not None

    @property
    def exit_code(self) -> int:
        return EXIT_INTERRUPTED if self.received == signal.SIGINT else EXIT_REQUEUE

    def __enter__(self) -> "StopSignals":
        for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT):
            self._before[number] = signal.signal(number, self._receive)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        # The code that was interrupted may hold the lock of a log or of a stream, so nothing else may happen here.
        self.received = signal.Signals(number)
        if self.received == signal.SIGINT:
            signal.signal(signal.SIGINT, signal.default_int_handler)
