"""The cache: its folder, the digests remembered in it, and entries that are complete or absent."""

import errno
import hashlib
import os
import time
from pathlib import Path

import pytest

from nlu.config.addresses import parse_reference
from nlu.config.errors import UserError
from nlu.storage.cache import Entry, cache_dir, file_digest, staging_folder
from nlu.storage.files import read_digest


def test_the_cache_lies_in_the_home_folder_unless_the_environment_names_another(monkeypatch, tmp_path):
    assert cache_dir() == tmp_path / "cache"
    monkeypatch.delenv("NLU_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_dir() == tmp_path / ".cache" / "nlu"


@pytest.fixture
def settled(monkeypatch):
    """Let every file count as old enough for its digest to be remembered."""
    monkeypatch.setattr("nlu.storage.cache.YOUNG_NS", 0)


def test_an_unchanged_file_is_not_read_a_second_time(tmp_path, monkeypatch, settled):
    file = tmp_path / "data.txt"
    file.write_bytes(b"before")
    assert file_digest(file) == hashlib.sha256(b"before").hexdigest()
    monkeypatch.setattr("nlu.storage.cache.read_digest", lambda path: pytest.fail("read again"))
    assert file_digest(file) == hashlib.sha256(b"before").hexdigest()


def rewritten(file, content):
    file.write_bytes(content)


def replaced(file, content):
    (file.parent / "other").write_bytes(content)
    (file.parent / "other").rename(file)


@pytest.mark.parametrize("change", [rewritten, replaced])
@pytest.mark.parametrize("content", [b"longer!", b"behind"])
@pytest.mark.parametrize("later_ns", [0, 1])
def test_a_changed_file_is_read_again_also_with_its_size_and_times_of_before(
    tmp_path, settled, change, content, later_ns
):
    file = tmp_path / "data.txt"
    file.write_bytes(b"before")
    file_digest(file)
    status = file.stat()
    # The kernel's clock of files ticks every few milliseconds.
    while file.stat().st_ctime_ns == status.st_ctime_ns:
        change(file, content)
    # As rsync -t, cp -p, tar and touch -r do.
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns + later_ns))
    assert file_digest(file) == hashlib.sha256(content).hexdigest()


def test_the_digest_of_a_file_that_has_just_changed_is_not_remembered(tmp_path):
    file = tmp_path / "data.txt"
    file.write_bytes(b"before")
    status = file.stat()
    file_digest(file)
    # Written within a tick of the kernel's clock, it would have the times of before.
    assert not (cache_dir() / "digests").exists()
    # The times that a program gives a file say nothing of its age.
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns - 10**12))
    file_digest(file)
    assert not (cache_dir() / "digests").exists()


def test_the_digest_of_a_file_that_changes_while_it_is_read_is_not_remembered(tmp_path, monkeypatch, settled):
    file = tmp_path / "data.txt"
    file.write_bytes(b"before")
    status = file.stat()

    def rewritten_meanwhile(path):
        path.write_bytes(b"behind")
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
        return read_digest(path)

    with monkeypatch.context() as patch:
        patch.setattr("nlu.storage.cache.read_digest", rewritten_meanwhile)
        file_digest(file)
    file.write_bytes(b"before")
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert file_digest(file) == hashlib.sha256(b"before").hexdigest()


def leave(cache, name, age_s):
    """What a killed process leaves: a staging folder, last touched so long ago."""
    folder = cache / "staging" / name
    folder.mkdir(parents=True)
    (folder / "part").write_bytes(b"x")
    then = time.time() - age_s
    for path in (folder / "part", folder):
        os.utime(path, (then, then))
    return folder


def test_staging_folders_of_killed_processes_are_removed_after_a_day(cache):
    old, recent = leave(cache, "old", 25 * 3600), leave(cache, "recent", 3600)
    with staging_folder() as folder:
        assert folder.is_dir()
    assert not folder.exists() and not old.exists() and recent.exists()
    assert {path.name for path in (cache / "staging").iterdir()} == {"recent"}


REFERENCE = parse_reference("http://127.0.0.1/a.txt", "weights")


def write(text: str):
    def fill(folder: Path) -> Path:
        (folder / "a.txt").write_text(text)
        return folder / "a.txt"

    return fill


def test_the_first_of_two_that_fill_an_entry_wins_and_both_succeed(cache):
    entry = Entry.of("files", "a")

    def overtaken(folder: Path) -> Path:
        entry.fill(REFERENCE, write("first"))
        return write("second")(folder)

    assert entry.fill(REFERENCE, overtaken).read_text() == "first"
    assert not list((cache / "staging").iterdir())


@pytest.mark.parametrize("lost", ["COMPLETE", "files/a.txt"])
def test_an_entry_that_lost_a_part_is_filled_again(lost, cache):
    entry = Entry.of("files", "a")
    entry.fill(REFERENCE, write("old"))
    (entry.folder / lost).unlink()
    assert entry.find() is None
    assert entry.fill(REFERENCE, write("new")).read_text() == "new"
    assert not list((cache / "staging").iterdir())


def test_a_full_disk_is_reported_with_the_cache_and_the_variable_to_set(cache):
    def fail(folder: Path) -> Path:
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(UserError, match=f"(?s)weights.*{cache}.*No space.*NLU_CACHE"):
        Entry.of("files", "a").fill(REFERENCE, fail)
