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
    (top / "nlu-meeting-early").mkdir()
    with meeting_folder() as own:
        assert list(top.iterdir()) == [own]
    assert not list(top.iterdir())
