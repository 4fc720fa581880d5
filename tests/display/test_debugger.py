"""`breakpoint()` in real processes on a pseudo-terminal, at which the test types."""

import fcntl
import os
import pty
import re
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from nlu.config.stopping import EXIT_INTERRUPTED

REPOSITORY = Path(__file__).parents[2]
LIMIT_S = 120.0
PROMPT = r"\(Pdb, rank (\d)\) "


class Person:
    """Someone who reads what the terminal shows, and types."""

    def __init__(self, count: int):
        self._master, slave = pty.openpty()
        environment = {**os.environ, "TERM": "xterm-256color", "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.display.debugged", str(count)],
            stdin=slave, stdout=slave, stderr=slave, cwd=REPOSITORY, env=environment, start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )  # fmt: skip
        os.close(slave)
        self.shown = ""

    def reads(self, pattern: str) -> re.Match[str]:
        """Wait for a text, and return it; it is not read again."""
        deadline_s = time.monotonic() + LIMIT_S
        while (found := re.search(pattern, self.shown)) is None:
            assert time.monotonic() < deadline_s, self.shown
            try:
                self.shown += os.read(self._master, 65536).decode(errors="replace")
            except OSError:
                raise AssertionError(f"the command has ended: {self.shown}") from None
        self.shown = self.shown[found.end() :]
        return found

    def types(self, line: str) -> None:
        os.write(self._master, f"{line}\n".encode())

    def leaves(self) -> int:
        """Return the exit status of the command."""
        try:
            while more := os.read(self._master, 65536):
                self.shown += more.decode(errors="replace")
        except OSError:
            pass  # a terminal without processes
        return self.process.wait(LIMIT_S)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._master)


@pytest.fixture
def person(request: pytest.FixtureRequest) -> Iterator[Person]:
    one = Person(request.param)
    yield one
    one.close()


@pytest.mark.parametrize("person", [2], indirect=True)
def test_two_ranks_have_the_terminal_one_after_the_other(person: Person) -> None:
    order = []
    for _ in range(2):
        rank = int(person.reads(PROMPT)[1])
        order.append(rank)
        # The other one reaches its breakpoint meanwhile, and stays silent.
        for line in ("p f'it is {secret}'", "p f'still {secret}'"):
            person.types(line)
            assert int(person.reads(rf"{40 + rank}'\s+{PROMPT}")[1]) == rank
            time.sleep(0.5)
        person.types("c")
    assert sorted(order) == [0, 1]
    assert person.leaves() == 0
    assert [f"rank {rank} of 2: [81.0]" in person.shown for rank in (0, 1)] == [True, True]


@pytest.mark.thorough
@pytest.mark.parametrize("person", [2], indirect=True)
def test_quit_stops_all_ranks_as_ctrl_c_does(person: Person) -> None:
    person.reads(PROMPT)
    person.types("q")
    person.reads("The run stops after this step and saves its state")
    person.reads(PROMPT)
    person.types("c")
    assert person.leaves() == EXIT_INTERRUPTED


@pytest.mark.thorough
@pytest.mark.parametrize("person", [1], indirect=True)
def test_nothing_is_drawn_while_the_debugger_has_the_terminal(person: Person) -> None:
    person.reads("train 0/10")
    person.reads(r"\(Pdb\) ")
    time.sleep(1)
    person.types("p secret + 2")
    assert "train" not in person.reads(r"42\r\n").string
    person.types("c")
    # The bar is back until the end.
    assert person.leaves() == 0 and "rank 0 of 1: [40.0]" in person.shown


def test_without_a_terminal_a_breakpoint_is_passed_with_a_warning() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.display.debugged", "1"], cwd=REPOSITORY, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, start_new_session=True, check=True,
    )  # fmt: skip
    assert "rank 0 of 1: [40.0]" in done.stdout
    assert re.search(r"breakpoint\(\) at \S+debugged.py:\d+ is passed: the run has no terminal", done.stderr)
