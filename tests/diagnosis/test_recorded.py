"""What doctor says of the records of a run, of run folders that are made up: each of their numbers is another."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from nlu.diagnosis import recorded
from nlu.diagnosis.check import Check
from nlu.diagnosis.examination import _differing, _distance
from nlu.inference.locate import Located
from nlu.reports.runs import read_run
from nlu.training.ranks import Ranks
from tests.approving import assert_approved
from tests.reports.folders import begin_run, end_run, evaluate

APPROVED = Path(__file__).parent / "approved"
MACHINE = {"device": "cpu", "torch": "2.1", "threads": 3, "cpu": "avx2"}
HERE = {"versions": {"python": "3.11", "torch": "2.1", "numpy": "2.0"}, "git": {"commit": "abc", "dirty": False}}
START = {**HERE, "devices": ["cpu"], "world_size": 1, "cpu": "one"}


def told(checks: Any) -> str:
    found = [checks] if isinstance(checks, Check) else list(checks)
    return "\n".join(f"  {one.mark}: {one.name}: {one.says}{f' -> {one.remedy}' * bool(one.remedy)}" for one in found)


def saved(folder: Path, step: int, value: float, **metrics: float) -> Located:
    """A run with a best checkpoint of a step."""
    checkpoint = folder / "checkpoints" / "best-1"
    checkpoint.mkdir(parents=True)
    score = {"step": step, "metrics": {"dev": {"accuracy": value, **metrics}}}
    (checkpoint / "score.json").write_text(json.dumps(score))
    return Located(folder, checkpoint)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("nlu.diagnosis.recorded.describe_code", lambda: HERE)
    monkeypatch.setattr(recorded, "machine_of", lambda ranks: MACHINE)


def test_ends_scores_and_settings_are_described_as_approved() -> None:
    found = []
    held = {"plain": {}, "cut": {"data__max_rows": 7, "trainer__eval_rows": 5}}
    sets = {
        "plain": {}, "cut": {"dev": {"examples": 8, "in_train": 1}},
    }  # fmt: skip
    for name, changes in held.items():
        run_dir = evaluate(begin_run(Path(name), **changes), *([0.5, 0.75] if name == "cut" else [0.5]))
        unfinished = read_run(run_dir)
        (run_dir / "log.txt").write_text("2026-01-01T00:00:00+0000 ERROR the disk is full\n")
        failed = read_run(run_dir)
        ended = read_run(end_run(run_dir, 0.5))
        located = saved(run_dir, 20 if name == "cut" else 10, 0.75)
        found += [name, *(told(recorded.ending(run)) for run in (unfinished, failed, ended))]
        found += [told(recorded.scored_at(located, ended))]
        found += [told(recorded.settings(ended.config, {"sets": sets[name]}, "dev"))]
    assert_approved(APPROVED / "recorded.txt", "\n".join(found))


@pytest.mark.parametrize(
    ("starts", "lines"),
    [
        ([], ["warning: versions: the run has no provenance.json -> train it again"]),
        ([START], ["ok: versions: the same: python 3.11, torch 2.1, numpy 2.0"]),
        ([START, START], ["ok: versions: the same"]),
        ([START, {**START, "cpu": "two", "devices": []}],
         ["ok: versions: the same", "warning: starts: 2, with other devices, cpu, so its bytes"]),
        ([{**START, "world_size": 2}, START], ["ok: versions: the same", "warning: starts: 2, with other world_size"]),
        ([{**START, "versions": {"python": "3.9", "numpy": "1.5+x"}}],
         ["warning: versions: python 3.9 there, 3.11 here; torch None there, 2.1 here; numpy 1.5+x there, 2.0 here -> "
          "in a separate environment: pip install numpy==1.5"]),
    ],
)  # fmt: skip
def test_versions_and_starts_equal_the_recorded_ones(starts: list[Any], lines: list[str]) -> None:
    Path("run").mkdir()
    if starts:
        Path("run/provenance.json").write_text(json.dumps({"starts": starts}))
    found = told(recorded.versions(Path("run"))).splitlines()
    assert len(found) == len(lines)
    assert all(one.strip().startswith(line) for one, line in zip(found, lines, strict=True))


@pytest.mark.parametrize("changed", [{}, {"nlu/a.py": "changed"}])
def test_changed_modules_are_named_with_the_commit(monkeypatch: pytest.MonkeyPatch, changed: dict[str, str]) -> None:
    Path("run").mkdir()
    start = {**START, "git": {"commit": "b", "dirty": False}}
    Path("run/provenance.json").write_text(json.dumps({"starts": [start]}))
    monkeypatch.setattr(recorded, "code_changes", lambda *_: {Path("run/code.zip"): changed})
    said = told(recorded.code(Path("run"), []))
    if changed:
        assert "warning: code: 1 module not as in code.zip: nlu/a.py changed; code: commit b there, abc here" in said
    else:
        assert said == "  ok: code: every module is as in code.zip"


@pytest.mark.parametrize(
    ("changes", "world_size", "lines"),
    [
        ({}, 1, ["ok: machine: as there: cpu, 3 threads, kernels for avx2, 1 rank"]),
        ({"threads": 4}, 1, ["warning: machine: saved with threads 4, scored with 3 -> score it"]),
        ({"device": "cuda", "torch": "1.9"}, 2,
         ["warning: machine: saved with processes 2, scored with 1 -> score it there, or expect differences",
          "warning: machine: saved with device cuda, scored with cpu -> score it there, or",
          "warning: machine: saved with torch 1.9, scored with 2.1 -> score it there"]),
    ],
)  # fmt: skip
def test_the_present_machine_is_compared_with_the_recorded_one(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], world_size: int, lines: list[str]
) -> None:
    last = Path("run/checkpoints/last")
    last.mkdir(parents=True)
    order = {"world_size": world_size, "machine": MACHINE | changes}
    monkeypatch.setattr(recorded, "read_order", lambda path: (4, order))
    ranks = Ranks(0, 1, torch.device("cpu"))
    absent = told(recorded.computed_on(Path("run"), ranks))
    assert absent.startswith("  warning: machine: checkpoints/last, which records where it was")
    (last / "state.json").write_text("{}")
    found = told(recorded.computed_on(Path("run"), ranks)).splitlines()
    assert len(found) == len(lines)
    assert all(one.strip().startswith(line) for one, line in zip(found, lines, strict=True))


def test_records_differ_by_the_largest_distance_of_their_predictions() -> None:
    assert _distance({"a": 1.0, "b": 2.0}, {"a": 1.5, "b": 1.0}) == 1.0
    assert _distance(1, 0.25) == _distance(0.25, 1) == 0.75
    assert _distance("a", "b") == _distance(1.0, "b") == _distance({"a": 1}, {}) == 1.0
    assert _distance("a", "a") == _distance([1, (2, 3)], (1, [2, 3])) == _distance({}, {}) == 0.0
    first = {0: {"prediction": "a", "probability": 0.5}, 1: {"prediction": "a", "loss": 0.25}}
    second = {0: {"prediction": "a", "probability": 0.5}, 1: {"prediction": "a", "loss": 0.75}}
    assert _differing(first, second) == {1: 0.5}
