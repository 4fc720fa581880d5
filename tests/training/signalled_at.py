"""`python -m nlu.train`, which sends itself a signal at a named instant, as a scheduler would.

SIGNALLED_AT="SIGTERM 2 nlu.training.best score_set" names it: when that function is called for the second time. The
signal goes to the process of the command, also where one of its workers is the one that has come so far.
"""

import functools
import importlib
import os
import signal
import sys
from pathlib import Path
from typing import Any

INSTANT = os.environ.get("SIGNALLED_AT", "").split()
COMMAND = os.getpid()


def signal_at(name: str, number: int, module: str, function: str) -> None:
    """Have a function, or a method of a class, send the signal before it begins, in its call of this number."""
    *classes, function = function.split(".")
    owner: Any = functools.reduce(getattr, classes, importlib.import_module(module))
    inner, calls = getattr(owner, function), 0

    def signalling(*arguments: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == number and os.environ.get("RANK", "0") == "0":
            os.kill(COMMAND, signal.Signals[name])
        return inner(*arguments, **named)

    setattr(owner, function, signalling)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    from nlu.commands.train import main
    from nlu.config.choices import find_plugins
    from nlu.config.entry.app import run_app

    find_plugins()
    if INSTANT:
        signal_at(INSTANT[0], int(INSTANT[1]), INSTANT[2], INSTANT[3])
    run_app(main, "train")
