"""A command that starts several processes: what it leaves behind, and signals that come at a bad moment."""

import multiprocessing
import os
import re
import signal
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from nlu.config import stopping
from nlu.jobs.placement import Placement
from nlu.training.processes import _Workers, in_processes


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
        _Workers(nothing, workers, f"file://{tmp_path}/store")
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


def test_only_the_first_traceback_is_printed(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert in_processes(partial(fails, True, tmp_path), 2) == 1
    said = capfd.readouterr().err
    assert said.count("Traceback") == 1
    assert "nlu: rank 1 failed:\nTraceback" in said and "ValueError: the fault of rank 1\n" in said


def dies() -> int:
    """Kill rank 1 while rank 0 waits."""
    if os.environ["RANK"] == "1":
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)
    return 0


def test_a_rank_that_was_killed_is_named_with_the_signal(capfd: pytest.CaptureFixture[str]) -> None:
    assert in_processes(dies, 2) == signal.SIGKILL
    said = re.findall(r"error: rank 1 \(process \d+\) was ended by SIGKILL, as when the machine runs out of memory; ",
                      capfd.readouterr().err)  # fmt: skip
    assert len(said) == 1
