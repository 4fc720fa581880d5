"""A copy of the working tree in which tests run, with a mistake in one file or none."""

import compileall
import json
import os
import py_compile
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
OPTIONS = ("-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--tb=line", "--durations=1")
EVERY_PROCESS = """import os, sys

if "COVERAGE_PROCESS_CONFIG" in os.environ:
    import coverage

    coverage.process_startup()
leave = os._exit

def save_and_leave(status):
    if "coverage" in sys.modules and (running := sys.modules["coverage"].Coverage.current()):
        running.save()
    leave(status)

os._exit = save_and_leave
"""
"""Run by each Python that begins in the copy. The like of coverage saves in a fork what its parent reached, too."""
WHERE = """
import os, subprocess, sys
from pathlib import Path
import hydra_plugins.hyperband_sweeper.hyperband_sweeper, nlu
from tests import warm
HERE, ASK = Path(__file__).resolve().parents[1], ("-c", "import nlu; print(nlu.__file__)")

def test_the_copy_is_what_is_imported(tmp_path):
    separate = subprocess.run([sys.executable, *ASK], cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    forked = warm.run(ASK, cwd=tmp_path, env=dict(os.environ)).stdout
    for file in (nlu.__file__, hydra_plugins.hyperband_sweeper.hyperband_sweeper.__file__, separate, forked):
        assert Path(file.strip()).is_relative_to(HERE), f"{file} is imported instead of {HERE}"
"""


def python_files(root: Path, *tops: str) -> dict[str, str]:
    """Return the content of each Python file in some folders, by its path."""
    paths = (path for top in tops for path in sorted((root / top).rglob("*.py")))
    return {path.relative_to(root).as_posix(): path.read_text(encoding="utf-8") for path in paths}


class Copy:
    """A copy of the working tree, and a Python that forks a pytest in it."""

    def __init__(self, folder: Path):
        self.folder = folder
        command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        names = subprocess.run(command, cwd=REPOSITORY, capture_output=True, check=True).stdout.decode().split("\0")
        for name in filter(None, names):
            # git also lists files that were deleted but not committed.
            if (REPOSITORY / name).is_file():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(REPOSITORY / name, folder / name)
        (folder / "sitecustomize.py").write_text(EVERY_PROCESS, encoding="utf-8")
        # By the content of its source, not the time: a mistake may be as long as what was right, and as young.
        mode = py_compile.PycInvalidationMode.CHECKED_HASH
        for part in ("nlu", "launchers", "tests"):
            compileall.compile_dir(folder / part, quiet=2, invalidation_mode=mode)
        data = (REPOSITORY / os.environ.get("NLU_DATA", "../shared/data")).resolve()
        environment = {
            **os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{folder / 'launchers'}", "NLU_DATA": str(data),
            "OMP_NUM_THREADS": "1",
        }  # fmt: skip
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        # One process imports torch and others once and forks for each mistake; an import takes longer than most tests.
        self._server = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.warm_pytest"], cwd=folder, env=environment, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip

    def close(self) -> None:
        self._server.terminate()
        self._server.wait()

    @contextmanager
    def with_content(self, file: str, content: str) -> Iterator[None]:
        """Let a file have another content for the block."""
        path = self.folder / file
        right = path.read_text(encoding="utf-8")
        path.write_text(content, encoding="utf-8")
        try:
            yield
        finally:
            # Also after an error, since the next mistake is made in the same copy.
            path.write_text(right, encoding="utf-8")

    def pytest(
        self, arguments: Sequence[str], limit_s: float, environment: Mapping[str, str] | None = None
    ) -> tuple[int | None, str]:
        """Run pytest as `make test` does; returns its status, None where it took too long, and what it said."""
        output = self.folder / "said"
        request = {"arguments": [*OPTIONS, *arguments], "output": str(output), "environment": dict(environment or {})}
        assert self._server.stdin is not None and self._server.stdout is not None
        self._server.stdin.write(json.dumps(request) + "\n")
        self._server.stdin.flush()
        pid, late = int(self._server.stdout.readline()), threading.Event()

        def stop() -> None:
            late.set()
            # The whole group: a hanging test has usually started processes.
            os.killpg(pid, signal.SIGKILL)

        timer = threading.Timer(limit_s, stop)
        timer.start()
        status = int(self._server.stdout.readline())
        timer.cancel()
        return None if late.is_set() else status, output.read_text(encoding="utf-8", errors="replace")

    def require_imported(self) -> None:
        """Leave where tests in this copy would import nlu, or their processes would, from elsewhere."""
        test = self.folder / "tests" / "test_where.py"
        test.write_text(WHERE, encoding="utf-8")
        status, said = self.pytest([str(test)], 600.0)
        test.unlink()
        if status != 0:
            sys.exit(f"the copy in {self.folder} is not what its tests import:\n{said}")


@contextmanager
def copies(folder: Path, count: int) -> Iterator[list[Copy]]:
    """Make copies for the block."""
    # Tests start processes of other users, which must be able to read the code.
    folder.chmod(0o755)
    made = [Copy(folder / f"copy-{number}") for number in range(count)]
    try:
        yield made
    finally:
        for copy in made:
            copy.close()
