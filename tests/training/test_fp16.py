"""precision=fp16: its loss scale against torch's GradScaler, what it logs, where it ends, and what a kill changes."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from nlu.data.collate import collate
from nlu.data.examples import Examples
from nlu.training.fp16 import Fp16
from tests.training.in_process import MODEL, PLAIN, column, sets, train
from tests.training.test_step import ROWS, done, examples, stepper  # noqa: F401 - a fixture

CPU = torch.device("cpu")
OVERFLOWS = (1, 4, 5, 11)
"""steps, from 1, in which a gradient is made infinite"""


def test_the_scale_is_that_of_the_gradient_scaler_of_torch() -> None:
    ours = Fp16(init_scale=2.0**120, growth_interval=2)
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=0.0)
    theirs = torch.amp.GradScaler("cpu", init_scale=2.0**120, growth_interval=2)
    scales = []
    for step in range(1, 31):
        is_finite = step not in (*OVERFLOWS, 29)
        scales.append(ours.loss_scale(CPU).item())
        # Small enough for the largest scale.
        theirs.scale((weight * 1e-30).sum()).backward()
        assert theirs.get_scale() == scales[-1]
        if not is_finite:
            weight.grad = torch.full_like(weight, torch.inf)
        theirs.step(optimizer)
        theirs.update()
        optimizer.zero_grad()
        ours.update(torch.tensor(is_finite))
    # It grows to the largest power of two that float32 holds, and not to infinity.
    assert min(scales) == 2.0**118 and max(scales) == 2.0**127 and scales[-2:] == [2.0**127, 2.0**126]


def test_the_state_of_the_scale_continues_exactly_and_without_one_it_begins() -> None:
    def scales(precision: Fp16, steps: range) -> list[float]:
        found = []
        for step in steps:
            found.append(precision.loss_scale(CPU).item())
            precision.update(torch.tensor(step not in OVERFLOWS))
        return found

    expected = scales(Fp16(init_scale=3.0, growth_interval=3), range(1, 20))
    for stop in range(1, 20):
        first, second = Fp16(init_scale=3.0, growth_interval=3), Fp16()
        before = scales(first, range(1, stop))
        second.growth_interval = 3
        second.load_state(json.loads(json.dumps(first.state())))
        assert before + scales(second, range(stop, 20)) == expected
    fresh = Fp16(init_scale=8.0)
    fresh.load_state({})
    assert fresh.loss_scale(CPU) == 8.0


def test_steps_are_those_of_torch_with_autocast_and_its_scaler(examples: Examples) -> None:  # noqa: F811
    """Weights, scale and skipped steps, with clipping and accumulation, against the recipe of torch's documentation."""
    ours, other = stepper(0.05, clip_norm=0.5), stepper(0.05)
    ours.precision = ours.passes.precision = Fp16(init_scale=2.0**10, growth_interval=3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=3)
    optimizer = torch.optim.SGD(other.model.parameters(), lr=0.05)
    step = 0

    def overflow(gradient: Tensor) -> Tensor:
        return gradient * torch.inf if step in OVERFLOWS else gradient

    for model in (ours.model, other.model):
        next(model.head.parameters()).register_hook(overflow)
    halves = [np.arange(5), np.arange(5, ROWS)]
    skipped = []
    for step in range(1, 14):
        result = done(ours, examples, halves, step, False)
        assert result.loss_scale == scaler.get_scale(), step
        for half in halves:
            batch = collate(examples, half, (1, 0))
            with torch.autocast("cpu", torch.float16):
                logits_BC = other.model(batch)
            scaler.scale(F.cross_entropy(logits_BC.float(), batch.targets["labels"], reduction="sum") / ROWS).backward()
        scaler.unscale_(optimizer)
        norm = torch.nn.utils.clip_grad_norm_(other.model.parameters(), 0.5)
        if result.skipped:
            skipped.append(step)
        else:
            assert result.gnorm == pytest.approx(norm.item(), rel=1e-3)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        for (name, one), (_, two) in zip(ours.model.named_parameters(), other.model.named_parameters(), strict=True):
            torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-5, msg=f"{name} at step {step}")
    assert skipped == list(OVERFLOWS)


OPTIONS = (*MODEL, *PLAIN, "precision=fp16", "trainer.log_interval=2st", "trainer.eval_interval=0")


def test_skipped_steps_are_in_train_tsv_and_in_the_log(tmp_path: Path) -> None:
    # Far above the largest number of fp16, 65504: the gradient of a logit overflows until the scale is small enough.
    options = (*OPTIONS, *sets(tmp_path), "precision.init_scale=268435456", "trainer.max_duration=8st")
    train(*options, f"hydra.run.dir={tmp_path}/run")
    skipped = column(tmp_path / "run", "skipped")
    assert 0 < skipped[0] and skipped[-1] == 0
    scales = column(tmp_path / "run", "grad_scale")
    # The scale of the last step of a window: each skipped step before it has halved it.
    assert scales[-1] == 268435456 / 2 ** sum(skipped)
    log = (tmp_path / "run/log.txt").read_text()
    said = re.findall(r"(\d) of the last 2 steps were skipped, since a gradient overflowed; the loss scale was", log)
    assert [int(count) for count in said] == [count for count in skipped if count]


def test_a_run_whose_every_step_was_skipped_fails_and_can_be_made_longer(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    options = (*OPTIONS, *sets(tmp_path), "precision.init_scale=4294967296")
    train(*options, "trainer.max_duration=3st", f"hydra.run.dir={tmp_path}/run", status=2)
    said = capfd.readouterr().err
    assert "all 3 steps were skipped" in said and "so nothing was trained; set precision.init_scale lower" in said
    assert not (tmp_path / "run/result.json").exists()
    longer = (f"resume={tmp_path}/run", "trainer.max_duration=30st")
    train(*options, *longer, f"hydra.run.dir={tmp_path}/longer")
    # The scale goes on from where it was.
    assert column(tmp_path / "longer", "grad_scale")[0] <= 4294967296 / 2**3
    assert (tmp_path / "longer/result.json").exists()


def test_an_overflow_at_the_least_scale_ends_the_run_with_the_reason(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    scales = ("precision.init_scale=268435456", "precision.min_scale=134217728")
    train(*OPTIONS, *sets(tmp_path), *scales, f"hydra.run.dir={tmp_path}/run", status=2)
    said = capfd.readouterr().err
    assert "at a loss scale of 1.34218e+08 at step 2, " in said and "bf16 or fp16 try fp32" in said
    assert '"step": 1,' in (tmp_path / "run/checkpoints/last/state.json").read_text(), "the last step that was done"
