"""What a run warns of: before its first step, and at its end."""

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


@pytest.mark.parametrize(("accumulation", "warns"), [(3, False), (4, True)])
def test_a_step_larger_than_the_training_set_warns(tmp_path: Path, accumulation: int, warns: bool) -> None:
    log = log_of(tmp_path, f"trainer.accumulation={accumulation}", "trainer.max_duration=1st")
    said = "WARNING a step asks for 32 examples (trainer.batch_size * trainer.accumulation), but there are 24"
    assert (said in log) == warns


@pytest.mark.parametrize("schedule", ["one_cycle", "constant"])
@pytest.mark.parametrize(("warmup", "steps"), [("3st", None), ("1ep", None), ("4st", 4), ("25ex", 4), ("1.0", None)])
def test_a_warm_up_longer_than_the_run_warns(tmp_path: Path, schedule: str, warmup: str, steps: int | None) -> None:
    log = log_of(tmp_path, f"scheduler={schedule}", f"scheduler.warmup={warmup}", "trainer.max_duration=3st")
    told = f"WARNING the warm-up (scheduler.warmup) takes {steps} steps, but the run has 3, so its"
    assert told in log if steps else "warm-up" not in log


@pytest.mark.parametrize(("steps", "warns"), [(1, True), (60, False)])
def test_a_score_that_a_constant_class_reaches_warns(tmp_path: Path, steps: int, warns: bool) -> None:
    rows = "".join(f"{word} {number},{word}\n" for number in range(16) for word in ("good", "bad", "bad"))
    for name in ("train", "dev"):
        (tmp_path / f"{name}.csv").write_text("text,label\n" + rows)
    train(
        *TINY, "data=files", f"data.train={tmp_path}/train.csv", f"data.dev={tmp_path}/dev.csv", "optimizer.lr=1e-2",
        f"trainer.max_duration={steps}st", "trainer.ema_decay=0", f"hydra.run.dir={tmp_path}/run",
    )  # fmt: skip
    log = (tmp_path / "run" / "log.txt").read_text()
    # Duplicates are dropped from train, not from dev: 16 texts of each word.
    assert ("is no more than that of 'bad' for every example, 0.6667; train longer" in log) == warns
