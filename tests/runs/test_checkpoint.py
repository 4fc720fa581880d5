"""Checkpoints at the instants between two file operations, where a kill may fall."""

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from nlu.config.errors import CheckpointError
from nlu.data.tokenizing import wordpiece
from nlu.runs.checkpoint import (
    Checkpoints,
    arrange_best,
    find_last,
)
from nlu.runs.state import Best, State, Throughput, Window
from nlu.runs.summary import Mean
from nlu.storage.settle import MARKER
from nlu.training.resuming import TrainedParts


def folder(path: Path, content: str, complete: bool = True) -> Path:
    path.mkdir(parents=True)
    (path / "content").write_text(content)
    if complete:
        (path / MARKER).touch()
    return path


def best(path: Path, step: int) -> None:
    folder(path, str(step))
    (path / "score.json").write_text(json.dumps({"step": step}))


def trained_model() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, fused=True)
    for _ in range(3):
        model(torch.randn(5, 4)).square().sum().backward()
        optimizer.step()
    return model, optimizer


def parts(model: nn.Module, optimizer: torch.optim.Optimizer, average: Any = None, own: Any = None) -> TrainedParts:
    return TrainedParts(model, optimizer, average, own)


def checkpoints(run_dir: Path) -> Checkpoints:
    tokenizer = wordpiece(["[PAD]", "[UNK]", "[CLS]", "[SEP]"], True, "test")
    return Checkpoints(run_dir, config={}, labels={}, tokenizer=tokenizer)


@pytest.mark.parametrize("present", [["last"], ["last", ".last.new"], [".last.new", ".last.old"], [".last.old"]])
def test_at_every_instant_of_a_replacement_a_complete_state_is_found(tmp_path: Path, present: list[str]) -> None:
    for name in present:
        folder(tmp_path / "checkpoints" / name, name)
    assert find_last(tmp_path) == tmp_path / "checkpoints" / "last"
    assert (tmp_path / "checkpoints" / "last" / "content").read_text() == present[0]


def test_a_half_written_state_is_never_found(tmp_path: Path) -> None:
    folder(tmp_path / "checkpoints" / ".last.new", "half", complete=False)
    assert find_last(tmp_path) is None
    folder(tmp_path / "checkpoints" / ".last.old", "whole")
    assert (find_last(tmp_path) / "content").read_text() == "whole"  # type: ignore[operator]


def test_the_best_are_named_by_rank_and_all_others_deleted(tmp_path: Path) -> None:
    best(tmp_path / "best-1", 10)
    best(tmp_path / "best-2", 20)
    best(tmp_path / ".best-step-30", 30)
    folder(tmp_path / "best-3", "damaged", complete=False)
    arrange_best(tmp_path, [30, 10])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["best-1", "best-2"]
    assert [(tmp_path / name / "content").read_text() for name in ("best-1", "best-2")] == ["30", "10"]


def test_a_newer_best_removes_the_unnamed_one_that_it_replaces(tmp_path: Path) -> None:
    saved = checkpoints(tmp_path)
    for number in (5, 6, 7):
        best_of = [Best(step, 10 * step, 0.1, 0.5, {}) for step in {5, number}]
        saved.save_best({"weight": torch.tensor([float(number)])}, best_of)
    found = sorted(path.name for path in saved.folder.glob(".best-step-*"))
    assert found == [".best-step-5", ".best-step-7"]


@pytest.mark.parametrize("killed_after", [0, 1, 2, 3, 4, 5])
def test_arranging_the_best_can_be_repeated_after_a_kill_at_any_rename(
    tmp_path: Path, killed_after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    best(tmp_path / "best-1", 10)
    best(tmp_path / "best-2", 20)
    best(tmp_path / ".best-step-30", 30)
    rename, done = Path.rename, []

    def rename_or_die(self: Path, target: Path) -> Path:
        if len(done) == killed_after:
            raise KeyboardInterrupt
        done.append(target)
        return rename(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", rename_or_die)
        if killed_after < 4:
            with pytest.raises(KeyboardInterrupt):
                arrange_best(tmp_path, [30, 10])
    arrange_best(tmp_path, [30, 10])
    assert [(tmp_path / name / "content").read_text() for name in ("best-1", "best-2")] == ["30", "10"]


def in_which_no_field_has_its_default() -> State:
    best = [Best(5, 50, 0.5, 0.25, {"dev": {"accuracy": 0.25}}), Best(2, 20, 0.2, 0.125, {"dev": {"accuracy": 0.125}})]
    window = Window(
        sums={"loss": 0.5}, counts={"loss": 11}, loss_sum=0.25, gnorm_sum=0.75, clipped=1, steps=2, skipped=3,
        examples=12, real_tokens=130, steps_s=0.03125, seconds={"forward": 0.5}, peak_mb=64.0,
        recorded={"gate": Mean([0.5], 2)},
    )  # fmt: skip
    state = State(
        step=7, best=best, last_metrics={"dev": {"accuracy": 0.0625}}, train_s=1.5, evaluated_at=6, improved_at=5,
        pruned=True, window=window, precision={"scale": 8.0}, skipped=4, pieces=2,
        throughput=Throughput(2.5, 40, 410),
    )  # fmt: skip
    for part, fresh in ((state, State()), (state.window, Window()), (state.throughput, Throughput())):
        for field in dataclasses.fields(part):
            assert getattr(part, field.name) != getattr(fresh, field.name), f"give {field.name} another value here"
    return state


def test_a_state_is_restored_to_the_bit(tmp_path: Path) -> None:
    model, optimizer = trained_model()
    state = in_which_no_field_has_its_default()
    average = {name: parameter.detach() * 2 for name, parameter in model.named_parameters()}
    checkpoints(tmp_path).save_last(parts(model, optimizer, average).tensors(), state, {"seed": 1})
    other = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2))
    fresh = torch.optim.AdamW(other.parameters(), lr=0.1, fused=True)
    empty = {name: torch.zeros_like(parameter) for name, parameter in other.named_parameters()}
    loaded, order = parts(other, fresh, empty).load(tmp_path / "checkpoints" / "last")
    assert (loaded, order) == (state, {"seed": 1})
    assert all(torch.equal(empty[name], average[name]) for name in average)
    for one, its_optimizer in ((model, optimizer), (other, fresh)):
        torch.manual_seed(1)
        its_optimizer.zero_grad()
        one(torch.randn(5, 4)).square().sum().backward()
        its_optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))


def test_tensors_that_share_memory_are_saved_and_come_back(tmp_path: Path) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.output = nn.Embedding(5, 3), nn.Linear(3, 5, bias=False)
            self.output.weight = self.embedding.weight
            self.register_buffer("part", self.embedding.weight.detach()[1:3])

    model, other = Tied(), Tied()
    assert not torch.equal(model.output.weight, other.output.weight)
    checkpoints(tmp_path).save_last(parts(model, torch.optim.SGD(model.parameters())).tensors(), State(step=1), {})
    parts(other, torch.optim.SGD(other.parameters())).load(tmp_path / "checkpoints" / "last")
    assert torch.equal(other.output.weight, model.output.weight) and other.output.weight is other.embedding.weight
    assert torch.equal(other.part, model.embedding.weight[1:3])


def test_an_unsaved_average_starts_at_the_weights_but_a_lost_one_is_damage(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="nlu")
    model, optimizer = trained_model()
    last = tmp_path / "checkpoints" / "last"
    average = {name: torch.zeros_like(parameter) for name, parameter in model.named_parameters()}
    checkpoints(tmp_path).save_last(parts(model, optimizer).tensors(), State(step=3), {})
    parts(model, optimizer, average).load(last)
    assert all(torch.equal(average[name], parameter) for name, parameter in model.named_parameters())
    assert "has no moving average" in caplog.text
    checkpoints(tmp_path).save_last(parts(model, optimizer, average).tensors(), State(step=3), {})
    (last / "average.safetensors").unlink()
    with pytest.raises(CheckpointError, match="damaged"):
        parts(model, optimizer, average).load(last)


@pytest.mark.parametrize("part", ["model", "optimizer", "average"])
def test_files_of_two_steps_or_with_a_flipped_bit_are_refused_as_a_state(tmp_path: Path, part: str) -> None:
    model, optimizer = trained_model()
    average = {name: parameter.detach().clone() + 1 for name, parameter in model.named_parameters()}
    file = tmp_path / "checkpoints" / "last" / f"{part}.safetensors"

    def saved(step: int) -> bytes:
        checkpoints(tmp_path).save_last(parts(model, optimizer, average).tensors(), State(step=step), {})
        return file.read_bytes()

    older, newer = saved(3), bytearray(saved(4))
    newer[-1] ^= 1
    for content, said in ((older, "is of step 3, state.json of step 4"), (newer, "does not match its checksum")):
        file.write_bytes(content)
        with pytest.raises(CheckpointError, match=f"{part}.safetensors {said}"):
            parts(model, optimizer, average).load(file.parent)


def test_every_file_of_a_state_is_on_the_disk_before_its_mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[tuple[str, str]] = []

    def recorded(name: str) -> None:
        real = getattr(os, name)

        def call(first: Any, *more: Any) -> None:
            result = real(first, *more)
            path = os.readlink(f"/proc/self/fd/{first}") if name == "fsync" else str(more[0])
            events.append((name, Path(path).name))
            return result

        monkeypatch.setattr(os, name, call)

    model, optimizer = trained_model()
    recorded("fsync")
    recorded("rename")
    checkpoints(tmp_path).save_last(parts(model, optimizer).tensors(), State(step=1), {})
    files = {path.name for path in (tmp_path / "checkpoints" / "last").iterdir()} - {MARKER}
    marked, renamed = events.index(("fsync", MARKER)), events.index(("rename", "last"))
    assert {("fsync", name) for name in files} <= set(events[:marked]) and marked < renamed
    assert {"state.json", "model.safetensors", "optimizer.safetensors"} <= files
    assert events[renamed + 1] == ("fsync", "checkpoints")
