"""The Python that tests/warm.py forks commands from: imports everything once, then forks a process for each request.

A connection is a request: a length, JSON and, as descriptors, the three streams. What comes back is the number of the
process and, when it has ended, its status.
"""

import atexit
import gc
import importlib
import io
import json
import multiprocessing
import os
import pkgutil
import runpy
import selectors
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests import warm
from tests.warm import NUMBER

LATE = (
    "torch.distributed", "torch.optim", "sklearn.metrics", "scipy.stats", "matplotlib.backends.backend_agg", "optuna",
    "hydra._internal.hydra", "nlu.search.loop", "rich.progress",
    "hydra_plugins.hydra_submitit_launcher.submitit_launcher",
)  # fmt: skip
"""What runs and searches import when they need it."""
WARMING = (
    ("model=bert_tiny", "optimizer.lr=1e-3", "data=files", "data.train=/a/b.tsv", "data.fields={text: 0, label: 1}"),
    (
        "hydra/sweeper=hyperband", "hydra/sweeper/sampler=random", "hydra/launcher=local",
        "hydra.sweeper.pruner=none", "hydra.sweep.dir=/a/b",
    ),
)  # fmt: skip
"""Overrides of all sorts that tests pass."""


class Server:
    """Forks a process for each connection, until the test session is over."""

    def __init__(self, listener: socket.socket, session: int):
        self._listener, self._session = listener, os.pidfd_open(session)
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ)
        self._selector.register(self._session, selectors.EVENT_READ)
        self._running: dict[int, tuple[int, socket.socket]] = {}

    def serve(self) -> dict[str, Any] | None:
        """Return None in the server when its session ends, and the request in each process that it forked."""
        while True:
            for key, _ in self._selector.select():
                if key.fd == self._session:
                    return None
                if key.fileobj is not self._listener:
                    self._tell_end(key.fd)
                elif (request := self._fork(self._listener.accept()[0])) is not None:
                    return request

    def _fork(self, connection: socket.socket) -> dict[str, Any] | None:
        try:
            request, streams = receive(connection)
        except (ValueError, OSError):
            connection.close()
            return None
        pid = os.fork()
        if pid == 0:
            self._let_go()
            connection.close()
            become(request, streams)
            return request
        for stream in streams:
            os.close(stream)
        answer(connection, pid)
        ended = os.pidfd_open(pid)
        self._running[ended] = pid, connection
        self._selector.register(ended, selectors.EVENT_READ)
        return None

    def _tell_end(self, ended: int) -> None:
        pid, connection = self._running.pop(ended)
        self._selector.unregister(ended)
        os.close(ended)
        answer(connection, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        connection.close()

    def _let_go(self) -> None:
        """Close what is the server's; a process that kept a connection would keep others waiting for its end."""
        self._selector.close()
        self._listener.close()
        os.close(self._session)
        for ended, (_, connection) in self._running.items():
            os.close(ended)
            connection.close()


def receive(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Read a request and the descriptors that came with it. Raises ValueError if the client has died meanwhile."""
    head, streams, _, _ = socket.recv_fds(connection, NUMBER.size, 3)
    if len(head) < NUMBER.size:
        raise ValueError("half a request")
    # A cut request is invalid JSON, which raises ValueError.
    return json.loads(connection.recv(*NUMBER.unpack(head), socket.MSG_WAITALL)), streams


def answer(connection: socket.socket, number: int) -> None:
    """Answer the client, if it is still there."""
    try:
        connection.sendall(NUMBER.pack(number))
    except (BrokenPipeError, ConnectionResetError):
        return


def become(request: dict[str, Any], streams: list[int]) -> None:
    """Take on the session, streams, working folder and environment that a request names."""
    import numpy
    import torch
    from matplotlib.figure import Figure

    from nlu.search import preflight

    if request["new_session"]:
        os.setsid()
    for place, stream in enumerate(streams):
        os.dup2(stream, place)
    for stream in streams:
        os.close(stream)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    # Forks would all draw the same numbers; random sees to itself.
    numpy.random.seed()
    torch.seed()
    if not request["figures"]:
        Figure.savefig = _leave_blank  # type: ignore[assignment, method-assign]
    # Workers of several devices are forks too; in test_kills.py they start from scratch.
    of = multiprocessing.get_context
    multiprocessing.get_context = lambda method=None: of("fork" if method == "spawn" else method)  # type: ignore[assignment]
    # So is the process in which a search prepares its data.
    preflight.subprocess = SimpleNamespace(run=_run_warm, PIPE=subprocess.PIPE)  # type: ignore[assignment]


def _run_warm(command: list[str], *, stdout: int, text: bool) -> subprocess.CompletedProcess[str]:
    assert command[0] == sys.executable and text
    process = warm.start(command[1:], cwd=os.getcwd(), env={**os.environ}, stdout=stdout)
    said = process.communicate()
    return subprocess.CompletedProcess(command, process.wait(), *said)


def _leave_blank(figure: Any, file: Any, **named: Any) -> None:
    content = '<svg viewBox="0 0 1 1"></svg>' if named.get("format") == "svg" else "not drawn"
    file.write(content if isinstance(file, io.StringIO) else content.encode())


def import_all() -> None:
    """Import all of nlu but its commands, which are to be __main__, and what they import late."""
    import nlu

    for module in pkgutil.walk_packages(nlu.__path__, "nlu."):
        if module.ispkg or (module.name.count(".") > 1 and not module.name.endswith(".__main__")):
            importlib.import_module(module.name)
    for late in LATE:
        importlib.import_module(late)


def compose_once() -> None:
    """Fill what Hydra keeps between compositions: its plugins, and what its parsers have learned of their grammars."""
    from tests.composing import composed_at_once

    for overrides in WARMING:
        composed_at_once(overrides)


def main(listening: int, session: int) -> None:
    """Serve; a process that was forked continues here as the command."""
    # The first to be registered is the last to be called.
    status: list[int] = []
    atexit.register(leave_at_once, status)
    from nlu.config.choices import find_plugins

    find_plugins()
    import_all()
    compose_once()
    names = [Path(f"/proc/self/task/{thread}/comm").read_text().strip() for thread in os.listdir("/proc/self/task")]
    # jemalloc, which comes with pyarrow, starts its own again in a fork.
    assert len([name for name in names if name != "jemalloc_bg_thd"]) == 1, f"a fork would lose threads of {names}"
    gc.collect()
    gc.freeze()
    request = Server(socket.socket(fileno=listening), session).serve()
    if request is None:
        return
    try:
        execute(request)
        status.append(0)
    except SystemExit as left:
        if left.code is not None and not isinstance(left.code, int):
            raise
        status.append(left.code or 0)


def leave_at_once(status: list[int]) -> None:
    """End the process without taking apart what the server had imported, which takes longer than most commands.

    Threads have ended by then, and everything else that was registered for the end of the process has been called.
    """
    if status:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status[0])


def execute(request: dict[str, Any]) -> None:
    """Run what a request names as __main__."""
    first, *others = request["arguments"]
    if first == "-c":
        sys.argv, sys.path[0] = ["-c", *others[1:]], request["cwd"]
        exec(compile(others[0], "<string>", "exec"), {"__name__": "__main__"})
    elif first == "-m":
        sys.argv, sys.path[0] = others, request["cwd"]
        runpy.run_module(others[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv, sys.path[0] = [first, *others], str(Path(first).parent)
        runpy.run_path(first, run_name="__main__")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
