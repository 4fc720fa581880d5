"""A file that one process alone may make, in the place of a lock; what a killed one leaves is found out."""

import errno
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from nlu.storage import claims
from nlu.storage.cache import read_json
from nlu.storage.claims import Claimed, hold_claim
from nlu.storage.files import write_json
from nlu.storage.processes import identity_of

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
    # Whoever was to take it away was killed as well.
    shutil.copy(tmp_path / "claim", tmp_path / "claim.ended")
    with hold_claim(tmp_path / "claim", wait_s=0):
        pass
    assert list(tmp_path.iterdir()) == []
    write_json(tmp_path / "claim", {"host": "far", "pid": 1, "machine": "x y", "started": "1", "token": "t"})
    with pytest.raises(Claimed, match="process 1 on far"):
        with hold_claim(tmp_path / "claim", wait_s=0):
            pass
    assert (tmp_path / "claim").exists()


def test_of_what_is_damaged_nothing_is_known_and_a_file_without_a_token_is_taken_as_any(tmp_path):
    path, own = tmp_path / "claim", identity_of(os.getpid())
    write_json(path, {"machine": own["machine"]})
    with pytest.raises(Claimed):
        with hold_claim(path, wait_s=0):
            pass
    write_json(path, {**own, "started": "1"})
    with hold_claim(path, wait_s=0):
        pass


def test_a_living_claim_that_has_taken_the_place_of_a_dead_one_stays(tmp_path, monkeypatch):
    def no_links(*paths):
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr("os.link", no_links)
    path, seen = tmp_path / "claim", [{**identity_of(os.getpid()), "started": "1", "token": "dead"}]
    with hold_claim(path, wait_s=0):
        there = path.read_text()
        monkeypatch.setattr(claims, "read_json", lambda path: seen.pop() if seen else read_json(path))
        with pytest.raises(Claimed):
            with hold_claim(path, wait_s=0.2):
                pass
        assert path.read_text() == there and list(tmp_path.iterdir()) == [path]


def test_what_another_made_in_the_place_of_a_claim_outlives_it(tmp_path):
    with hold_claim(tmp_path / "claim", wait_s=0):
        write_json(tmp_path / "claim", {"host": "far", "pid": 1, "token": "t"})
    assert read_json(tmp_path / "claim")["host"] == "far"


def test_a_full_disk_leaves_no_claim_that_nobody_holds(tmp_path):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            with hold_claim(tmp_path / "claim", wait_s=0):
                pass
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list(tmp_path.iterdir()) == []


HIDDEN = """
import os, subprocess
from nlu.storage.processes import has_ended, identity_of
living = subprocess.Popen(["sleep", "60"])
there = identity_of(living.pid)
child = os.fork()
if child == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
    assert not os.path.exists(f"/proc/{living.pid}")
    os._exit(10 + has_ended(there) + 2 * has_ended({**there, "pid": 99999999}))
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
living.kill()
"""


def test_a_process_of_another_user_that_proc_hides_lives():
    mounted = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c"]
    hide = "mount -t proc -o hidepid=2 proc /proc"
    if not shutil.which("unshare") or subprocess.run([*mounted, hide], capture_output=True, check=False).returncode:
        pytest.skip("this user cannot mount /proc")
    done = subprocess.run(
        [*mounted, f'{hide}; exec "$@"', "sh", sys.executable, "-c", HIDDEN], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "12", "the living one has not ended, the one that never was has"
