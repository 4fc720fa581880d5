"""Start a Slurm of two virtual nodes on loopback, run the tests that need it, stop it; then the same without sacct.

    python tests/slurm/run.py [arguments for pytest]          # what `make test-slurm` does
    python tests/slurm/run.py --thorough ...                  # also the tests that are like others
    python tests/slurm/run.py --shell                         # a shell in which sbatch, squeue, ... find it
    python tests/slurm/run.py --then COMMAND ...              # any other command
    python tests/slurm/run.py --accounting=no ...             # any of these, only without slurmdbd; yes: only with it

The cluster keeps its files in a temporary folder and ends with this process, also if tests fail. The status
is that of the tests.
"""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from cluster import Cluster

FOLDER = Path(__file__).resolve().parent
KINDS = {"--accounting=yes": [True], "--accounting=no": [False]}


def _terminate(number: int, _frame: object) -> None:
    sys.exit(128 + number)


def main(arguments: list[str]) -> int:
    """Run the command between the start and the stop of the cluster, or of both; returns its status, or the worse."""
    signal.signal(signal.SIGTERM, _terminate)
    signal.signal(signal.SIGHUP, _terminate)
    kinds = KINDS.get(arguments[0] if arguments else "", [True, False])
    if len(kinds) == 1:
        arguments = arguments[1:]
    if arguments[:1] == ["--shell"]:
        return within([os.environ.get("SHELL", "/bin/bash")], kinds[0])
    if arguments[:1] == ["--then"]:
        return within(arguments[1:], kinds[0])
    return max(tests(arguments, accounting) for accounting in kinds)


def tests(arguments: list[str], accounting: bool) -> int:
    """Run the tests of one kind of cluster: those that need sacct, or those that do without it."""
    kind = "slurm and not without_accounting" if accounting else "slurm and without_accounting"
    if arguments[:1] == ["--thorough"]:
        arguments = arguments[1:]
    else:
        kind += " and not thorough"
    places = [FOLDER, FOLDER.parent / "jobs/test_contract.py"]
    return within([sys.executable, "-m", "pytest", "-m", kind, *map(str, places), *arguments], accounting)


def within(command: list[str], accounting: bool) -> int:
    """Run a command while its cluster runs; returns its status."""
    with tempfile.TemporaryDirectory(prefix="slurm-") as name, Cluster(Path(name), accounting) as cluster:
        environment = {**os.environ, **cluster.environment, "NLU_TEST_SLURM": name}
        return subprocess.run(command, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
