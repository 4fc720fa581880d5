"""A step that asks for more examples than there are is told of, since every epoch is then one step."""

from pathlib import Path

import pytest

from tests.training.in_process import TINY, train


@pytest.mark.parametrize(("accumulation", "is_told"), [(3, False), (4, True)])
def test_a_step_larger_than_the_training_set_is_told(tmp_path: Path, accumulation: int, is_told: bool) -> None:
    rows = "".join(f"word {number},{'ab'[number % 2]}\n" for number in range(24))
    (tmp_path / "train.csv").write_text("text,label\n" + rows)
    (tmp_path / "dev.csv").write_text("text,label\nword,a\nother,b\n")
    train(
        *TINY, "data=files", f"data.train={tmp_path}/train.csv", f"data.dev={tmp_path}/dev.csv",
        f"trainer.accumulation={accumulation}", "trainer.max_duration=1st", f"hydra.run.dir={tmp_path}/run",
    )  # fmt: skip
    said = "WARNING a step asks for 32 examples (trainer.batch_size * trainer.accumulation), but there are 24"
    assert (said in (tmp_path / "run" / "log.txt").read_text()) == is_told
