"""`python -m nlu.report` on runs that were really trained."""

import csv
import io
import json
from itertools import product
from pathlib import Path

import pytest

from nlu.commands.report import main
from nlu.config.errors import UserError
from tests import warm
from tests.training.in_process import train
from tests.training.runs import QUICK, REPOSITORY, SAME_THREADS, TINY, files, run, weights


def report(*arguments, status=0, cwd=REPOSITORY):
    command = ["-m", "nlu.report", *map(str, arguments)]
    environment = {**SAME_THREADS, "PYTHONPATH": str(REPOSITORY), "COLUMNS": "200"}
    done = warm.run(command, cwd=cwd, env=environment)
    assert done.returncode == status, f"exit {done.returncode}, not {status}\n{done.stdout}\n{done.stderr}"
    assert "Traceback" not in done.stderr
    return done.stdout if status == 0 else done.stderr


@pytest.fixture(scope="module")
def grid(tmp_path_factory):
    """A grid of two seeds and two learning rates, and the overrides that it shares."""
    folder = tmp_path_factory.mktemp("grid")
    quick = [override for override in QUICK if not override.startswith("optimizer.lr")]
    shared = (*files(folder), *TINY, *quick, "trainer.eval_interval=5st", "trainer.keep_best=2")
    for number, (seed, rate) in enumerate(product((1, 2), ("3e-3", "1e-5"))):
        own = (f"seed={seed}", f"optimizer.lr={rate}", f"hydra.run.dir={folder}/grid/{number}")
        train(*shared, *own)
    return folder / "grid", shared


def test_a_grid_is_one_row_a_configuration_in_plain_columns(grid):
    header, first, second = report(grid[0]).splitlines()
    assert header.split()[:3] == ["optimizer.lr", "dev/accuracy", "sd"]
    assert {first.split()[0], second.split()[0]} == {"0.003", "1e-05"}
    assert float(first.split()[1]) >= float(second.split()[1]) and "2  complete" in first


def test_csv_holds_every_digit_and_every_run(grid):
    lines = list(csv.DictReader(io.StringIO(report(grid[0], "--csv", "--metric", "loss"))))
    for line in lines:
        runs = [Path(folder) for folder in line["folders"].split()]
        results = [json.loads((run / "result.json").read_text())["metrics"]["dev"]["loss"] for run in runs]
        assert float(line["loss"]) == pytest.approx(sum(results) / len(results), rel=1e-12)
    assert lines[0]["n"] == "2" and len(lines[0]["folders"].split()) == 2


def test_a_cleaned_run_is_still_finished_and_usable_but_trains_no_longer(grid):
    folder, shared = grid
    before = weights(folder / "0", "best-1")
    assert "nothing was removed" in report("clean", folder / "0")
    assert (folder / "0" / "checkpoints" / "last" / "optimizer.safetensors").is_file()
    report("clean", folder / "0", "--yes")
    assert not (folder / "0" / "checkpoints" / "last" / "optimizer.safetensors").exists()
    again = ("seed=1", "optimizer.lr=3e-3", *shared)
    assert "finished" in run(f"hydra.run.dir={folder}/0", "resume=auto", *again)
    assert weights(folder / "0", "best-1") == before
    said = run(f"hydra.run.dir={folder}/longer", f"resume={folder}/0", *again, "trainer.max_duration=20st", status=2)
    assert "nlu.report clean removes" in said


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["dif", "a", "b"], "nearest: diff"),
        (["nowhere"], "nowhere is not a folder"),
        (["."], "holds no run"),
        ([".", "--metrc", "x"], "nearest: --metric"),
        ([], "required: DIR"),
        (["clean", ".", "--keep-best", "1"], "--keep-best: unknown flag"),
        (["diff", "."], "required: B"),
        (["errors", ".", "more"], "more: one argument too many"),
    ],
)
def test_mistakes_are_reported_in_one_sentence(tmp_path, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError) as raised:
        main(arguments)
    assert words in str(raised.value)


def test_values_of_flags_that_do_not_exist_are_not_called_flags():
    with pytest.raises(UserError) as raised:
        main(["errors", ".", "--row", "5", "--sett=dev"])
    assert raised.value.problems == [
        "--row: unknown flag; nearest: --rows", "--sett: unknown flag; nearest: --set"
    ]  # fmt: skip
