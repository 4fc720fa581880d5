"""What tests of locks share: a process that holds one, and a clock that moves only when somebody sleeps."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]


@contextmanager
def held_elsewhere(imported: str, held: str, path: Path) -> Iterator[None]:
    """Have another process hold what `held`, an expression of `path`, gives; it is killed when the block ends."""
    code = (
        f"import sys, time; from pathlib import Path; {imported}\npath = Path(sys.argv[1])\n"
        f"with {held}: print('held', flush=True); time.sleep(600)"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )  # fmt: skip
    try:
        assert other.stdout is not None and other.stdout.readline() == b"held\n"
        yield
    finally:
        other.kill()
        other.wait()


class Clock:
    """Stands for the module `time`; `slept` holds each sleep in seconds."""

    def __init__(self, when_slept: Callable[[int], None] = lambda count: None):
        """`when_slept` is called after each sleep with the number of sleeps."""
        self.slept: list[float] = []
        self._when_slept = when_slept

    def monotonic(self) -> float:
        return sum(self.slept)

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self._when_slept(len(self.slept))
