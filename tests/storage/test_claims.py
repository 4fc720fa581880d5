"""A file that one process alone may make, in the place of a lock; what a killed one leaves is found out."""

import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from nlu.storage.cache import read_json
from nlu.storage.claims import Claimed, hold_claim
from nlu.storage.files import write_json

HOLD = "import sys; from pathlib import Path; from nlu.storage.claims import hold_claim\n"
HOLD += "with hold_claim(Path(sys.argv[1]), wait_s=30): print(flush=True); sys.stdin.read()"


def holder(path: Path) -> subprocess.Popen:
    """Another process, when it holds the file."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stdout.readline()
    return process


def test_one_at_a_time_holds_the_file_and_it_goes_with_the_last(tmp_path):
    path, inside, most = tmp_path / "made/claim", [], []
    lock = threading.Lock()

    def work(number: int) -> None:
        with hold_claim(path, wait_s=30):
            with lock:
                inside.append(number)
                most.append(len(inside))
            time.sleep(0.01)
            with lock:
                inside.remove(number)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert most == [1] * 8 and list(path.parent.iterdir()) == []


def test_another_process_that_holds_it_is_named_and_waited_for(tmp_path):
    process = holder(tmp_path / "claim")
    with pytest.raises(Claimed, match=f"held by process {process.pid} on {os.uname().nodename}"):
        with hold_claim(tmp_path / "claim", wait_s=0.2):
            pass
    threading.Timer(0.2, process.communicate).start()
    with hold_claim(tmp_path / "claim", wait_s=30):
        assert read_json(tmp_path / "claim")["pid"] == os.getpid()


def test_what_a_killed_process_of_this_machine_left_is_taken_and_anothers_is_not(tmp_path):
    process = holder(tmp_path / "claim")
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert (tmp_path / "claim").exists()
    with hold_claim(tmp_path / "claim", wait_s=0):
        pass
    assert list(tmp_path.iterdir()) == []
    write_json(tmp_path / "claim", {"host": "far", "pid": 1, "machine": "x y", "started": "1", "token": "t"})
    with pytest.raises(Claimed, match="process 1 on far"):
        with hold_claim(tmp_path / "claim", wait_s=0):
            pass
    assert (tmp_path / "claim").exists()
