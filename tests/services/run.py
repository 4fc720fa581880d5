"""Start PostgreSQL and an S3 server on loopback, run the tests that need them, stop them.

    python tests/services/run.py [arguments for pytest]       # what `make test-services` does
    python tests/services/run.py --thorough ...               # also the tests that are like others
    python tests/services/run.py --shell                      # a shell with the servers' addresses in its environment
    python tests/services/run.py --then COMMAND ...           # any other command

The servers keep their data in a temporary folder, listen on free ports of 127.0.0.1, ask for fresh random
credentials, and end with this process, also if tests fail. The status is that of the tests.
"""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from postgresql import PostgreSQL
from seaweedfs import SeaweedFS

PYTEST = [sys.executable, "-m", "pytest", str(Path(__file__).parent), "-m"]


def _terminate(number: int, _frame: object) -> None:
    sys.exit(128 + number)


def main(arguments: list[str]) -> int:
    """Run the command between the start and the stop of the servers; returns its status."""
    if arguments[:1] == ["--thorough"]:
        command = [*PYTEST, "services", *arguments[1:]]
    else:
        command = [*PYTEST, "services and not thorough", *arguments]
    if arguments[:1] == ["--shell"]:
        command = [os.environ.get("SHELL", "/bin/bash")]
    elif arguments[:1] == ["--then"]:
        command = arguments[1:]
    signal.signal(signal.SIGTERM, _terminate)
    signal.signal(signal.SIGHUP, _terminate)
    with tempfile.TemporaryDirectory(prefix="services-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        with PostgreSQL(folder / "postgresql") as postgresql, SeaweedFS(folder / "s3") as s3:
            environment = {**os.environ, **postgresql.environment, **s3.environment}
            return subprocess.run(command, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
