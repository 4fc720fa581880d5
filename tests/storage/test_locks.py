"""Locks between processes: one holder or several readers, waiting and its messages, and a lock file that is removed."""

import logging
import math
import threading
import time
from pathlib import Path

import pytest

from nlu.storage.locks import Locked, NoLocks, hold_lock, is_locked
from tests.waits import held_elsewhere


def test_a_lock_keeps_another_process_out_until_its_holder_dies(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with held_elsewhere("from nlu.storage.locks import hold_lock", "hold_lock(path, wait_s=0)", path):
        assert is_locked(path)
        with pytest.raises(Locked, match="lock is locked by another process"), hold_lock(path, wait_s=0.05):
            pass
    assert not is_locked(path)
    with hold_lock(path, wait_s=0):
        assert is_locked(path)


def test_whoever_may_only_read_sees_a_lock_and_creates_none(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    assert not is_locked(path) and not path.exists()
    with hold_lock(path, wait_s=0):
        path.chmod(0o444)
        assert is_locked(path) and is_locked(path)
    assert not is_locked(path)


@pytest.mark.parametrize("wait_s", [30.0, math.inf])
def test_a_wait_is_reported_once_after_a_moment_and_ends_when_the_lock_is_free(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, wait_s: float
) -> None:
    monkeypatch.setattr("nlu.storage.locks.LOG_AFTER_S", 0.05)
    taken = threading.Event()
    caplog.set_level(logging.INFO, logger="nlu")

    def hold() -> None:
        with hold_lock(tmp_path / "lock", wait_s=0):
            taken.set()
            while "waiting for it" not in caplog.text:
                time.sleep(0.01)

    thread = threading.Thread(target=hold)
    thread.start()
    assert taken.wait(10)
    with hold_lock(tmp_path / "lock", wait_s=wait_s, what="the folder of the run"):
        pass
    thread.join()
    (told,) = [record.getMessage() for record in caplog.records]
    assert told.startswith("the folder of the run is locked by another process; waiting")
    assert ("at most 30 s" in told) == (wait_s == 30.0)


def test_a_file_system_without_locks_raises_only_if_the_lock_is_required(tmp_path: Path, without_locks: None) -> None:
    ran = []
    with pytest.raises(NoLocks, match=f"{tmp_path} is on a file system without locks .No locks available."):
        with hold_lock(tmp_path / "lock", wait_s=0):
            ran.append("needed")
    with hold_lock(tmp_path / "lock", wait_s=0, optional=True):
        ran.append("optional")
    assert ran == ["optional"] and not is_locked(tmp_path / "lock")
