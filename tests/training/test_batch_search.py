"""trainer.batch_size=auto: the largest micro-batch that fits into memory is found before the first step."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nlu.config.errors import UserError
from nlu.training import batch_search, host_memory
from nlu.training.batch_search import largest
from nlu.training.shared import Shared
from tests.training.in_process import Killed, composed, start, train
from tests.training.kinds import KINDS, Kind
from tests.training.mixtures import CLASSES, TAGS, mixture
from tests.training.runs import REPOSITORY
from tests.training.short_memory import memory_for
from tests.training.test_kinds_in_processes import run_in_two
from tests.training.test_memory import bytes_of

ROWS = 60
DROPOUT = ("model.dropout=0.3", "model.attention_dropout=0.3", "model.head_dropout=0.3")
AUTO = ("trainer.batch_size=auto", "trainer.max_duration=3st", "trainer.eval_interval=2st", *DROPOUT)


def overrides_of(folder: Path, *more: str, kind: str = "classify") -> tuple[str, ...]:
    return *KINDS[kind].overrides(folder, train_rows=ROWS), *AUTO, *more


def found_in(folder: Path) -> int:
    assert json.loads((folder / "checkpoints/last/state.json").read_text())["order"]["batch_size"] == json.loads(
        (folder / "batch_size.json").read_text()
    )["batch_size"]  # fmt: skip
    return json.loads((folder / "batch_size.json").read_text())["batch_size"]


@given(st.integers(0, 3000), st.integers(1, 3000))
def test_the_search_comes_close_to_the_largest_number_in_few_tries(limit: int, most: int) -> None:
    tried: list[int] = []
    found = largest(lambda size: tried.append(size) or size <= limit, most)  # type: ignore[func-returns-value]
    wanted = min(limit, most)
    assert found <= wanted <= found + max(0, wanted // 32) and max(tried) <= most
    assert len(tried) <= 20 and (found == 0 or found in tried)


def test_the_number_that_fits_trains_to_the_same_bytes_as_if_it_was_given(tmp_path: Path) -> None:
    overrides = overrides_of(tmp_path)
    with memory_for(rows=20) as met:
        train(*overrides, f"hydra.run.dir={tmp_path}/found")
    size = found_in(tmp_path / "found")
    assert 19 <= size <= 20 and max(met) > 20
    train(*overrides, f"trainer.batch_size={size}", f"hydra.run.dir={tmp_path}/given")
    assert bytes_of(tmp_path / "found") == bytes_of(tmp_path / "given")
    log = (tmp_path / "found/log.txt").read_text()
    assert re.search(rf"trainer.batch_size=auto: {size} examples fit, of at most 11 tokens; found by \d+ tries in", log)
    assert f"3 steps of {size} examples" in log and not (tmp_path / "given/batch_size.json").exists()


def test_all_rows_fit_where_there_is_much_memory_and_the_optimizer_has_its_state(tmp_path: Path) -> None:
    states, backward = [], batch_search._Tries.fits

    def fits(tries: batch_search._Tries, *of: object) -> bool:
        states.append(len(tries._stepper.optimizer.state))
        return backward(tries, *of)  # type: ignore[arg-type]

    with mock.patch.object(batch_search._Tries, "fits", fits):
        start(composed(*overrides_of(tmp_path)), tmp_path / "run")
    assert found_in(tmp_path / "run") == ROWS and min(states) > 0


@contextmanager
def killed_in_update(number: int) -> Iterator[None]:
    """Kill the run in this call of the optimizer, from 1; the first one is that of the search."""
    updates, update = [], Shared.update

    def dies(parallel: Shared, *of: Any) -> None:
        updates.append(parallel)
        if len(updates) == number:
            raise Killed
        update(parallel, *of)

    with mock.patch.object(Shared, "update", dies), pytest.raises(Killed):
        yield


@pytest.mark.parametrize(("update", "saved"), [(2, False), (4, True)])
def test_a_killed_run_continues_with_its_number_to_the_same_bytes(update: int, saved: bool, tmp_path: Path) -> None:
    overrides = overrides_of(tmp_path, "resume=auto", "trainer.save_interval=1st")
    with memory_for(rows=20):
        train(*overrides, f"hydra.run.dir={tmp_path}/unbroken")
    with memory_for(rows=20), killed_in_update(update):
        train(*overrides, f"hydra.run.dir={tmp_path}/broken")
    assert (tmp_path / "broken/checkpoints/last").exists() == saved
    # With memory for all rows, a second search would find another number.
    train(*overrides, f"hydra.run.dir={tmp_path}/broken")
    log = (tmp_path / "broken/log.txt").read_text()
    assert (log.count("examples fit"), log.count("as found when the run began")) == (1, 1)
    assert bytes_of(tmp_path / "broken") == bytes_of(tmp_path / "unbroken")


def test_folds_have_the_number_of_the_first_one(tmp_path: Path) -> None:
    overrides = overrides_of(tmp_path, "folds.count=2", "data.dev=null")
    with memory_for(rows=12):
        train(*overrides, f"hydra.run.dir={tmp_path}/run")
    logs = [(tmp_path / f"run/fold-{fold}/log.txt").read_text() for fold in range(2)]
    assert ["examples fit" in log for log in logs] == [True, False]
    assert found_in(tmp_path / "run/fold-0") == found_in(tmp_path / "run/fold-1") == 12


def test_no_memory_for_a_single_row_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with memory_for(rows=0):
        train(*overrides_of(tmp_path), f"hydra.run.dir={tmp_path}/run", status=2)
    assert "trainer.batch_size is auto, but memory ran out for one example of each rank; set data.max_len lower" in (
        capsys.readouterr().err
    )
    assert not (tmp_path / "run").exists()


def test_each_try_has_the_gradients_to_which_a_later_micro_batch_adds(tmp_path: Path) -> None:
    had: list[bool] = []
    run = batch_search._Tries._run

    def seeing(tries: batch_search._Tries, part: object, rows_N: torch.Tensor) -> torch.Tensor:
        had.append(all(parameter.grad is not None for parameter in tries._stepper.trained))
        return run(tries, part, rows_N)  # type: ignore[arg-type]

    with memory_for(rows=11), mock.patch.object(batch_search._Tries, "_run", seeing):
        train(*overrides_of(tmp_path, "trainer.accumulation=2"), f"hydra.run.dir={tmp_path}/run")
    assert found_in(tmp_path / "run") == 11
    # The first pass makes them.
    assert had[0] is False and all(had[1:]) and len(had) > 5


def test_a_set_of_a_mixture_without_memory_for_one_row_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = mixture(tmp_path, {"classes": CLASSES, "tags": TAGS}, *AUTO[:2])
    # The first pass is the one in which the optimizer gets its state.
    with memory_for(rows=0, since_call=1):
        train(*options, f"hydra.run.dir={tmp_path}/run", status=2)
    assert "trainer.batch_size is auto, but memory ran out for one example of each rank" in capsys.readouterr().err


@pytest.mark.parametrize("version", [1, 2])
def test_the_least_limit_of_the_groups_of_a_process_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    lines = {1: "9:cpuset:/\n4:memory:/slurm/job_7\n0::/\n", 2: "0::/slurm/job_7\n"}
    limit, used, reclaimable = getattr(host_memory, f"V{version}")
    top = tmp_path / "memory" if version == 1 else tmp_path
    (top / "slurm/job_7").mkdir(parents=True)
    (top / limit).write_text("max" if version == 2 else str(2**63 - 4096))
    (top / used).write_text("5000")
    for group, most, taken in (("slurm", 9000, 3000), ("slurm/job_7", 8000, 2500)):
        (top / group / limit).write_text(f"{most}\n")
        (top / group / used).write_text(f"{taken}\n")
    (top / "slurm/job_7/memory.stat").write_text(f"cache 700\n{reclaimable} 400\n")
    (tmp_path / "cgroup").write_text(lines[version])
    monkeypatch.setattr(host_memory, "CGROUP", tmp_path)
    monkeypatch.setattr(host_memory, "PROCESS", tmp_path)
    # Of the job 8,000 - 2,500 + 400 are free, of all jobs 9,000 - 3,000.
    assert host_memory.of_machine() == (5900, 8000)


def test_a_cpu_is_not_asked_for_more_than_a_share_of_its_free_memory(tmp_path: Path) -> None:
    sizes: list[int] = []
    run = batch_search._Tries._run

    def taking(tries: batch_search._Tries, part: object, rows_N: torch.Tensor) -> torch.Tensor:
        sizes.append(len(rows_N))
        return run(tries, part, rows_N)  # type: ignore[arg-type]

    # Rows take 10 bytes each beside 50, and 400 are free.
    free = mock.patch.object(host_memory, "of_machine", lambda: (400, 1000))
    peak = mock.patch.object(host_memory.Peak, "bytes", lambda _: 50 + 10 * sizes[-1])
    with free, peak, mock.patch.object(batch_search._Tries, "_run", taking):
        start(composed(*overrides_of(tmp_path)), tmp_path / "run")
    # 80 % of 400 are 320: 27 rows.
    assert 25 <= found_in(tmp_path / "run") <= 27 and max(sizes) <= 27


def test_a_set_of_a_mixture_that_takes_more_memory_sets_the_limit(tmp_path: Path) -> None:
    options = mixture(tmp_path, {"classes": CLASSES, "tags": TAGS}, *AUTO[:2])
    with memory_for(rows=9):
        train(*options, f"hydra.run.dir={tmp_path}/run")
    assert found_in(tmp_path / "run") == 9


@pytest.mark.parametrize(
    ("override", "says"),
    [
        (
            "trainer.batch_tokens=50",
            "trainer.batch_size is auto, but trainer.batch_tokens=50 decides",
        ),
        ("trainer.batch_size=much", 'trainer.batch_size is "much" but must be an integer >= 1 or one of auto'),
    ],
)
def test_what_does_not_fit_an_unknown_size_is_refused(tmp_path: Path, override: str, says: str) -> None:
    with pytest.raises(UserError, match=re.escape(says)):
        composed(*overrides_of(tmp_path, override))


@pytest.mark.thorough
def test_all_processes_agree_on_the_number_that_fits_on_each(tmp_path: Path) -> None:
    config = composed(*overrides_of(tmp_path))
    run_in_two([(config, tmp_path / "together")], tmp_path, ROWS_THAT_FIT="1:4")
    assert found_in(tmp_path / "together") == 8


@pytest.mark.thorough
def test_the_number_is_close_to_what_an_address_space_really_holds(tmp_path: Path) -> None:
    """With memory that is really too small: the address space of the process is limited."""
    kind = Kind((), lambda rng: {"text": " ".join(rng.choices("abcdefgh", k=30)), "label": rng.choice("01")})
    overrides = [
        *kind.overrides(tmp_path, train_rows=8192, dev_rows=16), "model.hidden_size=64", "trainer.max_duration=1st",
        "trainer.eval_batch_size=16", "trainer.batch_size=auto", f"hydra.run.dir={tmp_path}/run",
    ]  # fmt: skip
    # Where there is a GiB of addresses, pyarrow reserves it.
    limited = [sys.executable, "-m", "tests.training.short_memory", "500", *overrides]
    # Each thread and arena would reserve addresses of its own, at any time.
    env = {**os.environ, "OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": "262144"}
    done = subprocess.run(limited, cwd=REPOSITORY, capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 0, done.stderr
    (found,) = re.findall(r"auto: ([\d,]+) examples fit, of at most 32 tokens", done.stderr)
    size = int(found.replace(",", ""))
    assert 256 < size < 8192 / 1.1
    assert f"{int(0.9 * size)} examples fit\n{int(1.1 * size)} examples do not fit\n" in done.stderr
