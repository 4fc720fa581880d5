"""Commands in separate processes that start at once: forks of a Python that has imported torch and nlu already.

A command that a test starts spends three seconds of a core on imports, and a tenth of that on what is tested. Here the
first command of a test session pays for them. `run` and `start` do what those of subprocess do with
[sys.executable, *arguments]: the same module or script as __main__, working folder, environment, streams, session,
signals and exit status. Its workers on several devices are forks too, and so is the process in which a search
prepares its data; the jobs that it submits start from scratch, as they do for a user: submitit counts on the time
that takes.

What a process does before and while it imports is for subprocess to test; so is what the environment changes at
imports: PYTHONPATH and the number of threads.
"""

import fcntl
import json
import os
import selectors
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

NUMBER = struct.Struct("i")
"""How lengths, numbers of processes and statuses are passed."""
REPOSITORY = Path(__file__).resolve().parents[1]
_FIXED = ("OMP_NUM_THREADS", "PYTHONHASHSEED", "LD_PRELOAD")
"""What is read before a program could change it."""
FOLDER, SESSION = "NLU_TESTS_FOLDER", "NLU_TESTS_SESSION"
"""Where the environment has the folder that a test session shares, and the number of the process that ends with it."""


class Started:
    """A process that was started; has of subprocess.Popen what its callers use."""

    def __init__(self, arguments: Sequence[str], answers: socket.socket, streams: Mapping[str, IO[bytes]]):
        self.args = list(arguments)
        self.stdout, self.stderr = streams.get("stdout"), streams.get("stderr")
        self._answers = answers
        self.returncode: int | None = None
        self.pid = self._answer()

    def _answer(self) -> int:
        found = self._answers.recv(NUMBER.size, socket.MSG_WAITALL)
        if len(found) < NUMBER.size:
            raise RuntimeError("the Python that commands are forked from has died")
        return NUMBER.unpack(found)[0]

    def poll(self) -> int | None:
        """Return the exit status if it has ended."""
        return self._status_within(0)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end and return the exit status, as subprocess has it."""
        status = self._status_within(timeout)
        if status is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return status

    def _status_within(self, timeout: float | None) -> int | None:
        if self.returncode is None:
            with selectors.DefaultSelector() as selector:
                selector.register(self._answers, selectors.EVENT_READ)
                if selector.select(timeout):
                    self.returncode = self._answer()
                    self._answers.close()
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str | None, str | None]:
        """Read what it says until it ends."""
        found: dict[Any, bytes] = {stream: b"" for stream in (self.stdout, self.stderr) if stream is not None}
        deadline_s = None if timeout is None else time.monotonic() + timeout
        with selectors.DefaultSelector() as selector:
            for stream in found:
                selector.register(stream, selectors.EVENT_READ)
            while selector.get_map():
                ready = selector.select(None if deadline_s is None else max(0.0, deadline_s - time.monotonic()))
                if not ready:
                    raise subprocess.TimeoutExpired(self.args, timeout or 0)
                for key, _ in ready:
                    piece = os.read(key.fd, 1 << 16)
                    found[key.fileobj] += piece
                    if not piece:
                        selector.unregister(key.fileobj)
        self.wait(timeout)
        for stream in found:
            stream.close()
        texts = {stream: said.decode() for stream, said in found.items()}
        return texts.get(self.stdout), texts.get(self.stderr)

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it is known to have ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


Process = Started | subprocess.Popen[str]


def start(
    arguments: Sequence[str], *, cwd: str | Path, env: Mapping[str, str], stdout: int | None = None,
    stderr: int | None = None, start_new_session: bool = False, figures: bool = False,
) -> Process:  # fmt: skip
    """Start `python ARGUMENTS`, of which the first are -m and a module, -c and a text, or a script's path.

    Figures are not drawn unless `figures`: that takes nine tenths of a small run. Where the environment names what is
    read before a program begins, it is a process as a user's.
    """
    if any(env.get(name) != os.environ.get(name) for name in _FIXED):
        return subprocess.Popen(
            [sys.executable, *arguments], cwd=cwd, env=env, stdout=stdout, stderr=stderr, text=True,
            start_new_session=start_new_session,
        )  # fmt: skip
    path = _server()
    request = {
        "arguments": list(arguments), "cwd": str(cwd), "env": dict(env), "new_session": start_new_session,
        "figures": figures,
    }  # fmt: skip
    message = json.dumps(request).encode()
    with ExitStack() as opened:
        ours: dict[str, IO[bytes]] = {}
        passed = [opened.enter_context(open(os.devnull, "rb")).fileno()]
        for place, (name, wanted) in enumerate((("stdout", stdout), ("stderr", stderr)), start=1):
            if wanted == subprocess.PIPE:
                reading, writing = os.pipe()
                ours[name] = open(reading, "rb", buffering=0)
                passed.append(opened.enter_context(open(writing, "wb")).fileno())
            elif wanted == subprocess.DEVNULL:
                passed.append(opened.enter_context(open(os.devnull, "wb")).fileno())
            elif wanted == subprocess.STDOUT:
                passed.append(passed[1])
            else:
                passed.append(place if wanted is None else wanted)
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(path)
        socket.send_fds(connection, [NUMBER.pack(len(message))], passed)
        connection.sendall(message)
    return Started(arguments, connection, ours)


def run(
    arguments: Sequence[str], *, cwd: str | Path, env: Mapping[str, str], timeout: float = 300, figures: bool = False
) -> subprocess.CompletedProcess[str]:
    """Run `python ARGUMENTS` to its end and return what it said."""
    process = start(arguments, cwd=cwd, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, figures=figures)
    try:
        said = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    return subprocess.CompletedProcess(process.args, process.wait(), *said)


def _server() -> str:
    """Return the path of the socket of the Python that commands are forked from; starts it where none runs yet.

    All workers of a test session share one, which ends with the session.
    """
    folder = Path(os.environ[FOLDER])
    with open(folder / "warm.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "warm").exists():
            listener = socket.socket(socket.AF_UNIX)
            listener.bind(f"{folder}/warm")
            listener.listen(64)
            with listener:
                command = [sys.executable, "-m", "tests.warm_server", str(listener.fileno()), os.environ[SESSION]]
                options: Any = {"pass_fds": [listener.fileno()], "start_new_session": True, "stdin": subprocess.DEVNULL}
                subprocess.Popen(command, cwd=REPOSITORY, **options)
    return f"{folder}/warm"
