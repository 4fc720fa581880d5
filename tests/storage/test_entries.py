"""Cache entries are whole or absent, also when several processes fill one or one is broken."""

import errno
import os
from pathlib import Path

import pytest

from nlu.config.errors import UserError
from nlu.storage.cache import Entry
from nlu.storage.places import parse_reference

REFERENCE = parse_reference("http://127.0.0.1/a.txt", "weights")


def write(text: str):
    def fill(folder: Path) -> Path:
        (folder / "a.txt").write_text(text)
        return folder / "a.txt"

    return fill


def test_a_filled_entry_is_found_again_with_its_content():
    path = Entry.of("files", "a").fill(REFERENCE, write("one"))
    assert Entry.of("files", "a").find() == path and path.read_text() == "one"
    assert Entry.of("files", "b").find() is None and Entry.of("others", "a").find() is None


def test_of_two_that_fill_one_entry_at_once_the_first_stands_and_both_succeed(cache):
    entry = Entry.of("files", "a")

    def overtaken(folder: Path) -> Path:
        entry.fill(REFERENCE, write("first"))
        return write("second")(folder)

    assert entry.fill(REFERENCE, overtaken).read_text() == "first"
    assert not list((cache / "staging").iterdir())


@pytest.mark.parametrize("lost", ["COMPLETE", "files/a.txt"])
def test_an_entry_that_lost_a_part_is_filled_anew(lost, cache):
    entry = Entry.of("files", "a")
    entry.fill(REFERENCE, write("old"))
    (entry.folder / lost).unlink()
    assert entry.find() is None
    assert entry.fill(REFERENCE, write("new")).read_text() == "new"
    assert not list((cache / "staging").iterdir())


def test_a_failure_while_filling_leaves_nothing(cached_files):
    def fail(folder: Path) -> Path:
        write("half")(folder)
        raise RuntimeError("stopped")

    with pytest.raises(RuntimeError):
        Entry.of("files", "a").fill(REFERENCE, fail)
    assert cached_files() == []


def test_a_full_disk_is_reported_with_the_cache_and_the_variable_to_set(cache):
    def fail(folder: Path) -> Path:
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(UserError, match=f"(?s)weights.*{cache}.*No space.*NLU_CACHE"):
        Entry.of("files", "a").fill(REFERENCE, fail)


def test_an_error_of_what_is_fetched_is_not_taken_for_one_of_the_cache():
    def fail(folder: Path) -> Path:
        raise OSError(errno.ECONNRESET, "Connection reset by peer")

    with pytest.raises(OSError, match="Connection reset") as found:
        Entry.of("files", "a").fill(REFERENCE, fail)
    assert found.type is ConnectionResetError


def test_a_cache_that_is_a_file_is_reported(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("x")
    monkeypatch.setenv("NLU_CACHE", str(tmp_path / "file"))
    with pytest.raises(UserError, match="NLU_CACHE"):
        Entry.of("files", "a").fill(REFERENCE, write("x"))


def test_an_entry_is_on_the_disk_before_it_is_found(monkeypatch):
    synced = []

    def fsync(descriptor: int, real=os.fsync) -> None:
        real(descriptor)
        synced.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)

    monkeypatch.setattr(os, "fsync", fsync)
    Entry.of("files", "a").fill(REFERENCE, write("x"))
    assert synced.index("a.txt") < synced.index("COMPLETE") and synced[-1] == "files"


def test_an_entry_whose_mark_was_cut_by_a_power_loss_is_filled_anew():
    entry = Entry.of("files", "a")
    entry.fill(REFERENCE, write("old"))
    (entry.folder / "COMPLETE").write_text("")
    assert entry.find() is None
    assert entry.fill(REFERENCE, write("new")).read_text() == "new"
