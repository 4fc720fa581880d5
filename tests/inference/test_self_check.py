"""A model that is loaded for scoring says where a row of its layers depends on the number of rows."""

import time
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from torch import Tensor

import nlu
from nlu.commands import evaluate, predict
from nlu.diagnosis import machine
from nlu.inference import self_check
from nlu.inference.self_check import BUDGET_S, library_of, uneven_layers
from nlu.models.layers.exact_linear import Linear
from tests.training.in_process import composed, of_composed, start
from tests.training.kinds import TASKS

FEW_ROWS = 33
NAMED = "a score may depend on its batch here, in its last digits: "


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    options = TASKS["classify"].overrides(folder)
    sizes = ("model.hidden_size=24", "model.intermediate_size=40", "model.pooling=pooler")
    start(composed(*options, *sizes, "trainer.max_duration=1st", "trainer.eval_interval=0"), folder / "run")
    return folder / "run"


@pytest.fixture
def in_another_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let few rows be summed in two halves, as a library does that divides sums by the number of rows."""
    inner = Linear.forward

    def forward(self: Linear, input: Tensor, outputs: slice | None = None) -> Tensor:
        if len(input) > FEW_ROWS:
            return inner(self, input, outputs)
        half = self.in_features // 2
        parts = [input.clone(), input.clone()]
        parts[0][:, half:], parts[1][:, :half] = 0, 0
        return inner(self, parts[0], outputs) + (inner(self, parts[1], outputs) - self.bias[outputs or slice(None)])

    monkeypatch.setattr(Linear, "forward", forward)
    monkeypatch.setattr(self_check, "_said", set())
    # Other programs may take the processor away.
    monkeypatch.setattr(self_check, "BUDGET_S", 60.0)


def test_a_healthy_model_gives_no_warning(run: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert nlu.load(run).predict(["a b"]) and nlu.load(run, precision="bf16").predict(["a b"])
    assert NAMED not in caplog.text
    assert machine.batches().mark == "ok"


@pytest.mark.usefixtures("in_another_order")
def test_a_layer_whose_rows_depend_on_their_number_is_named_once(run: Path, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        nlu.load(run)
    (said,) = [record.getMessage() for record in caplog.records if NAMED in record.getMessage()]
    for shape in ("40 to 24", "24 to 40", "24 to 24", "24 to 2"):
        assert f"{shape} in float32, 17 rows, by up to " in said, "the longest sum is looked at first"
    assert library_of("float32") in said and "docs/guarantees.md" in said
    caplog.clear()
    nlu.load(run, precision="bf16")
    (said,) = [record.getMessage() for record in caplog.records if NAMED in record.getMessage()]
    # The head computes in fp32.
    assert "40 to 24 in bfloat16" in said and "24 to 2 in float32" in said and "oneDNN" in said
    found = machine.batches()
    assert (
        found.mark == "warning" and "3072 to 768 in float32" in found.says and "768 to 3072 in bfloat16" in found.says
    )


@pytest.mark.usefixtures("in_another_order")
@pytest.mark.parametrize("command", ["predict", "evaluate"])
def test_the_commands_warn_too(command: str, run: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    rows = run.parent / "dev.jsonl"
    if command == "predict":
        of_composed(predict.main, "predict", f"run={run}", f"input={rows}", f"output={tmp_path}/found.jsonl")
    else:
        of_composed(evaluate.main, "evaluate", f"run={run}", f"data.test={rows}")
    assert NAMED in capfd.readouterr().err


def test_the_check_of_twelve_wide_layers_is_short() -> None:
    shapes = [(768, 2304), (768, 768), (768, 3072), (3072, 768)]
    layers = [Linear(*shape) for _ in range(12) for shape in shapes]
    for context in (nullcontext(), torch.autocast("cpu", dtype=torch.bfloat16)):
        took_s = []
        for _ in range(5):
            # Of this thread, which takes part in every product: other programs may take the processor away.
            began_s = time.thread_time()
            assert not list(uneven_layers([(layer, context) for layer in layers], budget_s=BUDGET_S))
            took_s.append(time.thread_time() - began_s)
        assert min(took_s) < 0.05


def test_the_library_is_named_for_another_build_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    assert library_of("bfloat16").startswith("oneDNN v")
    monkeypatch.setattr(
        torch.__config__, "show", lambda: "PyTorch built with:\n  - Build settings: BLAS_INFO=open, X=1"
    )
    assert library_of("float32").startswith("open on ") and library_of("bfloat16").startswith("open on ")
