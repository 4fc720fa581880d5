"""trainer.batch_size=auto: the micro-batch is doubled until memory ends, before the first step."""

import json
import re
from pathlib import Path
from unittest import mock

import pytest

from nlu.config.errors import UserError
from nlu.training import memory
from tests.training.in_process import composed, killed_in_backward, start, train
from tests.training.kinds import KINDS
from tests.training.short_memory import memory_for
from tests.training.test_kinds_in_processes import run_in_two
from tests.training.test_memory import bytes_of

ROWS = 60
DROPOUT = ("model.dropout=0.3", "model.attention_dropout=0.3", "model.head_dropout=0.3")
AUTO = ("trainer.batch_size=auto", "trainer.max_duration=3st", "trainer.eval_interval=2st", *DROPOUT)


def overrides_of(folder: Path, *more: str) -> tuple[str, ...]:
    return *KINDS["classify"].overrides(folder, train_rows=ROWS), *AUTO, *more


def found_in(folder: Path) -> int:
    state = json.loads((folder / "checkpoints/last/state.json").read_text())
    found: int = json.loads((folder / "batch_size.json").read_text())["batch_size"]
    assert state["order"]["batch_size"] == found
    return found


def test_the_number_that_fits_trains_to_the_same_bytes_as_if_it_was_given(tmp_path: Path) -> None:
    overrides, size = overrides_of(tmp_path, "trainer.accumulation=2"), 8
    with memory_for(rows=11):
        train(*overrides, f"hydra.run.dir={tmp_path}/found")
    assert found_in(tmp_path / "found") == size
    train(*overrides, f"trainer.batch_size={size}", f"hydra.run.dir={tmp_path}/given")
    assert bytes_of(tmp_path / "found") == bytes_of(tmp_path / "given")
    log = (tmp_path / "found/log.txt").read_text()
    assert re.search(rf"trainer.batch_size=auto: {size} examples fit, of at most 11 tokens; found by \d tries in", log)
    assert not (tmp_path / "given/batch_size.json").exists()


def test_a_killed_run_continues_with_its_number_to_the_same_bytes(tmp_path: Path) -> None:
    overrides = overrides_of(tmp_path, "resume=auto", "trainer.save_interval=1st")
    with memory_for(rows=20):
        train(*overrides, f"hydra.run.dir={tmp_path}/unbroken")
    # Six passes are those of the search: 1, 2, 4, 8 and 16 rows fit, 32 do not.
    with memory_for(rows=20), killed_in_backward(6):
        train(*overrides, f"hydra.run.dir={tmp_path}/broken")
    # With memory for all rows, a second search would find another number.
    train(*overrides, f"hydra.run.dir={tmp_path}/broken")
    log = (tmp_path / "broken/log.txt").read_text()
    assert (log.count("examples fit"), log.count("as found when the run began")) == (1, 1)
    assert bytes_of(tmp_path / "broken") == bytes_of(tmp_path / "unbroken")


@pytest.mark.thorough
def test_folds_have_the_number_of_the_first_one(tmp_path: Path) -> None:
    with memory_for(rows=12):
        train(*overrides_of(tmp_path, "folds.count=2", "data.dev=null"), f"hydra.run.dir={tmp_path}/run")
    logs = [(tmp_path / f"run/fold-{fold}/log.txt").read_text() for fold in range(2)]
    assert ["examples fit" in log for log in logs] == [True, False]
    assert found_in(tmp_path / "run/fold-0") == found_in(tmp_path / "run/fold-1") == 8


def test_no_memory_for_a_single_row_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with memory_for(rows=0):
        train(*overrides_of(tmp_path), f"hydra.run.dir={tmp_path}/run", status=2)
    assert "trainer.batch_size is auto, but memory ran out for one example of each rank; set data.max_len lower" in (
        capsys.readouterr().err
    )
    assert not (tmp_path / "run").exists()


def test_a_cpu_is_not_asked_for_more_than_a_share_of_its_free_memory(tmp_path: Path) -> None:
    # Rows take 10 bytes each beside 50, and 400 are free, of which 320 may be taken.
    with memory_for(rows=1000) as met:
        before = memory.resident_bytes()
        free = mock.patch.object(memory, "free_bytes", lambda: 400)
        base = mock.patch.object(memory, "resident_bytes", lambda: before)
        peak = mock.patch.object(memory, "peak_mb", lambda _: (before + 50 + 10 * met[-1]) / 1e6)
        with free, base, peak:
            start(composed(*overrides_of(tmp_path)), tmp_path / "run")
    # After 8 rows 2 * 130 are allowed, after 16 2 * 210 are not.
    assert found_in(tmp_path / "run") == 16


@pytest.mark.parametrize("version", [1, 2])
def test_the_least_limit_of_the_groups_of_a_process_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    limit, used, reclaimable = getattr(memory, f"V{version}")
    top = tmp_path / "memory" if version == 1 else tmp_path
    for group, most, taken in ((".", 2**63 - 4096, 5000), ("slurm", 9000, 3000), ("slurm/job_7", 8000, 2500)):
        (top / group).mkdir(parents=True, exist_ok=True)
        (top / group / limit).write_text(f"{most}\n")
        (top / group / used).write_text(f"{taken}\n")
        (top / group / "memory.stat").write_text(f"cache 700\n{reclaimable} 400\n")
    lines = {1: "9:cpuset:/\n4:memory:/slurm/job_7\n0::/\n", 2: "9:cpuset:/\n0::/slurm/job_7\n"}
    (tmp_path / "cgroup").write_text(lines[version])
    (tmp_path / "meminfo").write_text("MemTotal: 90 kB\nMemAvailable: 80 kB\n")
    monkeypatch.setattr(memory, "CGROUP", tmp_path)
    monkeypatch.setattr(memory, "OWN_GROUP", tmp_path / "cgroup")
    monkeypatch.setattr(memory, "MEMINFO", tmp_path / "meminfo")
    # Of the job 8,000 - 2,500 + 400 are free, of all jobs 9,000 - 3,000 + 400.
    assert memory.free_bytes() == 5900
    # Some sandboxes do not say what could be given up.
    (top / "slurm/job_7" / "memory.stat").write_text("cache 700\n")
    assert memory.free_bytes() == 5500


def test_a_number_of_tokens_beside_it_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="trainer.batch_size is auto, but trainer.batch_tokens=50 decides"):
        composed(*overrides_of(tmp_path, "trainer.batch_tokens=50"))


@pytest.mark.thorough
def test_all_processes_agree_on_the_number_that_fits_on_each(tmp_path: Path) -> None:
    config = composed(*overrides_of(tmp_path))
    run_in_two([(config, tmp_path / "together")], tmp_path, ROWS_THAT_FIT="1:4")
    assert found_in(tmp_path / "together") == 8
