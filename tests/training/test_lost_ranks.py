"""The error of ranks that wait for one that hangs or dies; real processes."""

import os
import socket
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from nlu.search.faults import ProcessLost
from nlu.training.processes import in_processes
from tests.training.hanging import work

REPOSITORY = Path(__file__).parents[2]


def test_a_rank_that_hangs_ends_the_others_in_one_sentence(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ProcessLost, match=r"another rank has ended or did not answer \(.*Timed out") as caught:
        in_processes(partial(work, "hangs"), 2)
    said = capfd.readouterr().err
    assert f"nlu: rank 0: {caught.value}" in said and "Traceback" not in said


@pytest.mark.thorough
def test_a_rank_that_dies_on_another_machine_is_an_error_of_this_one() -> None:
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
    assert "ProcessLost: another rank has ended or did not answer (" in said
