"""precision=int8: in nlu.predict, nlu.evaluate, nlu.serve and nlu.load, and what is refused."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import nlu
from nlu.config.errors import UserError
from nlu.inference.int8.int8_linear import QuantizedLinear, multiplies_integers
from nlu.inference.predictor import Predictor
from nlu.inference.trained import load_trained
from tests.inference.int8.machine import compiles_int8
from tests.inference.runs import FEW, evaluate, kept, predict, trained, unlabelled
from tests.serving.servers import serving
from tests.training.in_process import train
from tests.training.kinds import TASKS, TEXTCNN, few_first, read, write

NEEDS_COMPILER = pytest.mark.needs(compiles_int8, "no compiler, or no AVX-512 VNNI")
pytestmark = pytest.mark.needs(multiplies_integers, "no products of integers")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(TASKS["classify"], tmp_path_factory.mktemp("classify"))


@pytest.mark.parametrize("precision", ["int8", pytest.param("int8_compiled", marks=NEEDS_COMPILER)])
@pytest.mark.parametrize("name", few_first(list(TASKS), *FEW))
def test_each_row_has_the_same_bits_in_any_batch_and_in_every_command(
    name: str, precision: str, tmp_path: Path
) -> None:  # fmt: skip
    run = trained(TASKS[name], tmp_path)
    rows = unlabelled(TASKS[name], 23)
    loaded = nlu.load(run, device="cpu", batch_size=5, precision=precision)
    found = loaded.predict(rows, logits=True)
    assert [loaded.predict([row], logits=True)[0] for row in rows] == found
    write(tmp_path / "new.jsonl", rows)
    out = f"output={tmp_path}/out.jsonl"
    predict(f"run={run}", f"input={tmp_path}/new.jsonl", out, "logits=true", f"precision={precision}")
    written = read(tmp_path / "out.jsonl")
    assert [{key: one[key] for key in one if key not in row} for one, row in zip(written, rows, strict=True)] == found
    others = [nlu.load(run, device="cpu", precision=each).predict(rows, logits=True) for each in ("fp32", "int8")]
    own, exact, by_torch = (np.concatenate([np.ravel(one["logits"]) for one in each]) for each in (found, *others))
    assert 0 < np.abs(own - exact).max() < 0.1 * np.abs(exact).max()
    if precision == "int8_compiled":
        # Both round the same numbers; most come out alike.
        assert np.abs(own - by_torch).mean() < np.abs(own - exact).mean()


def test_nlu_evaluate_scores_in_int8_as_nlu_load_does(run: Path, tmp_path: Path) -> None:
    evaluate(f"run={run}", "precision=int8", f"out={tmp_path}/out", "resamples=0")
    result = json.loads((tmp_path / "out/result.json").read_text())["metrics"]["dev"]
    loaded = nlu.load(run, device="cpu", precision="int8")
    scores = loaded.evaluate(read(run.parent / "dev.jsonl"))
    assert scores == {metric: result[metric] for metric in scores}
    own = loaded.trained.task.metrics
    assert own and result["loss"] != nlu.load(run, device="cpu").evaluate(read(run.parent / "dev.jsonl"))["loss"]


@pytest.mark.parametrize("precision", ["int8", pytest.param("int8_compiled", marks=NEEDS_COMPILER)])
def test_nlu_serve_answers_and_explains_in_int8(run: Path, precision: str) -> None:
    rows = unlabelled(TASKS["classify"], 9)
    expected = nlu.load(run, device="cpu", precision=precision).predict(rows)
    with serving(run, f"precision={precision}") as server:
        assert server.ask("/predict", {"rows": rows}) == (200, {"rows": expected})
        status, found = server.ask("/explain", {"row": rows[0]})
    assert status == 200 and sum(abs(mark["attribution"]) for mark in found["marks"]) > 0


def test_only_the_linear_layers_of_layers_are_rounded(run: Path) -> None:
    model = load_trained(nlu.load(run, device="cpu").trained.located, precision="int8").model
    rounded = {name for name, module in model.named_modules() if isinstance(module, QuantizedLinear)}
    kinds = ("attention.self.qkv", "attention.output.dense", "intermediate.dense", "output.dense")
    layers = model.backbone.sizes["layers"]
    assert rounded == {f"backbone.encoder.layer.{layer}.{kind}" for layer in range(layers) for kind in kinds}


def test_an_adapter_is_merged_before_weights_are_rounded(tmp_path: Path) -> None:
    run = trained(TASKS["classify"], tmp_path, "adapter=lora", "optimizer.lr=0.01")
    rows = unlabelled(TASKS["classify"], 20)
    found, exact = (
        np.array([one["logits"] for one in nlu.load(run, device="cpu", precision=name).predict(rows, logits=True)])
        for name in ("int8", "fp32")
    )
    assert 0 < np.abs(found - exact).max() < 0.1 * np.abs(exact).max()


def test_training_in_int8_is_refused_before_anything_is_read(tmp_path: Path, capsys) -> None:
    train("model=bert_tiny", "precision=int8", f"hydra.run.dir={tmp_path}/run", status=2)
    assert (
        "precision is int8, which only predicts: rounded weights have no gradient; train with"
        in capsys.readouterr().err
    )


def test_an_encoder_without_our_linear_layers_is_refused(tmp_path: Path) -> None:
    run = trained(replace(TASKS["classify"], model=TEXTCNN), tmp_path)
    with pytest.raises(UserError, match="^precision is int8, but TextCnn has no linear layers of nlu to quantize; set"):
        nlu.load(run, device="cpu", precision="int8")


def test_an_unknown_precision_is_refused(run: Path) -> None:
    with pytest.raises(
        UserError, match="^precision is 'int4' but must be fp32, bf16, int8 or int8_compiled, or None for the run's"
    ):
        nlu.load(run, device="cpu", precision="int4")


def test_a_precision_that_a_run_chooses_when_it_is_trained_is_refused(run: Path, tmp_path: Path, capsys) -> None:
    write(tmp_path / "new.jsonl", unlabelled(TASKS["classify"], 2))
    out = f"output={tmp_path}/out.jsonl"
    predict(f"run={run}", f"input={tmp_path}/new.jsonl", out, "precision=auto", status=2)
    assert (
        "precision is auto, which only nlu.train chooses; set it to fp32, bf16, int8 or int8_compiled"
        in capsys.readouterr().err
    )


def test_another_device_than_a_cpu_is_refused(run: Path) -> None:
    loaded = nlu.load(run, device="cpu", precision="int8")
    with pytest.raises(UserError, match="^precision is int8, which computes on a CPU, but the device is cuda; set"):
        Predictor(loaded.trained, torch.device("cuda"))


def test_without_exact_sums_of_bytes_int8_is_refused(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nlu.inference.int8.precision.instruction_sets", lambda: frozenset(["avx2", "avx512f"]))
    with pytest.raises(UserError, match="^precision is int8, but this processor has none of avx512_vnni, "):
        nlu.load(run, device="cpu", precision="int8")


def test_without_torchs_operators_int8_is_refused(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nlu.inference.int8.int8_linear._multiply", None)
    with pytest.raises(UserError, match="^precision is int8, but torch .* lacks the operators for its products on a"):
        nlu.load(run, device="cpu", precision="int8")


def test_a_run_that_was_trained_in_bf16_predicts_in_fp32_if_asked(tmp_path: Path) -> None:
    run = trained(TASKS["classify"], tmp_path, "precision=bf16")
    rows = unlabelled(TASKS["classify"], 23)
    own, bf16, fp32 = (nlu.load(run, device="cpu", precision=name).predict(rows) for name in (None, "bf16", "fp32"))
    assert own == bf16 != fp32
    assert [one["prediction"] for one in own] and len(kept(run)) == 23
