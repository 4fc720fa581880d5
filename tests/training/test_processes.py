"""A command that starts several processes: what it leaves behind, and signals that come at a bad moment."""

import multiprocessing
import os
import signal
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from nlu.config import stopping
from nlu.config.placement import Placement
from nlu.training.processes import _Workers, in_processes, meeting_folder


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


def test_a_command_removes_the_folders_of_killed_commands_and_not_of_living_ones(
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


def nothing() -> int:
    return 0


class StoppedAtTheSecond(list[Placement]):
    """Workers to be, of which a signal comes before the second."""

    def __iter__(self) -> Iterator[Placement]:
        yield self[0]
        raise stopping.Stopped(signal.SIGTERM)


def test_a_signal_between_two_starts_ends_the_process_that_would_wait_for_the_others(tmp_path: Path) -> None:
    workers = StoppedAtTheSecond(Placement("workers", rank, 2, rank, 2) for rank in (0, 1))
    with pytest.raises(stopping.Stopped):
        _Workers(nothing, workers, None, f"file://{tmp_path}/store")
    for process in multiprocessing.active_children():
        process.join()
        assert process.exitcode == -signal.SIGKILL


def fails(alone: bool, folder: Path) -> int:
    """Raise an error in rank 1 while rank 0 waits, or in both."""
    rank = int(os.environ["RANK"])
    (folder / str(rank)).touch()
    while not (folder / "1").exists() or not (folder / "0").exists():
        time.sleep(0.01)
    if rank == 0 and alone:
        time.sleep(60)
    raise ValueError(f"the fault of rank {rank}")


def test_the_first_traceback_is_printed_and_a_line_for_the_other_ranks(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert in_processes(partial(fails, True, tmp_path), 2) == 1
    said = capfd.readouterr().err
    assert said.count("Traceback") == 1 and said.endswith("nlu: rank 0 was ended, since rank 1 had failed\n")
    assert "nlu: rank 1 failed:\nTraceback" in said and "ValueError: the fault of rank 1\n" in said
