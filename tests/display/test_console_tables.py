"""Tables fit the terminal they are printed on, and are complete without a terminal."""

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios

PROGRAM = """
from nlu.display.console_tables import Column, fitted, print_table
table, gone = fitted([
    Column("optimizer.lr", ["0.001"], is_number=False), Column("dev/accuracy", ["0.5000"]),
    Column("examples", ["1,000"], may_go=1), Column("examples/s", ["100"], may_go=2),
])
print_table(table, f"gone: {gone}")
"""


def printed_on_a_terminal(columns: int) -> list[str]:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    environment = {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "LINES")}
    environment |= {"TERM": "xterm", "NO_COLOR": "1"}
    command = [sys.executable, "-c", PROGRAM]
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=subprocess.DEVNULL, env=environment)
    os.close(theirs)
    found = b""
    while True:
        try:
            part = os.read(ours, 4096)
        except OSError:
            break
        if not part:
            break
        found += part
    os.close(ours)
    assert process.wait(timeout=60) == 0
    return found.decode().splitlines()


def test_a_wide_terminal_shows_every_column_on_one_line():
    lines = printed_on_a_terminal(100)
    assert "optimizer.lr" in lines[0] and "examples/s" in lines[0] and "gone: []" in lines[-1]


def test_the_narrowest_table_drops_optional_columns_and_names_them():
    lines = printed_on_a_terminal(26)
    assert "gone: ['examples/s', 'examples']" in "".join(lines[-2:]) and "0.5000" in "".join(lines)


def test_elsewhere_lines_are_whole_and_end_without_spaces():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.splitlines()[:2] == [
        "optimizer.lr  dev/accuracy  examples  examples/s", "0.001               0.5000     1,000         100",
    ]  # fmt: skip
