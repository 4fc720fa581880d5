"""What a run warns of before its first step."""

from pathlib import Path

import pytest

from tests.training.in_process import TINY, train


def log_of(folder: Path, *overrides: str) -> str:
    """Train on 24 rows, 8 a step if nothing else is said, and return what the run says."""
    rows = "".join(f"word {number},{'ab'[number % 2]}\n" for number in range(24))
    (folder / "train.csv").write_text("text,label\n" + rows)
    (folder / "dev.csv").write_text("text,label\nword,a\nother,b\n")
    train(
        *TINY, "data=files", f"data.train={folder}/train.csv", f"data.dev={folder}/dev.csv", *overrides,
        f"hydra.run.dir={folder}/run",
    )  # fmt: skip
    return (folder / "run" / "log.txt").read_text()


@pytest.mark.parametrize(("accumulation", "is_told"), [(3, False), (4, True)])
def test_a_step_larger_than_the_training_set_is_told(tmp_path: Path, accumulation: int, is_told: bool) -> None:
    log = log_of(tmp_path, f"trainer.accumulation={accumulation}", "trainer.max_duration=1st")
    said = "WARNING a step asks for 32 examples (trainer.batch_size * trainer.accumulation), but there are 24"
    assert (said in log) == is_told


@pytest.mark.parametrize("schedule", ["one_cycle", "constant", "exponential"])
@pytest.mark.parametrize(("warmup", "steps"), [("3st", None), ("1ep", None), ("4st", 4), ("25ex", 4), ("1.0", None)])
def test_a_warm_up_longer_than_the_run_is_told(tmp_path: Path, schedule: str, warmup: str, steps: int | None) -> None:
    log = log_of(tmp_path, f"scheduler={schedule}", f"scheduler.warmup={warmup}", "trainer.max_duration=3st")
    told = f"WARNING the warm-up (scheduler.warmup) takes {steps} steps, but the run has 3, so that its"
    assert told in log if steps else "warm-up" not in log
