"""What doctor says of the records of a run, of run folders that are made up: each of their numbers is another."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from nlu.config.choices import node_of
from nlu.diagnosis import recorded
from nlu.diagnosis.check import Check
from nlu.diagnosis.recomputed import _differing, _distance
from nlu.inference.locate import Located
from nlu.reports.runs import read_run
from nlu.training.ranks import Ranks
from tests.approving import assert_approved
from tests.reports.folders import begin_run, end_run, evaluate

APPROVED = Path(__file__).parent / "approved"
MACHINE = {"device": "cpu", "torch": "2.1", "threads": 3, "cpu": "avx2"}
HERE = {"versions": {"python": "3.11", "torch": "2.1", "numpy": "2.0"}, "git": {"commit": "abc", "diff": ""}}
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
    monkeypatch.setattr("nlu.inference.evaluation.describe_code", lambda: HERE)
    monkeypatch.setattr(recorded, "machine_of", lambda ranks: MACHINE)


def test_ends_scores_and_settings_are_described_as_approved() -> None:
    found = []
    held = {
        "plain": {"data__dev": None, "data__dev_fraction": 0.125},
        "cut": {"data__dev": "dev.tsv", "data__max_rows": 7, "data__max_len": 9, "trainer__ema_decay": 0.75},
        "folds": {"folds__count": 3, "fold": 1},
    }
    sets = {
        "plain": {}, "folds": {"dev": {"examples": 0}},
        "cut": {"dev": {"examples": 8, "in_train": 1, "cut_to_max_len": 2}, "train": {"bad_rows": 1234}},
    }  # fmt: skip
    for name, changes in held.items():
        run_dir = evaluate(begin_run(Path(name), **changes), *([0.5, 0.75] if name == "cut" else [0.5]))
        unfinished = read_run(run_dir)
        (run_dir / "log.txt").write_text("2026-01-01T00:00:00+0000 ERROR the disk is full\n")
        failed = read_run(run_dir)
        ended = read_run(end_run(run_dir, 0.5))
        (run_dir / "data.json").write_text(json.dumps({"sets": sets[name]}))
        more = {"threshold": 0.625} if name == "cut" else {}
        located = saved(run_dir, 20 if name == "cut" else 10, 0.75, **more)
        found += [name, *(told(recorded.ending(run)) for run in (unfinished, failed, ended))]
        found += [told(recorded.scored_at(located, ended)), told(recorded.settings(located, ended))]
    assert_approved(APPROVED / "recorded.txt", "\n".join(found))


@pytest.mark.parametrize(
    ("starts", "checks"),
    [
        ([], ["no provenance.json", "no provenance.json", "one, from its first"]),
        ([START], ["the same: python 3.11, torch 2.1, numpy 2.0", "the same, with the same changes", "one, from"]),
        ([START, START], ["the same: ", "the same, with", "2 starts on the same machine, which give the bytes"]),
        ([START, {**START, "cpu": "two", "devices": []}], ["the same", "the same", "2 starts, with other devices"]),
        ([{**START, "world_size": 2}, START], ["the same", "the same", "2 starts, with other world_size"]),
        ([START, {**START, "versions": {"python": "3.9", "numpy": "1.5+x"}}],
         ["python 3.9 there, 3.11 here; torch None there, 2.1 here; numpy 1.5+x there, 2.0 here|pip install numpy==1.5",
          "the same", "other versions"]),
        ([{**START, "git": {"commit": "abc", "diff": "x"}}], ["the same", "abc there, abc here, or with other", "one"]),
        ([{**START, "git": {"commit": "b", "diff": ""}}], ["the same", "b there, abc here, or with", "one"]),
        ([{**START, "git": None}], ["the same", "None there, abc here", "one"]),
    ],
)  # fmt: skip
def test_versions_commits_and_starts_equal_the_recorded_ones(starts: list[Any], checks: list[str]) -> None:
    Path("run").mkdir()
    if starts:
        Path("run/provenance.json").write_text(json.dumps({"starts": starts}))
    found = [recorded.versions(Path("run")), recorded._commit(starts, True), recorded.starts(Path("run"))]
    for check, said in zip(found, checks, strict=True):
        says, _, remedy = said.partition("|")
        assert says in check.says and remedy in check.remedy
        is_fine = says.startswith(("the same", "one", "2 starts on"))
        assert check.mark == ("ok" if is_fine else "warning") and bool(check.remedy) == (not is_fine)
    if starts and starts[-1]["git"] == {"commit": "b", "diff": ""}:
        other = recorded._commit(starts, False)
        assert (other.mark, other.says.endswith(", in other files than nlu's modules")) == ("ok", True)


@pytest.mark.parametrize(
    ("changes", "world_size", "lines"),
    [
        ({}, 1, ["ok: device, threads: as there: cpu, 3 threads, kernels for avx2, 1 rank"]),
        ({"threads": 4}, 1, ["warning: threads: saved with another number of threads (4), scored with 3 -> set "
                             "OMP_NUM_THREADS=4"]),
        ({"device": "cuda", "torch": "1.9"}, 2,
         ["warning: ranks: saved by 2 processes, scored by 1 -> score it there, or expect differences in",
          "warning: device: saved with another device (cuda), scored with cpu -> score it there, or",
          "warning: torch: saved with another version of torch (1.9), scored with 2.1 -> score it there"]),
        ({"cpu": "avx512"}, 1, ["warning: kernels: saved with another CPU's kernels (avx512), scored with avx2 ->"]),
    ],
)  # fmt: skip
def test_the_present_device_and_threads_are_compared_with_the_recorded_ones(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], world_size: int, lines: list[str]
) -> None:
    last = Path("run/checkpoints/last")
    last.mkdir(parents=True)
    order = {"world_size": world_size, "machine": MACHINE | changes}
    monkeypatch.setattr(recorded, "read_order", lambda path: (4, order))
    ranks = Ranks(0, 1, torch.device("cpu"))
    absent = told(recorded.computed_on(Path("run"), ranks, node_of("precision", "fp32"))).splitlines()
    assert absent[0].startswith("  warning: device, threads: checkpoints/last, which records where it was")
    (last / "state.json").write_text("{}")
    *found, precision = told(recorded.computed_on(Path("run"), ranks, node_of("precision", "fp32"))).splitlines()
    assert len(found) == len(lines)
    assert all(one.strip().startswith(line) for one, line in zip(found, lines, strict=True))
    assert precision.startswith("  ok: precision: float32, as trained")


def test_records_differ_by_the_largest_distance_of_their_predictions() -> None:
    assert _distance({"a": 1.0, "b": 2.0}, {"a": 1.5, "b": 1.0}) == 1.0
    assert _distance(1, 0.25) == _distance(0.25, 1) == 0.75
    assert _distance("a", "b") == _distance(1.0, "b") == _distance({"a": 1}, {}) == 1.0
    assert _distance("a", "a") == _distance([1, (2, 3)], (1, [2, 3])) == _distance({}, {}) == 0.0
    first = {0: {"id": 0, "prediction": "a", "probability": 0.5}, 1: {"prediction": "a", "loss": 0.25, "more": 1}}
    second = {0: {"id": 9, "prediction": "a", "probability": 0.5}, 1: {"prediction": "a", "loss": 0.75}}
    assert _differing(first, second) == {1: 0.5}
