"""resume=PATH: the state of another run, and starts that are killed while they take it over."""

import json
from pathlib import Path
from typing import Any

import pytest

from nlu.runs.checkpoint import TAKEN
from nlu.runs.takeover import make_own
from nlu.storage.settle import mark_whole
from tests import warm
from tests.disk import followed
from tests.suspending import write_state
from tests.training.runs import QUICK, REPOSITORY, SAME_THREADS, TINY, files

OPTIONS = (*TINY, *QUICK, "trainer.devices=1", "scheduler=constant")


def ask(folder: Path, *overrides: str) -> dict[str, Any]:
    command = ["-m", "tests.runs.taking_over", str(folder), *overrides]
    done = warm.run(command, cwd=REPOSITORY, env=SAME_THREADS)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.thorough
def test_a_run_killed_while_it_copies_a_state_starts_again_from_the_same_bytes(tmp_path: Path) -> None:
    options = (*OPTIONS, *files(tmp_path, 24, 9), "trainer.eval_interval=2st", "trainer.max_duration=4st")
    found = ask(tmp_path, *options)
    assert found["wrong"] == [] and found["points"] > 10 and found["last"] == 0 and found["unchanged"]
    assert not found["pruned"], "a run that was pruned trains on from a path"


def test_a_state_that_was_taken_is_on_the_disk_before_it_is_the_runs_own(tmp_path: Path) -> None:
    taken = tmp_path / TAKEN
    write_state(tmp_path / "other", 3, "weights")
    (tmp_path / "other/checkpoints").rename(taken)
    (taken / "predictions").mkdir()
    (taken / "predictions/dev.jsonl").write_text("{}")
    with followed() as disk:
        mark_whole(taken)
        make_own(tmp_path)
    disk.require_on_disk()
    assert disk.named == [tmp_path / "predictions/dev.jsonl", tmp_path / "checkpoints"]
    assert not (tmp_path / "checkpoints/COMPLETE").exists()
