"""A rank that hangs or dies is named by those that wait for it; real processes."""

import os
import re
import signal
import socket
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch.distributed as dist

from nlu.launching.local import in_processes
from nlu.sweeps.faults import ProcessLost
from nlu.training import presence
from nlu.training.presence import Presence
from tests.training.hanging import work

REPOSITORY = Path(__file__).parents[2]


def test_a_rank_that_hangs_is_named_with_its_place_and_process(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ProcessLost) as caught:
        in_processes(partial(work, "hangs"), 2)
    host = re.escape(socket.gethostname())
    said = rf"rank 1 \(process \d+ on {host}\) did not answer: .*; this rank waits in step 3 \(.*Timed out"
    assert re.match(said, str(caught.value)), caught.value
    said_at_once = capfd.readouterr().err
    assert "nlu: rank 1 was ended, since rank 0 had failed" in said_at_once
    assert f"nlu: rank 0: {caught.value}" in said_at_once and "Traceback" not in said_at_once


def test_a_rank_that_is_killed_is_named_with_the_signal(capfd: pytest.CaptureFixture[str]) -> None:
    assert in_processes(partial(work, "dies"), 2) == signal.SIGKILL
    said = capfd.readouterr().err
    assert re.search(
        r"^nlu: error: rank 1 \(process \d+\) was ended by SIGKILL, as when the machine runs out", said, re.M
    )
    assert "Traceback" not in said


def test_a_rank_that_dies_on_another_machine_is_named() -> None:
    # Two commands, as on two machines: neither of them sees the end of the other's process.
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = {"WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
    code = "from tests.training.hanging import work; work('dies')"
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", code], cwd=REPOSITORY, stderr=subprocess.PIPE, text=True,
            env={**os.environ, **common, "MASTER_PORT": str(port), "RANK": rank, "GROUP_RANK": rank},
        )
        for rank in ("0", "1")
    ]  # fmt: skip
    said = [rank.communicate(timeout=120)[1] for rank in ranks][0]
    assert "did not answer: hangs, has ended, or its machine is away; this rank waits in step 3" in said
    assert f"ProcessLost: rank 1 (process {ranks[1].pid} on " in said


def test_ranks_that_all_wait_are_told_that_messages_are_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(presence, "GRACE_S", 0.2)
    store = dist.HashStore()
    ranks = [Presence(store, rank, 3) for rank in (0, 1)]
    assert re.match(r"rank 1 \(process \d+ on \S+\), rank 2 \(has not begun\) did not answer", ranks[0].missing())
    ranks[1].place = "step 7"
    assert re.match(r"rank 2 \(has not begun\) did not answer: .*; this rank waits in step 7", ranks[1].missing())
    said = Presence(store, 2, 3).missing()
    assert said == "all ranks wait for one another, so messages between them are lost; this rank waits in its start"


def test_a_process_that_is_stopped_with_the_store_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(presence, "GRACE_S", 0.2)
    code = (
        "import time, torch.distributed as dist\n"
        "store = dist.TCPStore('127.0.0.1', 0, is_master=True, wait_for_workers=False)\n"
        "print(store.port, flush=True)\ntime.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as first:
        try:
            assert first.stdout is not None
            store = dist.TCPStore("127.0.0.1", int(first.stdout.readline()), is_master=False)
            second = Presence(store, 1, 2)
            assert second.missing().startswith("rank 0 (has not begun) did not answer")
            first.send_signal(signal.SIGSTOP)
            # Its kernel keeps the connection open, so a request waits for an answer.
            assert second.missing().startswith("rank 0, at whose address the ranks meet, does not answer")
        finally:
            first.kill()
