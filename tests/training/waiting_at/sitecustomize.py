"""Imported by Python itself at the start of a process: has a job wait at a named instant for a request to stop.

The environment names the instant as that of `signalled_at.py`, the module that jobs run, and the file in which the
first job to come there writes its process. A job that is started again finds the file, and waits no more.
"""

import functools
import importlib
import os
import sys
import time
from typing import Any

PATIENCE_S = 180.0


def wait_at(file: str, number: int, module: str, function: str) -> None:
    """Have a function, or a method of a class, wait for a signal before its call of this number."""
    from nlu.config import stopping

    *classes, function = function.split(".")
    owner: Any = functools.reduce(getattr, classes, importlib.import_module(module))
    inner, calls = getattr(owner, function), 0

    def waiting(*arguments: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == number:
            try:
                place = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
            except FileExistsError:
                return inner(*arguments, **named)
            os.write(place, f"{os.getpid()}\n".encode())
            os.close(place)
            deadline_s = time.monotonic() + PATIENCE_S
            while stopping.received() is None:
                assert time.monotonic() < deadline_s, "no request to stop reached this job"
                time.sleep(0.02)
        return inner(*arguments, **named)

    setattr(owner, function, waiting)


if (instant := os.environ.get("WAITING_AT", "").split()) and os.environ["WAITING_PROGRAM"] in sys.orig_argv:
    wait_at(os.environ["WAITING_FILE"], int(instant[0]), instant[1], instant[2])
