"""What two texts that are encoded apart are scored by hangs on what their loss reads."""

import pytest

from tests.training.in_process import TINY, train

ROWS = "".join(f"text {i},text {i + i % 2},{i % 2}\n" for i in range(24))


@pytest.mark.parametrize(("loss", "metric"), [("contrastive", "loss"), ("cross_entropy", "threshold")])
def test_a_metric_that_the_loss_does_not_allow_is_refused_before_training(tmp_path, capfd, loss, metric):
    (tmp_path / "pairs.csv").write_text("text_a,text_b,label\n" + ROWS)
    train(
        *TINY, "task=siamese", "data=files", f"data.train={tmp_path}/pairs.csv", f"loss={loss}",
        f"trainer.major_metric={metric}", "trainer.max_duration=1st", f"hydra.run.dir={tmp_path}/run", status=2,
    )  # fmt: skip
    said = capfd.readouterr().err
    assert f"trainer.major_metric is {metric}, which this task and loss cannot produce" in said
    assert "accuracy" in said and not (tmp_path / "run").exists()
