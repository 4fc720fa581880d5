"""What a command that starts several processes leaves behind."""

import os
import signal
import tempfile
from pathlib import Path

import pytest

from nlu.launching.local import meeting_folder


@pytest.fixture
def top(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The system's folder for temporary files."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def other_command() -> tuple[int, Path]:
    """Start another command, which meets its processes until it is killed; returns its id and its folder."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        with meeting_folder() as folder:
            (folder / "store").write_text("what its processes tell one another")
            os.write(writing, f"{folder}\n".encode())
            signal.pause()
        os._exit(1)
    os.close(writing)
    with open(reading) as told:
        return child, Path(told.readline().strip())


def test_the_folder_of_a_command_that_was_killed_goes_with_the_next_one_and_that_of_a_living_one_stays(
    top: Path,
) -> None:
    killed, left = other_command()
    living, kept = other_command()
    os.kill(killed, signal.SIGKILL)
    os.waitpid(killed, 0)
    assert set(top.iterdir()) == {left, kept}
    with meeting_folder() as own:
        assert set(top.iterdir()) == {kept, own} and (kept / "store").is_file()
    assert list(top.iterdir()) == [kept]
    os.kill(living, signal.SIGKILL)
    os.waitpid(living, 0)


def test_the_folder_of_a_command_that_was_killed_before_it_held_it_goes_too(top: Path) -> None:
    with meeting_folder() as own:
        early = own.with_name(f"{own.name}-early")
        early.mkdir()
        with meeting_folder() as other:
            assert set(top.iterdir()) == {own, other}
    assert not list(top.iterdir())


@pytest.mark.parametrize("other", ["socket.gethostname", "boot"])
def test_the_folder_of_a_command_of_another_host_stays_whose_lock_is_not_seen_here(
    top: Path, monkeypatch: pytest.MonkeyPatch, other: str
) -> None:
    with monkeypatch.context() as there:
        if other == "boot":
            there.setattr("nlu.launching.local.identity_of", lambda pid: {"pid": pid, "machine": "another pid:[1]"})
        else:
            there.setattr(other, lambda: "far")
        command, theirs = other_command()
    # Of a command that was killed no lock is seen either.
    os.kill(command, signal.SIGKILL)
    os.waitpid(command, 0)
    with meeting_folder() as own:
        assert set(top.iterdir()) == {theirs, own}
