"""Runs with trainer.kernels=compiled: kills, other kernels afterwards, and what is refused before anything starts."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hydra._internal.core_plugins.basic_launcher import BasicLauncher
from safetensors.numpy import load_file

from nlu.config.checks.rules import machine_problems
from nlu.config.entry.grid import check_without_launch
from nlu.config.errors import UserError
from nlu.launching.local_queue import LocalQueue
from nlu.launching.queue import QueueContext, require_valid
from nlu.models.layers.linear import FEW_OUTPUTS
from nlu.models.rules import LEAST_WIDTH
from tests.composing import prepared
from tests.models.layers.compiled.machine import compiles_training
from tests.training.in_process import composed, start
from tests.training.kinds import Kind, classes, few_first, pair_of_classes, tags
from tests.training.test_kinds_in_processes import run_in_two
from tests.training.test_kinds_killed import assert_kills_change_nothing

needs_kernels = pytest.mark.needs(compiles_training, "no compiler, or no AVX-512 with bf16")
SIZES = (
    "model=bert_tiny", "model.hidden_size=24", "model.heads=4", "model.layers=2", "model.intermediate_size=40",
    "model.max_positions=32", "data.max_len=32",
)  # fmt: skip
COMPILED = ("trainer.kernels=compiled",)
KINDS = {
    "classify in bf16": Kind((*COMPILED, "precision=bf16"), classes, SIZES),
    "match in fp32": Kind((*COMPILED, "task=match", "model.activation=relu"), pair_of_classes, SIZES),
    "freelb, tags and a CRF in bf16": Kind(
        (*COMPILED, "precision=bf16", "method=freelb", "task=tag", "head=crf"), tags, SIZES, passes=3
    ),
    "rdrop with shared weights": Kind((*COMPILED, "method=rdrop", "model.layer_groups=1"), classes, SIZES),
    "frozen weights": Kind((*COMPILED, "optimizer.freeze=['backbone.encoder.layer.0.*']"), classes, SIZES),
}
TWO_STEPS = ("trainer.max_duration=2st", "trainer.batch_size=4", "trainer.save_interval=1st")


@needs_kernels
@pytest.mark.parametrize("kind", few_first(KINDS, "classify in bf16", "freelb, tags and a CRF in bf16"))
def test_a_run_killed_in_every_step_ends_with_the_same_bytes(kind: Kind, tmp_path: Path) -> None:
    assert_kills_change_nothing(kind, tmp_path)


def weights(run_dir: Path) -> dict[str, np.ndarray]:
    found: dict[str, np.ndarray] = load_file(run_dir / "checkpoints/last/model.safetensors")
    return found


@needs_kernels
def test_a_run_learns_as_with_torch_but_with_other_bits(tmp_path: Path) -> None:
    overrides = KINDS["classify in bf16"].overrides(tmp_path)
    for name in ("torch", "compiled"):
        start(composed(*overrides, *TWO_STEPS, f"trainer.kernels={name}", "precision=fp32"), tmp_path / name)
    with_torch, in_c = weights(tmp_path / "torch"), weights(tmp_path / "compiled")
    assert any(not np.array_equal(in_c[name], with_torch[name]) for name in in_c)
    rows = [(tmp_path / name / "train.tsv").read_text().splitlines() for name in ("torch", "compiled")]
    loss = rows[0][0].split("\t").index("loss")
    # The same masks of dropout: with others, the loss of a few rows would differ by percents.
    for ours, theirs in zip(rows[1][1:], rows[0][1:], strict=True):
        assert float(ours.split("\t")[loss]) == pytest.approx(float(theirs.split("\t")[loss]), rel=1e-4)


@needs_kernels
@pytest.mark.parametrize("begun", ["torch", "compiled"])
def test_a_run_continues_with_other_kernels_only_elsewhere_and_is_warned(tmp_path: Path, begun: str) -> None:
    kind, other = KINDS["classify in bf16"], {"torch": "compiled", "compiled": "torch"}[begun]
    overrides = (*kind.overrides(tmp_path), *TWO_STEPS)
    half, changed = (composed(*overrides, f"trainer.kernels={name}") for name in (begun, other))
    half.trainer.stop_after = "1st"
    start(half, tmp_path / "half")
    state = json.loads((tmp_path / "half/checkpoints/last/state.json").read_text())
    assert state["order"]["machine"].get("kernels", "torch") == begun
    with pytest.raises(UserError, match=f"trainer.kernels: '{begun}' there, '{other}' here"):
        start(replace(changed, resume="auto"), tmp_path / "half")
    said = f"saved with trainer.kernels={begun}, continued with {other}, so the bytes will differ from an unbroken run"
    for name, config, is_warned in (("other", changed, True), ("same", composed(*overrides), begun != "compiled")):
        start(replace(config, resume=str(tmp_path / "half")), tmp_path / name)
        assert (said in (tmp_path / name / "log.txt").read_text()) == is_warned


@needs_kernels
def test_two_processes_compute_with_kernels_in_c_and_repeat_to_the_same_bytes(tmp_path: Path) -> None:
    overrides = KINDS["classify in bf16"].overrides(tmp_path, train_rows=16)
    config: Any = composed(*overrides, *TWO_STEPS, "parallel=shared")
    run_in_two([(config, tmp_path / "first"), (config, tmp_path / "second")], tmp_path)
    first, second = weights(tmp_path / "first"), weights(tmp_path / "second")
    assert all(np.array_equal(first[name], second[name]) for name in first)
    assert composed(*overrides).trainer.kernels == "compiled"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("model=lstm",), "computes layers of our BERT, but model is lstm; set"),
        (("trainer.device=cuda",), "computes on a CPU, but trainer.device is cuda; set"),
        (("precision=fp16",), "computes in fp32 and bf16, but precision is fp16; set"),
        (("adapter=lora",), "computes layers without adapters, but adapter is lora; set"),
        (("model.gradient_checkpointing=true",), "computes layers once, but model.gradient_checkpointing is true; set"),
        (("inspect=[activations]", "watch=['*']"), "cannot be looked into, but inspect and watch would; set"),
        (("trainer.detect_anomaly=true",), "cannot be looked into, but trainer.detect_anomaly would; set"),
        (
            ("model=bert_tiny", "model.hidden_size=36", "model.heads=4"),
            "which needs more than 16 numbers for a token "
            "and an even number for a head, but model.hidden_size is 36 with 4 heads of 9; set",
        ),
        (("model=bert_tiny", "model.hidden_size=16", "model.heads=4"), "is 16 with 4 heads of 4; set"),
    ],
)
def test_what_the_kernels_cannot_do_is_refused_before_anything_starts(options: tuple[str, ...], said: str) -> None:
    with pytest.raises(UserError) as refused:
        prepared(["data=tnews", "task=classify", *COMPILED, *options])
    (problem,) = [one for one in refused.value.problems if "kernels" in one]
    assert said in problem and problem.startswith("trainer.kernels is compiled, wh")
    assert "set trainer.kernels=torch" in problem


def test_a_dry_run_says_that_this_machine_has_no_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # The jobs of a cluster run on other machines.
    config = prepared(["data=tnews", "task=classify", "model=bert_tiny", *COMPILED])
    monkeypatch.setenv("CC", "no-such-compiler")
    said = "compiled kernels need a C compiler, but CC=no-such-compiler is not on the PATH"
    assert [said in problem for problem in machine_problems(config)] == [True]
    assert machine_problems(config | {"trainer": config["trainer"] | {"kernels": "torch"}}) == []
    for check in (
        lambda: require_valid(None, [], {0: config}),
        lambda: require_valid(LocalQueue(QueueContext({}, tmp_path)), [], {0: config}),
        lambda: check_without_launch(BasicLauncher(), [[]], [config]),
    ):
        with pytest.raises(UserError, match=said):
            check()
    require_valid(SimpleNamespace(name="slurm"), [], {0: config})
    check_without_launch(SimpleNamespace(), [[]], [config])
    # Preparing data trains nothing.
    assert machine_problems(config | {"show": 0}) == []


def test_sizes_are_refused_early_by_the_rule_of_the_encoder() -> None:
    assert LEAST_WIDTH == FEW_OUTPUTS


def test_norms_of_gradients_may_be_recorded() -> None:
    assert prepared(["data=tnews", "task=classify", *COMPILED, "inspect=[gradients,updates]"])["inspect"]
