"""A run killed at a named instant, before any operation on its files, continues to the bytes of one that was not.

`benchmarks/kill.py` kills at random instants, many times, and takes its time.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from nlu.runs.records import COST_COLUMNS
from tests.training.in_process import MODEL, PLAIN, composed, sets, start, train
from tests.training.instants import Instants, listening_to_operations
from tests.training.runs import REPOSITORY, SAME_THREADS, run

OPTIONS = (
    *MODEL, *PLAIN, "trainer.eval_interval=1st", "trainer.keep_best=2", "trainer.major_metric=loss", "resume=auto",
    "trainer.max_duration=2st", "trainer.save_interval=0",
)  # fmt: skip
COSTS = 2 + len(COST_COLUMNS)
"""the last columns of train.tsv: speeds, times and memory"""
CHECKPOINTS = ("last/model", "last/optimizer", "last/average", "best-1/model", "best-2/model")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    return sets(tmp_path_factory.mktemp("data"))


def outcome(run_dir: Path) -> dict[str, Any]:
    """Return everything of a finished run that must not depend on whether it was killed."""
    found: dict[str, Any] = {
        name: (run_dir / "checkpoints" / f"{name}.safetensors").read_bytes() for name in CHECKPOINTS
    }
    for name in ("valid.tsv", "predictions/dev.jsonl"):
        found[name] = (run_dir / name).read_text()
    found["train.tsv"] = [row.split("\t")[:-COSTS] for row in (run_dir / "train.tsv").read_text().splitlines()]
    result = json.loads((run_dir / "result.json").read_text())
    found["result.json"] = {key: result[key] for key in ("metrics", "best", "last", "steps", "examples")}
    found["checkpoints"] = sorted(os.listdir(run_dir / "checkpoints"))
    for place in (1, 2):
        score = json.loads((run_dir / f"checkpoints/best-{place}/score.json").read_text())
        found[f"best-{place}/step"] = score["step"]
    return found


def assert_same(run_dir: Path, expected: dict[str, Any], when: str) -> None:
    found = outcome(run_dir)
    assert not [name for name in expected if found[name] != expected[name]], (when, found["checkpoints"])


@pytest.fixture(scope="module")
def whole_run(
    data: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Instants, dict[str, Any], tuple[str, ...]]:
    """Every state that the folder of a run was in, and what the run came to."""
    folder = tmp_path_factory.mktemp("kills")
    options = (*OPTIONS, *data)
    instants = Instants(folder / "run", folder / "copies")
    with listening_to_operations(instants.look):
        train(*options, f"hydra.run.dir={folder}/run")
    return instants, outcome(folder / "run"), options


def is_like_another(operations: list[str], number: int) -> bool:
    """Whether a kill then leaves the same as a kill at another instant, except for the name of a file.

    So do rows of valid.tsv, figures and documents that are written aside and renamed as config.yaml is, and files
    written to a folder that is not read before it is COMPLETE; each of those is cut in half by another test.
    """
    operation = operations[number]
    if any(name in operation for name in ("plots", "provenance.json", "code.zip", "data.json", "overrides")):
        return True
    if ".new/" in operation and "COMPLETE" not in operation:
        return True
    return all("valid.tsv" in near for near in operations[number - 1 : number + 2])


def test_a_run_killed_before_any_operation_on_its_files_continues_to_the_same_bytes(
    whole_run: tuple[Instants, dict[str, Any], tuple[str, ...]],
) -> None:
    instants, expected, options = whole_run
    config = composed(*options)
    operations = instants.next_operation
    told = "\n".join(operations)
    for name in ("config.yaml", "train.tsv", "valid.tsv", "checkpoints/.last.new", "checkpoints/last", "result.json"):
        assert name in told, f"no instant is about {name}"
    chosen = [number for number in range(len(operations)) if not is_like_another(operations, number)]
    assert len(chosen) > 30
    for number in chosen:
        run_dir = shutil.copytree(instants.copies / str(number), instants.copies / f"{number}-continued")
        start(config, run_dir)
        assert_same(run_dir, expected, f"killed before {operations[number]}")
        shutil.rmtree(run_dir)


@pytest.mark.thorough
def test_a_run_killed_in_the_midst_of_writing_a_file_continues_to_the_same_bytes(
    whole_run: tuple[Instants, dict[str, Any], tuple[str, ...]],
) -> None:
    instants, expected, options = whole_run
    config = composed(*options)
    cut: set[str] = set()
    sizes: dict[str, int] = {}
    for number in range(len(instants.next_operation)):
        copy = instants.copies / str(number)
        files = [path for path in copy.rglob("*") if path.is_file()]
        before, sizes = sizes, {str(path.relative_to(copy)): path.stat().st_size for path in files}
        for name in sizes:
            # Tables grow in place, by rows; the rest of a state is written aside, and once for each kind of folder.
            is_row = name in ("train.tsv", "valid.tsv") and 0 < before.get(name, 0) < sizes[name]
            is_aside = ".new/" in name and before.get(name, 0) < sizes[name]
            known = f"{name} of {sizes[name]}" if is_row and name == "train.tsv" else name
            if not (is_row or is_aside) or known in cut:
                continue
            cut.add(known)
            run_dir = shutil.copytree(copy, instants.copies / f"{number}-cut")
            os.truncate(run_dir / name, (before.get(name, 0) + sizes[name]) // 2)
            start(config, run_dir)
            assert_same(run_dir, expected, f"killed while {name} was written")
            shutil.rmtree(run_dir)
    assert {"valid.tsv", "checkpoints/.last.new/model.safetensors", "checkpoints/.last.new/state.json"} < cut


@pytest.mark.thorough
def test_two_processes_killed_during_a_save_continue_to_the_bytes_of_torchrun(
    data: tuple[str, ...], tmp_path: Path
) -> None:
    options = (*OPTIONS, *data, "trainer.accumulation=2")
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone")
    run(*options, f"hydra.run.dir={tmp_path}/whole", prefix=torchrun)
    # The second time that the last state is replaced, when the older one has just lost its name.
    program = str(REPOSITORY / "tests" / "training" / "killed_at.py")
    killed = subprocess.run(
        [sys.executable, program, *options, "trainer.devices=2", f"hydra.run.dir={tmp_path}/run"], cwd=REPOSITORY,
        env={**SAME_THREADS, "KILLED_BEFORE": "os.rename .last.new last 2"}, capture_output=True, text=True,
        timeout=1800, start_new_session=True,
    )  # fmt: skip
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    left = os.listdir(tmp_path / "run/checkpoints")
    assert ".last.new" in left and ".last.old" in left and "last" not in left
    run(*options, "trainer.devices=2", f"hydra.run.dir={tmp_path}/run")
    assert_same(tmp_path / "run", outcome(tmp_path / "whole"), "two processes")
    assert (tmp_path / "run/log.rank1.txt").is_file()
