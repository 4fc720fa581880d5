"""precision.master_weights=false: weights and gradients in fp16, updates in fp32, against numpy and after reloading."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

import nlu
from nlu.data.examples import Examples
from nlu.models.layers.linear import Embedding, Linear, halve
from nlu.optim import fused
from nlu.optim.update import FusedAdamW, total_norm, update
from nlu.runs.predictions import Predictions
from nlu.training.fp16 import Fp16
from tests.training.in_process import MODEL, PLAIN, sets, train
from tests.training.test_step import ROWS, examples, stepper  # noqa: F401 - a fixture

HALF = ("precision=fp16", "precision.master_weights=false", "precision.init_scale=1024")
OPTIONS = (*MODEL, *PLAIN, *HALF, "trainer.max_duration=6st", "trainer.log_interval=2st", "trainer.eval_interval=3st")
LR, EPS, DECAY, BETAS = 0.01, 1e-6, 0.1, (0.9, 0.99)


def by_hand(weight: np.ndarray, gradients: list[np.ndarray], divisor: float, dtype: Any) -> list[np.ndarray]:
    """Return the weight after each step of AdamW, kept in `dtype` between the steps."""
    mean, square, kept = np.zeros(weight.shape), np.zeros(weight.shape), []
    for number, given in enumerate(gradients, 1):
        gradient = given.astype(np.float64) / divisor
        mean = BETAS[0] * mean + (1 - BETAS[0]) * gradient
        square = BETAS[1] * square + (1 - BETAS[1]) * gradient**2
        change = mean / (1 - BETAS[0] ** number) / (np.sqrt(square / (1 - BETAS[1] ** number)) + EPS)
        weight = (weight.astype(np.float64) * (1 - LR * DECAY) - LR * change).astype(dtype)
        kept.append(weight)
    return kept


@pytest.mark.parametrize("kernel_divides", [True, False])
def test_two_steps_of_adamw_are_computed_in_fp32_and_rounded_once_each(
    kernel_divides: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fused, "TAKES_DIVISOR", kernel_divides)
    rng, divisor = np.random.default_rng(0), 640.0
    shapes: dict[tuple[int, ...], Any] = {(7, 5): np.float16, (3, 4): np.float16, (2, 2): np.float16, (5,): np.float32}
    weights = [rng.normal(0, 0.5, shape).astype(dtype) for shape, dtype in shapes.items()]
    gradients = [[rng.normal(0, 300, one.shape).astype(one.dtype) for one in weights] for _ in range(2)]
    parameters = [torch.nn.Parameter(torch.from_numpy(one.copy())) for one in weights]
    # The order of groups is not that of the sizes.
    groups = [{"params": parameters[2:], "weight_decay": DECAY}, {"params": parameters[:2], "weight_decay": DECAY}]
    optimizer = FusedAdamW(groups, lr=LR, betas=BETAS, eps=EPS, fused=True)
    for step in range(2):
        for parameter, one in zip(parameters, gradients[step], strict=True):
            parameter.grad = torch.from_numpy(one.copy())
        given = [parameter.grad for parameter in parameters if parameter.grad is not None]
        update(optimizer, given, torch.tensor(divisor), None)
        for parameter, weight, of_steps in zip(parameters, weights, zip(*gradients, strict=True), strict=True):
            expected = by_hand(weight, list(of_steps), divisor, weight.dtype)[step]
            if weight.dtype == np.float16:
                np.testing.assert_array_equal(parameter.detach().numpy(), expected)
            else:
                np.testing.assert_allclose(parameter.detach().numpy(), expected, rtol=1e-5)
            assert optimizer.state[parameter]["exp_avg"].dtype == torch.float32
    assert [list(group["params"]) for group in optimizer.param_groups] == [parameters[2:], parameters[:2]]
    assert set(optimizer.state) == set(parameters)


def test_norms_of_fp16_gradients_are_those_of_fp32() -> None:
    rng = np.random.default_rng(0)
    gradients: list[np.ndarray] = [rng.normal(0, 9000, (300, 7)).astype(np.float16)]
    gradients.append(rng.normal(0, 9000, 50).astype(np.float32))
    expected = np.sqrt(sum((one.astype(np.float64) ** 2).sum() for one in gradients))
    assert expected > 65504, "an fp16 norm would be infinite"
    assert total_norm([torch.from_numpy(one) for one in gradients]).item() == pytest.approx(expected, rel=1e-6)


def test_weights_and_gradients_of_matrices_and_embeddings_take_half_the_bytes(examples: Examples) -> None:  # noqa: F811
    sizes = {}
    for master_weights in (True, False):
        parts = stepper(ema_decay=0.9, optimizer=torch.optim.AdamW)
        parts.precision = parts.passes.precision = precision = Fp16(init_scale=16, master_weights=master_weights)
        precision.hold(parts.model)
        assert not parts.step(examples, [np.arange(5), np.arange(5, ROWS)], 1, False).result().skipped
        held = {name: each for name, each in parts.model.named_parameters() if each.grad is not None}
        assert all(each.grad is not None and each.grad.dtype == each.dtype for each in held.values())
        sizes[master_weights] = {name: 2 * each.numel() * each.element_size() for name, each in held.items()}
        moments = [value for state in parts.optimizer.state.values() for value in state.values()]
        assert {value.dtype for value in moments} == {torch.float32}
        assert parts.average is not None and {value.dtype for value in parts.average.values()} == {torch.float32}
    backbone = dict(stepper().model.named_modules())
    halved = {f"{name}.weight" for name, each in backbone.items() if isinstance(each, Linear | Embedding)}
    halved.remove("head.linear.weight")
    for name, size in sizes[True].items():
        assert sizes[False][name] == (size // 2 if name in halved else size), name
    assert len(halved & sizes[True].keys()) == 7


def test_gradients_of_fp16_weights_are_those_of_fp32_weights_with_the_same_values(examples: Examples) -> None:  # noqa: F811
    found = []
    for is_half in (True, False):
        parts = stepper()
        parts.precision = parts.passes.precision = Fp16(init_scale=16)
        halve(parts.model.backbone)  # type: ignore[arg-type]
        if not is_half:
            parts.model.float()
        shares = parts.passes.shares(examples, [np.arange(ROWS)], 0)
        totals = parts.passes.run(shares, {"labels": torch.tensor(2.0)}, 1)
        gradients = {name: each.grad for name, each in parts.model.named_parameters() if each.grad is not None}
        found.append((totals, gradients))
    (loss, gradients), (expected_loss, expected) = found
    assert torch.equal(loss, expected_loss)
    for name, gradient in gradients.items():
        assert torch.equal(gradient, expected[name].to(gradient.dtype)), name


@pytest.mark.parametrize("ema_decay", [0.0, 0.9])
def test_a_reloaded_checkpoint_predicts_exactly_what_was_scored_while_training(
    tmp_path: Path, ema_decay: float
) -> None:
    train(*OPTIONS, *sets(tmp_path), f"trainer.ema_decay={ema_decay}", f"hydra.run.dir={tmp_path}/run")
    saved = load_file(tmp_path / "run/checkpoints/last/model.safetensors")
    kinds = {name: value.dtype for name, value in saved.items()}
    assert kinds["backbone.embeddings.word_embeddings.weight"] == kinds["backbone.encoder.layer.0.output.dense.weight"]
    assert kinds["backbone.embeddings.word_embeddings.weight"] == np.float16
    assert kinds["head.linear.weight"] == kinds["backbone.embeddings.LayerNorm.weight"] == np.float32
    records = Predictions(tmp_path / "run/predictions/dev.jsonl")
    expected = [(record["prediction"], record["probability"]) for record in records]
    texts = [line.split("\t")[0] for line in (tmp_path / "dev.tsv").read_text().splitlines()]
    step = json.loads((tmp_path / "run/result.json").read_text())["best"]["step"]
    for checkpoint in ("best", "last") if step == 6 else ("best",):
        found = nlu.load(str(tmp_path / "run" / checkpoint)).predict([{"text": text} for text in texts])
        assert [(row["prediction"], row["probability"]) for row in found] == expected, checkpoint


def test_what_cannot_hold_fp16_weights_is_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run = f"hydra.run.dir={tmp_path}/run"
    train("model=hf", "model.pretrained=hf://some/model", *HALF, *sets(tmp_path), run, status=2)
    assert "model=hf computes with the layers of transformers" in capfd.readouterr().err
    train(*OPTIONS, "parallel=bmuf", "trainer.devices=2", *sets(tmp_path), run, status=2)
    assert "parallel is bmuf, whose processes exchange small changes of weights" in capfd.readouterr().err
