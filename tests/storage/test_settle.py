"""Folders that are whole or not there: the order of writes, and a kill after each of them."""

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nlu.storage.settle import MARKER, aside, copy_whole, find_whole, is_whole, mark_whole, replace, settle

KILLED = 9
NAMED_POINTS = ("open", "fsync", "rename", "unlink", "rmdir")


def write(folder: Path, text: str) -> Path:
    """Two files, one of them deeper, which tell the same."""
    (folder / "deep").mkdir(parents=True, exist_ok=True)
    (folder / "a.txt").write_text(text)
    (folder / "deep" / "b.txt").write_text(text)
    return folder


def content(folder: Path) -> str:
    """Return the common content of both files; they must not differ."""
    one, other = (folder / "a.txt").read_text(), (folder / "deep" / "b.txt").read_text()
    assert one == other
    return one


class Recorder:
    """Notes what is asked of the disk, in order, by the names that the files have at the end; can die at any point."""

    def __init__(self, patch: pytest.MonkeyPatch, die_after: int | None = None):
        self.events: list[tuple[str, str]] = []
        self._die_after = die_after
        for name in NAMED_POINTS:
            patch.setattr(os, name, self._wrapped(name, getattr(os, name)))

    def _wrapped(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            result = real(*arguments, **named)
            if name == "fsync":
                what = os.readlink(f"/proc/self/fd/{arguments[0]}")
            else:
                what = str(arguments[-1] if name == "rename" else arguments[0])
            if name != "open" or (len(arguments) > 1 and arguments[1] & os.O_CREAT):
                self.events.append((name, Path(what).name))
                if len(self.events) == self._die_after:
                    os._exit(KILLED)
            return result

        return call


def points_of(work: Callable[[], Any]) -> int:
    """The number of points at which the work can be killed."""
    with pytest.MonkeyPatch.context() as patch:
        recorder = Recorder(patch)
        work()
    return len(recorder.events)


def killed_at(point: int, work: Callable[[], Any]) -> None:
    """Do the work in a child process that dies, without any clean-up, right after its point-th call."""
    child = os.fork()
    if child == 0:
        try:
            Recorder(pytest.MonkeyPatch(), die_after=point)
            work()
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == KILLED


@pytest.mark.parametrize(("put", "note"), [(settle, "done"), (replace, "")])
def test_all_is_on_the_disk_before_the_mark_and_the_mark_before_the_name(
    put: Callable[..., Any], note: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "new", "x")
    with monkeypatch.context() as patch:
        opened: list[str] = []
        real = open

        def recorded_open(file: Any, mode: str = "r", **named: Any) -> Any:
            if "w" in mode:
                opened.append(Path(file).name)
                recorder.events.append(("write", Path(file).name))
            return real(file, mode, **named)

        sync = os.fsync

        def measured_sync(number: int) -> None:
            if (name := Path(os.readlink(f"/proc/self/fd/{number}")).name) == MARKER:
                synced[name] = os.fstat(number).st_size
            sync(number)

        synced: dict[str, int] = {}
        patch.setattr(os, "fsync", measured_sync)
        recorder = Recorder(patch)
        patch.setattr("builtins.open", recorded_open)
        put(tmp_path / "new", tmp_path / "place", **{"note": note} if note else {})
    events = [event for event in recorder.events if event[1] != ".place.lock"]
    marked, renamed = events.index(("write", MARKER)), events.index(("rename", "place"))
    assert set(events[:marked]) == {("fsync", name) for name in ("a.txt", "b.txt", "deep", "new")}
    assert events[marked + 1 : renamed] == [("fsync", MARKER), ("fsync", "new")]
    assert events[renamed + 1] == ("fsync", tmp_path.name)
    assert synced == {MARKER: len(note)}, "the content is in the file when that is synced"
    assert opened == [MARKER] and (tmp_path / "place" / MARKER).read_text() == note


def test_a_kill_while_settling_leaves_all_or_nothing_and_the_next_try_succeeds(tmp_path: Path) -> None:
    def work(folder: Path) -> Callable[[], Any]:
        return lambda: settle(write(folder / "new", "x"), folder / "place")

    for point in range(1, points_of(work(tmp_path / "whole")) + 1):
        folder = tmp_path / str(point)
        killed_at(point, work(folder))
        if is_whole(folder / "place"):
            assert content(folder / "place") == "x"
        else:
            assert not (folder / "place").exists()
            assert settle(write(folder / "again", "y"), folder / "place") and content(folder / "place") == "y"


def test_a_kill_while_replacing_leaves_the_old_or_the_new_folder(tmp_path: Path) -> None:
    def work(folder: Path) -> Callable[[], Any]:
        replace(write(aside(folder / "place"), "old"), folder / "place")
        return lambda: replace(write(aside(folder / "place"), "new"), folder / "place")

    left = set()
    for point in range(1, points_of(work(tmp_path / "whole")) + 1):
        folder = tmp_path / str(point)
        killed_at(point, work(folder))
        found = find_whole(folder / "place")
        assert found == folder / "place" and content(found) in ("old", "new")
        left.add(content(found))
        replace(write(aside(folder / "place"), "newest"), folder / "place")
        assert content(folder / "place") == "newest" and [path.name for path in folder.iterdir()] == ["place"]
    assert left == {"old", "new"}


def test_the_first_of_several_writers_settles_a_place_even_over_a_broken_folder(tmp_path: Path) -> None:
    for attempt in range(20):
        place = tmp_path / str(attempt) / "place"
        write(place, "broken")
        new = [write(tmp_path / str(attempt) / f"new-{number}", str(number)) for number in range(4)]
        start, stands = threading.Barrier(4), []

        def work(folder: Path, start: threading.Barrier, place: Path, stands: list[str]) -> None:
            start.wait()
            if settle(folder, place):
                stands.append(folder.name)

        threads = [threading.Thread(target=work, args=(folder, start, place, stands)) for folder in new]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(stands) == 1 and f"new-{content(place)}" == stands[0]
        left = {path.name for path in place.parent.iterdir()}
        assert left == {"place"} | {f"new-{number}" for number in range(4)} - {stands[0]}


def test_an_incomplete_folder_or_a_file_in_the_place_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "place").write_text("a file where a folder should be")
    assert settle(write(tmp_path / "new", "x"), tmp_path / "place") and content(tmp_path / "place") == "x"
    assert [path.name for path in tmp_path.iterdir()] == ["place"]


def test_a_marked_folder_that_lost_a_file_is_replaced_if_the_caller_checks_it(tmp_path: Path) -> None:
    settle(write(tmp_path / "new", "x"), tmp_path / "place")
    (tmp_path / "place" / "a.txt").unlink()
    assert not settle(write(tmp_path / "new", "y"), tmp_path / "place")
    assert settle(write(tmp_path / "new", "y"), tmp_path / "place", is_good=lambda path: (path / "a.txt").is_file())
    assert content(tmp_path / "place") == "y"


def test_an_incomplete_folder_is_not_copied_and_its_older_version_is_copied_instead(tmp_path: Path) -> None:
    write_flat(tmp_path / "place", "half")
    assert not copy_whole(tmp_path / "place", tmp_path / "copy") and not (tmp_path / "copy").exists()
    mark_whole(write_flat(tmp_path / ".place.old", "old"))
    assert copy_whole(tmp_path / "place", tmp_path / "copy") and (tmp_path / "copy" / "0.txt").read_text() == "old"
    assert (tmp_path / ".place.old").exists() and (tmp_path / "place" / "0.txt").read_text() == "half"


def write_flat(folder: Path, text: str) -> Path:
    """Several files that tell the same."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(5):
        (folder / f"{number}.txt").write_text(text)
    return folder
