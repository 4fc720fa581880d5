"""An error that ends a process is shown with its traceback, and without the secrets of the addresses in it."""

import signal
import subprocess
import sys

SAID = "no connection to postgresql://me:hunter2@host/db"


def broken() -> int:
    try:
        raise ConnectionError(SAID)
    except ConnectionError as error:
        raise RuntimeError("this cannot continue") from error


def test_a_traceback_holds_no_password_of_an_address():
    script = (
        "from nlu.config.entry.command import run_command\n"
        "from tests.config.test_console import broken\n"
        "run_command(lambda arguments: broken())"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 1 and "hunter2" not in done.stderr
    assert "ConnectionError: no connection to postgresql://***@host/db" in done.stderr
    assert done.stderr.rstrip().endswith("RuntimeError: this cannot continue") and "in broken" in done.stderr


def interrupted() -> int:
    try:
        raise ConnectionError(SAID)
    except ConnectionError as error:
        raise KeyboardInterrupt from error


def test_a_traceback_of_a_thread_or_an_interrupt_holds_no_password():
    script = (
        "import threading\n"
        "from nlu.config.console import hide_tracebacks\n"
        "from tests.config.test_console import broken, interrupted\n"
        "hide_tracebacks()\n"
        "thread = threading.Thread(target=broken, name='sender')\n"
        "thread.start(), thread.join()\n"
        "interrupted()"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == -signal.SIGINT and "hunter2" not in done.stderr
    assert "Exception in thread sender:\n" in done.stderr and "RuntimeError: this cannot continue" in done.stderr
    assert done.stderr.count("postgresql://***@host/db") == 2 and done.stderr.rstrip().endswith("KeyboardInterrupt")
