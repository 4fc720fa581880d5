"""A run of any kind, killed in each of its steps in turn, continues to the bytes of one that was not.

What a kill between two operations on files leaves does not depend on the kind; test_kills.py goes through all of those.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from nlu.config.schema import Run
from nlu.runs.records import COST_COLUMNS
from tests.training.in_process import composed, killed_in_backward, start
from tests.training.kinds import KINDS, Kind, classes, few_first, transformers_model

STEPS = 4
OPTIONS = (
    "trainer.batch_size=4", "trainer.accumulation=2", f"trainer.max_duration={STEPS}st", "trainer.eval_interval=2st",
    "trainer.save_interval=1st", "trainer.log_interval=3st", "trainer.keep_best=2", "resume=auto",
)  # fmt: skip
COSTS = ("examples_per_s", "real_tokens_per_s", *COST_COLUMNS)


def outcome(run_dir: Path) -> dict[str, Any]:
    """Return everything of a finished run that must not depend on whether it was killed."""
    found: dict[str, Any] = {
        str(path.relative_to(run_dir)): path.read_bytes()
        for path in [*run_dir.rglob("*.safetensors"), *run_dir.glob("predictions/*"), run_dir / "valid.tsv"]
    }
    header, *rows = [line.split("\t") for line in (run_dir / "train.tsv").read_text().splitlines()]
    kept = [place for place, name in enumerate(header) if name not in COSTS]
    found["train.tsv"] = [[cells[place] for place in kept] for cells in [header, *rows]]
    result = json.loads((run_dir / "result.json").read_text())
    found["result.json"] = {key: result[key] for key in ("metrics", "best", "last", "steps", "examples")}
    return found


@pytest.mark.parametrize(
    "kind",
    few_first(
        KINDS, "mlm", "structbert", "rdrop in bf16", "freelb, tags and a CRF", "rdrop of tags in windows",
    ),
)  # fmt: skip
def test_a_run_of_any_kind_killed_in_every_step_ends_with_the_same_bytes(kind: Kind, tmp_path: Path) -> None:
    assert_kills_change_nothing(kind, tmp_path)


@pytest.mark.thorough
def test_a_killed_run_of_freelb_with_a_transformers_model_continues_exactly(tmp_path: Path) -> None:
    model = transformers_model(tmp_path / "weights")
    assert_kills_change_nothing(Kind(("method=freelb",), classes, model, passes=3), tmp_path)


def assert_kills_change_nothing(kind: Kind, folder: Path) -> None:
    """Kill a run in each of its steps in turn, continue each time, and compare its end with that of an unbroken one."""
    found = killed_in_each_step(composed(*kind.overrides(folder), *OPTIONS), folder, STEPS, kind.passes)
    last_row = (folder / "whole/train.tsv").read_text().splitlines()[-1]
    assert last_row.startswith(f"{STEPS}\t")
    assert len([name for name in found if name.endswith(".safetensors")]) == 5


def killed_in_each_step(config: Run, folder: Path, steps: int, passes: int) -> dict[str, Any]:
    """Kill a run of steps of two micro-batches in each step, and return its outcome, which is that of a whole run.

    `passes`: backward passes of a micro-batch.
    """
    start(config, folder / "whole")
    for killed_in in range(1, steps + 1):
        # A start does the step before, except the first; then it dies in its first pass, or its second: after one
        # micro-batch, or one climb of its first.
        passes_before = 0 if killed_in == 1 else 2 * passes
        with killed_in_backward(passes_before + 1 + killed_in % 2):
            start(config, folder / "run")
        if killed_in > 1:
            assert step_of(folder / "run") == killed_in - 1
    start(config, folder / "run")
    found, expected = outcome(folder / "run"), outcome(folder / "whole")
    assert found.keys() == expected.keys()
    assert not [name for name in expected if found[name] != expected[name]]
    return found


def step_of(run_dir: Path) -> int:
    return json.loads((run_dir / "checkpoints/last/state.json").read_text())["state"]["step"]
