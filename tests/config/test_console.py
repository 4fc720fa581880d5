"""An error that ends a process or a thread is shown with its traceback, and without the secrets of addresses in it."""

import subprocess
import sys


def broken() -> int:
    try:
        raise ConnectionError("no connection to postgresql://me:hunter2@host/db")
    except ConnectionError as error:
        raise RuntimeError("this cannot continue") from error


def in_a_thread_and_then_here(arguments: object) -> int:
    import threading

    thread = threading.Thread(target=broken, name="sender")
    thread.start()
    thread.join()
    return broken()


def test_a_traceback_of_a_thread_or_of_the_process_holds_no_password_of_an_address():
    script = (
        "from nlu.config.console import run_command\n"
        "from tests.config.test_console import in_a_thread_and_then_here\n"
        "run_command(in_a_thread_and_then_here)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 1 and "hunter2" not in done.stderr
    assert "Exception in thread sender:\n" in done.stderr
    assert done.stderr.count("ConnectionError: no connection to postgresql://***@host/db") == 2
    assert done.stderr.count("RuntimeError: this cannot continue") == 2 and "in broken" in done.stderr
