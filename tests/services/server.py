"""A server process: started on loopback, waited for, and stopped by its process id."""

import fcntl
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from pathlib import Path
from types import TracebackType
from typing import Any, Self

READY_TIMEOUT_S = 120
STOP_TIMEOUT_S = 5
POLL_S = 0.1


class Server(ABC):
    """A context: `start` on entering, and on leaving an end of the process that cannot be refused.

    A subclass says how it starts, when it is ready, and what the tests need in their `environment`.
    """

    name: str
    stop_signal: int
    environment: dict[str, str]

    def __init__(self, folder: Path):
        self.folder = folder
        self.log = folder / "log"
        self.environment = {}
        self.process: subprocess.Popen | None = None

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True)
        began_s = time.monotonic()
        try:
            self.start()
            while not self.is_ready():
                assert self.process is not None
                if self.process.poll() is not None or time.monotonic() - began_s > READY_TIMEOUT_S:
                    sys.exit(
                        f"{self.name} did not start; its log ends:\n{self.log.read_text(errors='replace')[-3000:]}"
                    )
                time.sleep(POLL_S)
        except BaseException:
            self.stop()
            raise
        assert self.process is not None
        print(f"{self.name} ready after {time.monotonic() - began_s:.1f} s (process {self.process.pid})", flush=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    @abstractmethod
    def start(self) -> None:
        """Prepare the data and launch the process."""

    @abstractmethod
    def is_ready(self) -> bool:
        """Whether it answers; called until it does."""

    def launch(self, command: list[str], **options: Any) -> None:
        """Start the process, in a separate session: a Ctrl-C on the terminal is for the tests."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, **options
            )

    def stop(self) -> None:
        """End the process and wait for it: politely, then by force. The data are thrown away."""
        if self.process is None or self.process.poll() is not None:
            return
        self.process.send_signal(self.stop_signal)
        try:
            self.process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def free_ports(count: int) -> list[int]:
    """Ports of 127.0.0.1 that are free now, all different."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [server.getsockname()[1] for server in sockets]
    for server in sockets:
        server.close()
    return ports


def install(what: str, packages: list[str], remedy: str, *options: str) -> None:
    """Install Debian packages, without starting what they would start. Ends the program if that is not possible."""
    if os.geteuid() != 0:
        sys.exit(f"{what} is not installed, and only root may install it; {remedy}, then run this again")
    if shutil.which("apt-get") is None:
        sys.exit(f"{what} is not installed and apt-get is missing; {remedy}, then run this again")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    policy = Path("/usr/sbin/policy-rc.d")
    # apt-get update fails while another one runs, and the tests on several servers start at the same time.
    with (Path(tempfile.gettempdir()) / "nlu-apt.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        is_own = not policy.exists()
        if is_own:
            policy.write_text("#!/bin/sh\nexit 101\n")
            policy.chmod(0o755)
        try:
            for command in (
                ["apt-get", "update", "-q"],
                ["apt-get", "install", "-q", "-y", "--no-install-recommends", *options, *packages],
            ):
                if subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, check=False).returncode != 0:
                    sys.exit(f"{' '.join(command)} failed; {remedy}, then run this again")
        finally:
            if is_own:
                policy.unlink()
