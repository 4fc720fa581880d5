"""resume=PATH: the state of another run, dead or alive, and starts that are killed while they take it over."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests import warm
from tests.training.runs import QUICK, REPOSITORY, SAME_THREADS, TINY, files

OPTIONS = (*TINY, *QUICK, "trainer.devices=1", "scheduler=constant")


def ask(folder: Path, what: str, *overrides: str) -> dict[str, Any]:
    command = ["-m", "tests.runs.taking_over", str(folder), what, *overrides]
    done = warm.run(command, cwd=REPOSITORY, env=SAME_THREADS)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.thorough
def test_after_a_kill_at_any_point_of_taking_over_the_same_command_begins_from_the_same_bytes(tmp_path: Path) -> None:
    options = (*OPTIONS, *files(tmp_path, 24, 9), "trainer.eval_interval=2st", "trainer.max_duration=4st")
    found = ask(tmp_path, "kills", *options)
    assert found["wrong"] == [] and found["points"] > 10 and found["last"] == 0 and found["unchanged"]
    assert not found["pruned"], "a run that was pruned trains on from a path"


def test_the_state_of_a_living_run_is_of_one_step_with_its_best_weights_and_their_predictions(tmp_path: Path) -> None:
    found = ask(tmp_path, "living", *OPTIONS, *files(tmp_path, 24, 9), "trainer.eval_interval=3st")
    assert found["alive"]
    for began in found["began_at"]:
        assert began["status"] == 0 and began["step"] > 0
        assert began["held"] == ["best-1", "last", "taken_from.json"] and len(began["best"]) == 1
        assert began["predictions"] == began["best"][0]
