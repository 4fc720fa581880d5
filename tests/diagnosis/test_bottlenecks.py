"""What to change first, from measured numbers: each bottleneck by itself, what is below a limit, and the order."""

from dataclasses import replace
from typing import Any

import pytest

from nlu.diagnosis.bottlenecks import Measured, findings

STEP = {"data": 0.005, "forward": 0.030, "backward": 0.055, "optimizer": 0.009, "other": 0.001}
"""0.1 s"""
FINE = Measured(
    STEP, evaluation_s=0.01, saving_s=0.005, real_tokens=1000, computed_tokens=1100, operators=800, computing_s=0.080,
    peak_mb=8000, limit_mb=16000, threads=2, cores=2,
)  # fmt: skip


@pytest.mark.parametrize(
    ("name", "key", "changed", "share"),
    [
        ("input", "NLU_CACHE", {"seconds": STEP | {"data": 0.055}}, 0.055 / 0.165),
        ("operators", "trainer.batch_size", {"computing_s": 0.047}, 0.047 / 0.115),
        ("operators", "trainer.batch_size", {"computing_s": 0.047, "traced_s": 0.120}, 0.047 / 0.115),
        ("operators", "trainer.accumulation", {"computing_s": 0.0, "is_accelerator": True}, 0.094 / 0.115),
        ("evaluation", "trainer.eval_interval", {"evaluation_s": 0.105}, 0.5),
        ("saving", "trainer.save_interval", {"saving_s": 0.110}, 0.5),
        ("padding", "trainer.bucket_batches", {"computed_tokens": 2000.0}, 0.5 * 0.085 / 0.115),
        ("memory", "trainer.accumulation", {"peak_mb": 15000.0}, 1.0),
        ("threads", "OMP_NUM_THREADS", {"threads": 4}, 0.085 / 0.115),
        ("threads", "OMP_NUM_THREADS", {"threads": 1, "cores": 16}, 0.5 * 0.085 / 0.115),
    ],
)
def test_a_bottleneck_is_named_with_its_share_and_a_key(
    name: str, key: str, changed: dict[str, Any], share: float
) -> None:
    (found,) = findings(replace(FINE, **changed))
    assert (found.name, found.share) == (name, pytest.approx(share))
    assert key in found.keys
    assert key in found.says or key == "trainer.accumulation"


@pytest.mark.parametrize(
    "changed",
    [
        {"seconds": STEP | {"data": 0.027}},
        {"computing_s": 0.057},
        # Steps that took twice as long while another program ran, and traced ones after its end.
        {"seconds": {name: 2 * seconds for name, seconds in STEP.items()}, "computing_s": 0.070, "traced_s": 0.099},
        # Traced steps that took twice as long, in which operators were lengthened too.
        {"computing_s": 0.150, "traced_s": 0.190},
        {"evaluation_s": 0.026},
        {"saving_s": 0.027},
        {"computed_tokens": 1199.0},
        {"peak_mb": 14300.0},
        {"peak_mb": 15000.0, "limit_mb": 0.0},
        {"threads": 1, "cores": 16, "is_accelerator": True},
        {"threads": 1, "cores": 2},
    ],
)
def test_what_is_below_a_limit_is_left_alone(changed: dict[str, Any]) -> None:
    assert findings(replace(FINE, **changed)) == []
