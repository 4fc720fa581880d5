"""A fork that the tests start behaves like a fresh process."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests import warm
from tests.few import sampled

TELL = """
import json, os, sys
told = {"argv": sys.argv[1:], "cwd": os.getcwd(), "name": __name__, "here": os.environ.get("HERE"), "path": sys.path[0],
        "in": sys.stdin.read(), "threads": os.environ["OMP_NUM_THREADS"], "leader": os.getsid(0) == os.getpid()}
print(json.dumps(told))
print("an error", file=sys.stderr)
sys.exit(int(sys.argv[1]))
"""


@sampled("way,new_session", ["text", "script", "module"], [False, True])
def test_a_fork_has_the_arguments_streams_environment_and_status_of_a_process(
    tmp_path: Path, way: str, new_session: bool
) -> None:
    (tmp_path / "telling.py").write_text(TELL)
    begin = {"text": ["-c", TELL], "script": [str(tmp_path / "telling.py")], "module": ["-m", "telling"]}[way]
    arguments, environment = [*begin, "3", "a b", "喂"], {**os.environ, "HERE": "there"}
    options = {"cwd": tmp_path, "env": environment, "start_new_session": new_session}
    fresh = subprocess.Popen(
        [sys.executable, *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, **options,
    )  # fmt: skip
    forked = warm.start(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)
    expected, found = fresh.communicate(timeout=60), forked.communicate(timeout=60)
    told = [json.loads(said[0] or "") for said in (expected, found)]
    if way == "text":
        # An empty first entry is the working folder.
        told[0]["path"] = str(tmp_path)
    assert told[0] == told[1] and expected[1] == found[1] == "an error\n"
    assert fresh.returncode == forked.returncode == 3


def test_a_traceback_and_a_signal_give_the_status_of_a_process() -> None:
    failed = warm.run(["-c", "1 / 0"], cwd=".", env=os.environ)
    assert failed.returncode == 1 and failed.stderr.endswith("ZeroDivisionError: division by zero\n")
    sleeping = warm.start(["-c", "import time; time.sleep(600)"], cwd=".", env=os.environ)
    assert sleeping.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        sleeping.wait(0.05)
    sleeping.kill()
    assert sleeping.wait(60) == sleeping.poll() == -signal.SIGKILL


def test_a_variable_that_is_read_at_the_start_makes_a_separate_process() -> None:
    process = warm.start(
        ["-c", "import os; print(os.environ['OMP_NUM_THREADS'])"], cwd=".", env={**os.environ, "OMP_NUM_THREADS": "2"},
        stdout=subprocess.PIPE,
    )  # fmt: skip
    assert isinstance(process, subprocess.Popen)
    assert process.communicate(timeout=60)[0] == "2\n"
