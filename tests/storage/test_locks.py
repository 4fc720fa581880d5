"""Locks between processes: one holder or several readers, waiting and its messages, and a lock file that is removed."""

import errno
import fcntl
import logging
import math
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from nlu.storage import locks
from nlu.storage.locks import Locked, NoLocks, hold_lock, is_locked
from tests.waits import Clock, held_elsewhere


def test_a_lock_keeps_another_process_out_until_its_holder_dies(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with held_elsewhere("from nlu.storage.locks import hold_lock", "hold_lock(path, wait_s=0)", path):
        assert is_locked(path)
        with pytest.raises(Locked, match="lock is locked by another process"), hold_lock(path, wait_s=0.05):
            pass
    assert not is_locked(path)
    with hold_lock(path, wait_s=0):
        assert is_locked(path)


def test_readers_share_a_lock_and_keep_writers_out(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with pytest.raises(FileNotFoundError), hold_lock(path, wait_s=0, shared=True):
        pass
    path.touch(mode=0o444)
    with hold_lock(path, wait_s=0, shared=True), hold_lock(path, wait_s=0, shared=True):
        assert not is_locked(path)
        with pytest.raises(Locked), hold_lock(path, wait_s=0):
            pass
    with hold_lock(path, wait_s=0), pytest.raises(Locked), hold_lock(path, wait_s=0, shared=True):
        pass


def test_a_waiting_process_locks_the_current_file_and_not_a_removed_one(tmp_path: Path) -> None:
    path, inside, errors = tmp_path / "lock", [], []

    def work() -> None:
        for _ in range(50):
            with hold_lock(path, wait_s=math.inf):
                inside.append(1)
                errors.extend(["two at once"] if len(inside) > 1 else [])
                time.sleep(0.0002)
                inside.pop()
                path.unlink()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not errors and not inside and not path.exists()


def test_the_lock_of_a_file_that_was_removed_meanwhile_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, locked, others = tmp_path / "lock", locks._lock, []

    def replaced_first(*args: Any, **options: Any) -> bool:
        if not others:
            # Between another's open and lock its last holder removes the file, and a third one holds a new one.
            path.unlink()
            others.append(os.open(path, os.O_CREAT | os.O_RDWR))
            fcntl.flock(others[0], fcntl.LOCK_EX)
        return locked(*args, **options)

    monkeypatch.setattr(locks, "_lock", replaced_first)
    with pytest.raises(Locked), hold_lock(path, wait_s=0):
        pass
    os.close(others[0])
    with hold_lock(path, wait_s=0):
        assert is_locked(path)


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


def test_a_lock_that_is_free_is_taken_without_a_word(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="nlu")
    with hold_lock(tmp_path / "lock", wait_s=10):
        pass
    assert not caplog.records


def test_a_file_system_without_locks_raises_only_if_the_lock_is_required(tmp_path: Path, without_locks: None) -> None:
    ran = []
    with pytest.raises(NoLocks, match=f"{tmp_path} is on a file system without locks .No locks available."):
        with hold_lock(tmp_path / "lock", wait_s=0):
            ran.append("needed")
    with hold_lock(tmp_path / "lock", wait_s=0, optional=True):
        ran.append("optional")
    assert ran == ["optional"] and not is_locked(tmp_path / "lock")


def test_any_other_error_of_a_lock_is_raised_unchanged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(descriptor: int, operation: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(OSError, match="Input/output error"), hold_lock(tmp_path / "lock", wait_s=0, optional=True):
        pass
    assert not is_locked(tmp_path / "lock"), "what cannot be read counts as free"


def test_pauses_grow_with_the_wait_within_their_bounds_and_end_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    slept = clock.slept
    with hold_lock(tmp_path / "lock", wait_s=0):
        monkeypatch.setattr(locks, "time", clock)
        with pytest.raises(Locked), hold_lock(tmp_path / "lock", wait_s=3.0):
            pass
    shortest, longest = locks.PAUSES_S
    assert slept[0] == shortest <= 0.001 and max(slept) == longest <= 0.1 and sum(slept) == pytest.approx(3.0)
    assert slept[40] == pytest.approx(sum(slept[:40]) / 10), "a tenth of the time waited so far"


def test_a_folder_is_made_by_the_first_who_holds_it(tmp_path: Path) -> None:
    for made in (True, False):
        with locks.hold_folder(tmp_path / "a/b", "lock", wait_s=0) as made_here:
            assert made_here is made and is_locked(tmp_path / "a/b/lock")
