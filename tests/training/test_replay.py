"""A step that is not finite: the module that is named, the folder that is written, and the step from that folder."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from torch import nn

from nlu.config.errors import UserError
from nlu.config.schema import Run
from nlu.diagnosis.replay import repeated, replay
from nlu.models.adapters.lora import LoraLinear
from nlu.models.layers.linear import Embedding
from nlu.runs.failed_step import failed_step_at
from nlu.training.first_bad import Place, watching
from tests.composing import prepared
from tests.training import poisoned
from tests.training.in_process import MODEL, PLAIN, command, composed, sets, start, tensors
from tests.training.kinds import KINDS, Kind, few_first
from tests.training.poisoned import HERE, LAYER, bad
from tests.training.test_kinds_in_processes import run_in_two

ON_CPU = ("trainer.device=cpu",)
PRECISIONS: tuple[dict[str, Any], ...] = (
    {"_target_": "nlu.training.precision.Precision", "dtype": "bfloat16"},
    {"_target_": "nlu.training.fp16.Fp16", "init_scale": 512.0, "growth_interval": 2000, "min_scale": 256.0},
)  # fmt: skip
MODULES = {
    "embeddings.word_embeddings": "Embedding", f"{LAYER}.attention.self.qkv": "Linear",
    f"{LAYER}.attention.output.LayerNorm": "LayerNorm", f"{LAYER}.output.dropout": "Dropout",
    f"{LAYER}.output.dense": "Linear", "pooling_module": "AttentionPooling",
}  # fmt: skip
CODE = {
    "attention": f"backbone.{LAYER}.attention (SelfAttention), between self.qkv and output",
    "activation": f"backbone.{LAYER} (Layer), between intermediate.dense and output",
}
ROW = 7
"""the row with the token"""


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run over one step of all rows, one of which has a token of its own."""
    folder = tmp_path_factory.mktemp("data")
    options = sets(folder)
    lines = (folder / "train.tsv").read_text().splitlines()
    lines[ROW - 1] = "a z b z\tgood"
    (folder / "train.tsv").write_text("\n".join(lines) + "\n")
    whole = composed(
        *MODEL, *PLAIN, *options, "model.pooling=attention", "trainer.batch_size=27", "trainer.max_duration=2st",
        "model.dropout=0.1", "trainer.eval_interval=0",
    )  # fmt: skip
    return replace(whole, trusted_packages=["tests"])


@pytest.fixture(scope="module")
def trained(config: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run in which everything was finite."""
    run_dir = tmp_path_factory.mktemp("trained") / "run"
    start(config, run_dir)
    return run_dir


@pytest.fixture(scope="module")
def token(trained: Path) -> int:
    """The number of the token."""
    tokenizer = json.loads((trained / "checkpoints/last/tokenizer.json").read_text())
    found: int = tokenizer["model"]["vocab"]["z"]
    return found


@pytest.fixture(autouse=True)
def active() -> Iterator[None]:
    poisoned.is_active = True
    yield
    poisoned.is_active = True


def with_bad(config: Run, token: int, place: str, phase: str = "forward", **parts: Any) -> Run:
    model = {**config.model, "_target_": f"{HERE}.BadBert", "place": place, "phase": phase, "piece": token}
    return replace(config, model=model, **parts)


def failed(config: Run, run_dir: Path, step: int = 1) -> tuple[UserError, Path]:
    with pytest.raises(UserError, match="nothing was updated") as caught:
        start(config, run_dir)
    return caught.value, run_dir / f"nonfinite-{step}"


def replayed(folder: Path, *overrides: str) -> int:
    given = (*ON_CPU, *overrides)
    return replay(*failed_step_at(str(folder)), prepared(given), given)


def require_named_and_replayed(
    config: Run, folder: Path, said: str, capsys: pytest.CaptureFixture[str]
) -> dict[str, Any]:  # fmt: skip
    # In fp16 the first step is skipped, after which the scale is the least one.
    is_scaled = "Fp16" in config.precision["_target_"]
    error, step = failed(config, folder / "run", 2 if is_scaled else 1)
    assert f"row {ROW} of train;" in error.summary
    assert error.problems[0].startswith(f"first {said}")
    assert error.problems[1] == f'row {ROW} of train: "a z b z"'
    assert error.problems[2].startswith(f"the step is saved: python -m nlu.train replay={step} ")
    # On another machine, where nothing else of the run is.
    moved = folder / "moved"
    shutil.move(step, moved)
    shutil.rmtree(folder / "run")
    capsys.readouterr()
    assert replayed(moved) == 0
    lines = capsys.readouterr().out.splitlines()
    place = lines[1].partition(": first ")[2]
    assert place.startswith(said) and f": first {place}" in lines[2] and lines[-1] == "reproduced"
    report: dict[str, Any] = json.loads((moved / "report.json").read_text())
    # The same weights, tokens and dropout masks give the same bits.
    again = repeated(moved, report, prepared(ON_CPU), ON_CPU)[1]
    assert again.to_json() == report["examined"]
    assert report["loss_scales"] == ([[1, 512.0, True], [2, 256.0, False]] if is_scaled else [])
    assert (report["step"], report["epoch"]) == ((2, 1) if is_scaled else (1, 0))
    return report


@pytest.mark.parametrize("phase", ["forward", "backward"])
@pytest.mark.parametrize("place", [*MODULES, *CODE])
def test_the_module_that_fails_first_is_named_there_and_in_the_replay(
    config: Run, token: int, tmp_path: Path, capsys: pytest.CaptureFixture[str], place: str, phase: str
) -> None:
    precision = PRECISIONS[[*MODULES, *CODE].index(place) % 2]
    said = CODE[place] if place in CODE else f"backbone.{place} ({MODULES[place]})"
    report = require_named_and_replayed(
        with_bad(config, token, place, phase, precision=precision), tmp_path, f"in the {phase} pass of {said}", capsys
    )
    assert (report["rank"], report["rows"][0]["row"]) == (0, ROW)
    (at,) = (call for call in report["examined"]["around"] if call["is_at"])
    # What enters the place is finite: the values in the forward pass, the gradient in the backward pass.
    assert phase == "backward" or place in CODE or place.startswith("emb") or isinstance(at["input"], float)
    if place == "embeddings.word_embeddings" and phase == "backward":
        assert report["examined"]["gradients"] == ["backbone.embeddings.word_embeddings.weight"]


@pytest.mark.parametrize("phase", ["forward", "backward"])
@pytest.mark.parametrize("group", ["head", "loss"])
def test_the_head_and_the_loss_are_named(
    config: Run, token: int, tmp_path: Path, capsys: pytest.CaptureFixture[str], group: str, phase: str
) -> None:
    part = {"_target_": f"{HERE}.Bad{group.capitalize()}", "phase": phase}
    said = f"in the {phase} pass of head.linear (Linear)"
    if group == "loss":
        said = "in the loss (BadLoss)" if phase == "forward" else "in the backward pass of the loss (BadLoss)"
    bad = with_bad(config, token, "", **{group: part, "precision": PRECISIONS[0]})
    require_named_and_replayed(bad, tmp_path, said, capsys)


@pytest.mark.parametrize("phase", ["forward", "backward"])
def test_the_rank_whose_rows_fail_is_named_and_its_micro_batch_replayed(
    config: Run, token: int, tmp_path: Path, capsys: pytest.CaptureFixture[str], phase: str
) -> None:
    def of(name: str, line: int) -> Run:
        lines = Path(config.data["train"]).read_text().splitlines()
        lines[ROW - 1], lines[line - 1] = lines[line - 1], lines[ROW - 1]
        (tmp_path / f"{name}.tsv").write_text("\n".join(lines) + "\n")
        data = {**config.data, "train": str(tmp_path / f"{name}.tsv")}
        trainer = replace(config.trainer, devices=2, batch_size=26, bucket_batches=1)
        return replace(with_bad(config, token, f"{LAYER}.output.dense", phase), data=data, trainer=trainer)

    runs = {f"at-{line}": line for line in (ROW, ROW + 1, ROW + 4)}
    run_in_two([(of(name, line), tmp_path / name) for name, line in runs.items()], tmp_path, FAILS="1")
    ranks = set()
    for name, line in runs.items():
        report = json.loads((tmp_path / name / "nonfinite-1/report.json").read_text())
        (row,) = report["rows"]
        (recorded,) = report["passes"]
        assert row["row"] == line and row["rank"] == report["rank"] == recorded["rank"]
        assert line - 1 in recorded["examples"] and len(recorded["examples"]) == 13
        ranks.add(report["rank"])
        messages = {(tmp_path / f"{name}.error-{rank}").read_text() for rank in range(2)}
        said = f"first in the {phase} pass of backbone.{LAYER}.output.dense (Linear)"
        assert len(messages) == 1 and said in (message := messages.pop()) and f", on rank {row['rank']}" in message
        assert replayed(tmp_path / name / "nonfinite-1") == 0
        assert said in capsys.readouterr().out.splitlines()[2]
    assert ranks == {0, 1}


def test_the_run_continues_from_its_last_state_as_if_the_step_had_not_failed(
    config: Run, token: int, tmp_path: Path
) -> None:
    trainer = replace(config.trainer, batch_size=9, max_duration="6st", save_interval="1st")
    bad = replace(with_bad(config, token, f"{LAYER}.output.dense"), trainer=trainer, resume="auto")
    poisoned.is_active = False
    start(bad, tmp_path / "whole")
    start(replace(bad, trainer=replace(trainer, stop_after="2st")), tmp_path / "run")
    poisoned.is_active = True
    with pytest.raises(UserError, match="nothing was updated"):
        start(bad, tmp_path / "run")
    (step,) = (tmp_path / "run").glob("nonfinite-*")
    last = json.loads((tmp_path / "run/checkpoints/last/state.json").read_text())["state"]["step"]
    # The weights in the folder are those before the step.
    assert step.name == f"nonfinite-{last + 1}"
    kept = load_file(step / "model.safetensors")
    before = tensors(tmp_path / "run", "last/model")
    assert all((kept[name] == before[name]).all() for name in before)
    poisoned.is_active = False
    assert replayed(step) == 1
    start(bad, tmp_path / "run")
    for name in ("last/model", "last/optimizer", "last/average"):
        whole, continued = (tensors(tmp_path / run, name) for run in ("whole", "run"))
        assert all((whole[key] == continued[key]).all() for key in whole)


def test_weights_that_were_broken_before_are_named_first(config: Run, trained: Path, tmp_path: Path) -> None:
    last = tmp_path / "last"
    shutil.copytree(trained / "checkpoints/last", last)
    weights = load_file(last / "model.safetensors")
    weights["backbone.embeddings.LayerNorm.bias"][0] = np.inf
    save_file(weights, last / "model.safetensors")
    model = {**config.model, "pretrained": str(last)}
    error, step = failed(replace(config, model=model), tmp_path / "run")
    assert error.problems[0].startswith("first in the weights from before the step: backbone.embeddings.LayerNorm.bias")
    assert replayed(step) == 0


def test_a_replay_may_have_another_precision_and_says_that_the_step_is_finite_there(
    config: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # A gradient of fp32 that fp16 does not have, at such a scale.
    half = {**PRECISIONS[1], "init_scale": 2.0**40, "min_scale": 2.0**40}
    error, step = failed(replace(config, precision=half), tmp_path / "run")
    assert "at a loss scale of 1.09951e+12" in error.summary
    assert replayed(step) == 0
    capsys.readouterr()
    assert replayed(step, "precision=fp32") == 1
    said = capsys.readouterr().out
    assert "every number is finite" in said and "not reproduced" in said


def test_without_checkpoints_no_step_is_saved(config: Run, token: int, tmp_path: Path) -> None:
    trainer = replace(config.trainer, save=False)
    error, step = failed(replace(with_bad(config, token, "embeddings.LayerNorm"), trainer=trainer), tmp_path / "run")
    assert "trainer.save is false" in error.problems[-1] and not step.exists()


@pytest.mark.parametrize("method", ["fgm", "rdrop", "freelb"])
def test_a_method_with_several_passes_is_replayed(
    config: Run, token: int, tmp_path: Path, capsys: pytest.CaptureFixture[str], method: str
) -> None:
    own = prepared([f"method={method}"])["method"]
    said = f"in the forward pass of backbone.{LAYER}.output.dense (Linear)"
    bad = with_bad(config, token, f"{LAYER}.output.dense", method=own)
    require_named_and_replayed(bad, tmp_path, said, capsys)


@pytest.mark.parametrize("kind", few_first(KINDS, "tag with a CRF", "siamese with InfoNCE"))
def test_a_step_of_every_kind_of_run_gives_the_same_numbers_again(
    kind: Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    monkeypatch.setattr(poisoned, "has_piece", True)
    # No gradient reaches word vectors that are not trained.
    modules = (LoraLinear,) if "adapter=lora" in kind.options else (nn.Embedding, Embedding)
    for module in modules:
        monkeypatch.setattr(module, "forward", bad("backward", module.forward))
    # At the least scale an overflow ends the run instead of skipping a step.
    scale = [option.replace("init", "min") for option in kind.options if "precision.init_scale" in option]
    composed_run = composed(*kind.overrides(tmp_path), *scale, *ON_CPU, "trainer.max_duration=1st")
    _, step = failed(composed_run, tmp_path / "run")
    report = json.loads((step / "report.json").read_text())
    assert any(f"({module.__name__}" in report["place"] for module in modules)
    assert report["place"].endswith(("in the gradient of weight", ", at up"))
    assert repeated(step, report, prepared(ON_CPU), ON_CPU)[1].to_json() == report["examined"]


@pytest.mark.thorough
def test_a_module_within_a_compiled_one_is_named() -> None:
    inner = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    model = nn.Sequential(nn.Linear(4, 4), torch.compile(inner, backend="eager"))
    model(torch.ones(2, 4))
    with torch.no_grad():
        inner[2].weight.fill_(torch.nan)
    with watching({"": model}) as watch:
        model(torch.full((2, 4), 100.0)).sum().backward()
    assert watch.place == Place("forward", "1._orig_mod.2", "Linear")


@pytest.mark.parametrize("method", ["distil", "tinybert"])
def test_the_predictions_of_a_teacher_are_in_the_folder_and_its_layers_are_not(
    config: Run, token: int, trained: Path, tmp_path: Path, method: str
) -> None:
    shutil.copytree(trained, tmp_path / "teacher")
    own = prepared([f"method={method}", f"method.teacher={tmp_path}/teacher"])["method"]
    _, step = failed(with_bad(config, token, "embeddings.LayerNorm", "backward", method=own), tmp_path / "run")
    report = json.loads((step / "report.json").read_text())
    (tmp_path / "teacher").rename(tmp_path / "moved")
    overrides = ON_CPU
    if method == "tinybert":
        with pytest.raises(UserError, match="method.teacher is"):
            replayed(step)
        overrides = (*ON_CPU, "method=tinybert", f"method.teacher={tmp_path}/moved")
    assert repeated(step, report, prepared(overrides), overrides)[1].to_json() == report["examined"]
    assert np.isfinite(report["examined"]["terms"]["distil"])


def test_a_folder_without_such_a_step_is_refused_and_the_right_one_named(
    config: Run, token: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, step = failed(with_bad(config, token, "embeddings.LayerNorm"), tmp_path / "run")
    command(f"replay={tmp_path}/run", status=2)
    assert f"give {step}" in capsys.readouterr().err
    command(f"replay={tmp_path}/none", status=2)
    assert "which is not a folder here" in capsys.readouterr().err
    command(f"replay={step}", "optimizer.lr=1", status=2)
    assert "optimizer.lr cannot be set with replay" in capsys.readouterr().err
    command(f"replay={step}", "method=rdrop", status=2)
    assert "method is nlu.methods.rdrop.RDrop, but the step was one of nlu.methods.plain.Plain" in (
        capsys.readouterr().err
    )
    command(f"replay={step}", *ON_CPU, f"hydra.run.dir={tmp_path}/other", status=0)
    assert "reproduced" in capsys.readouterr().out and not (tmp_path / "other").exists()
    (step / "batch-0.safetensors").write_bytes(b"cut")
    command(f"replay={step}", *ON_CPU, status=2)
    assert "of which a file is missing or damaged" in (said := capsys.readouterr().err) and "copy the folder" in said


def test_layers_that_are_computed_again_are_not_calls_of_their_own(config: Run, token: int, tmp_path: Path) -> None:
    place = f"{LAYER}.output.dense"
    found = []
    for name, again in (("kept", False), ("again", True)):
        run = with_bad(config, token, place, "backward")
        error, step = failed(replace(run, model=run.model | {"gradient_checkpointing": again}), tmp_path / name)
        assert "call 2" not in error.problems[0]
        found.append(json.loads((step / "report.json").read_text())["examined"])
    assert found[0] == found[1]


@pytest.mark.thorough
def test_a_step_of_ranks_that_train_apart_is_replayed_with_the_weights_of_its_rank(
    config: Run, token: int, tmp_path: Path
) -> None:
    parallel = prepared(["parallel=bmuf", "parallel.warmup=0", "parallel.sync_interval=9"])["parallel"]
    trainer = replace(config.trainer, devices=2, batch_size=6, max_duration="4st", eval_interval="0")
    runs = [
        (
            replace(with_bad(config, token, f"{LAYER}.output.dense", parallel=parallel), trainer=trainer, seed=seed),
            tmp_path / str(seed),
        )
        for seed in range(1, 6)
    ]
    run_in_two(runs, tmp_path, FAILS="1")
    reports = {step: json.loads((step / "report.json").read_text()) for step in tmp_path.glob("*/nonfinite-*")}
    assert any(report["rank"] == 1 and report["step"] > 1 for report in reports.values())
    for step, report in reports.items():
        assert repeated(step, report, prepared(ON_CPU), ON_CPU)[1].to_json() == report["examined"]
