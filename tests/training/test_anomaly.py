"""`trainer.detect_anomaly`: the operation whose gradient is NaN is named, with the call that ran it."""

from pathlib import Path

import pytest

from tests.training.in_process import TINY, sets, train

MINE = """
import torch

from nlu.models.encoders.bert import Bert


class Rooted(Bert):
    def embed(self, batch):
        x_TD = super().embed(batch)
        return x_TD + torch.sqrt(0 * x_TD)
"""


@pytest.fixture
def broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    """A model whose vectors are finite, but the slope of its root at 0 is not."""
    (tmp_path / "rooted.py").write_text(MINE)
    monkeypatch.syspath_prepend(tmp_path)
    return (*TINY, *sets(tmp_path), "model._target_=rooted.Rooted", "trusted_packages=[rooted]")


def test_the_operation_of_a_nan_is_named_with_its_call(
    broken: tuple[str, ...], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    train(*broken, "debug=anomaly", f"hydra.run.dir={tmp_path / 'run'}", status=2)
    said = capfd.readouterr().err
    # The root gives infinity to the product before it, which multiplies it by 0.
    assert "the gradient becomes NaN in the backward pass of step 1" in said and "Function 'MulBackward0'" in said
    assert "rooted.py" in said and "torch.sqrt(0 * x_TD)" in said


def test_an_overflow_that_fp16_skips_is_not_called_an_operation_at_fault(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    options = (*TINY, *sets(tmp_path), "trainer.max_duration=1st", "precision=fp16", "precision.init_scale=1e30")
    train(*options, "debug=anomaly", f"hydra.run.dir={tmp_path / 'run'}", status=2)
    assert "all 1 steps were skipped, since their gradients overflowed" in capfd.readouterr().err
    train(*options, "precision.min_scale=1e30", "debug=anomaly", f"hydra.run.dir={tmp_path / 'least'}", status=2)
    assert "the gradient becomes NaN in the backward pass of step 1" in capfd.readouterr().err
