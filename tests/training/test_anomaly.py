"""`trainer.detect_anomaly`: the operation whose gradient is NaN is named, with the call that ran it."""

from pathlib import Path

import pytest

from tests.training.in_process import TINY, sets, tensors, train

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


def test_without_it_the_step_is_named(
    broken: tuple[str, ...], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    train(*broken, f"hydra.run.dir={tmp_path / 'run'}", status=2)
    said = capfd.readouterr().err
    assert "gradient norm is nan at step 1" in said and "MulBackward0" not in said


def test_weights_of_a_run_without_nan_stay_the_same(tmp_path: Path) -> None:
    common = (*TINY, *sets(tmp_path), "trainer.max_duration=2st")
    train(*common, f"hydra.run.dir={tmp_path / 'plain'}")
    train(*common, "trainer.detect_anomaly=true", f"hydra.run.dir={tmp_path / 'run'}")
    plain, run = (tensors(tmp_path / name, "last/model") for name in ("plain", "run"))
    assert plain.keys() == run.keys() and all((plain[name] == run[name]).all() for name in plain)


def test_an_overflow_that_fp16_skips_is_not_called_an_operation_at_fault(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    options = (*TINY, *sets(tmp_path), "trainer.max_duration=1st", "precision=fp16", "precision.init_scale=1e30")
    train(*options, "debug=anomaly", f"hydra.run.dir={tmp_path / 'run'}", status=2)
    assert "all 1 steps were skipped, since their gradients overflowed" in capfd.readouterr().err
    train(*options, "precision.min_scale=1e30", "debug=anomaly", f"hydra.run.dir={tmp_path / 'least'}", status=2)
    assert "the gradient becomes NaN in the backward pass of step 1" in capfd.readouterr().err
