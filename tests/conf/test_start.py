"""Showing a configuration or refusing a wrong key costs little more than Hydra itself."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import nlu
from nlu.commands.train import main
from tests.few import first
from tests.training.in_process import program

CHECKOUT = Path(nlu.__file__).parents[1]
HEAVY = set(
    "torch transformers numpy sklearn pyarrow fsspec rich tokenizers optuna sqlalchemy http ssl subprocess".split()
)


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (["dry_run=true"], 0),
        (["trainer.batchsize=3"], 2),
        pytest.param(["--cfg", "job"], 0, marks=pytest.mark.thorough),
        pytest.param(["--help"], 0, marks=pytest.mark.thorough),
    ],
)
def test_nothing_heavy_is_imported_before_a_run_begins(tmp_path, arguments, status):
    command = [sys.executable, "-X", "importtime", "-m", "nlu.train", *arguments, f"hydra.run.dir={tmp_path}/run"]
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, timeout=60)
    assert done.returncode == status, done.stderr[-1000:]
    imported = {line.rpartition("|")[2].strip().partition(".")[0] for line in done.stderr.splitlines()}
    assert "hydra" in imported and "nlu" in imported
    assert not imported & HEAVY
    assert not (tmp_path / "run").exists()


def test_a_dry_run_finds_a_run_where_one_is_to_begin(tmp_path, capsys):
    (tmp_path / "config.yaml").touch()
    program(main, "train", "dry_run=true", f"hydra.run.dir={tmp_path}", status=2)
    said = capsys.readouterr()
    assert f"{tmp_path}, which holds a run; set resume=auto" in said.err and not said.out
    program(main, "train", "dry_run=true", f"hydra.run.dir={tmp_path}", "resume=auto")
    assert "holds" in capsys.readouterr().out


def test_a_dry_run_finds_what_a_submission_to_pai_would_find(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("ALIBABA_CLOUD_ACCESS_KEY_ID", "id")
    monkeypatch.delenv("ALIBABA_CLOUD_ACCESS_KEY_SECRET", raising=False)
    own = ("hydra/launcher=pai", "hydra.launcher.oss_folder=oss://bucket/nlu", "hydra.launcher.region=cn-hangzhou")
    program(main, "train", "dry_run=true", *own, f"hydra.run.dir={tmp_path}/run", "hydra.launcher.gpus=99", status=2)
    said = capsys.readouterr()
    assert not said.out and not (tmp_path / "run").exists()
    for told in ("hydra.launcher.workspace is not set", "hydra.launcher.image is not set",
                 "hydra.launcher.gpus is 99", "ALIBABA_CLOUD_ACCESS_KEY_SECRET is not set"):  # fmt: skip
        assert told in said.err


@pytest.mark.parametrize(
    ("name", "expected"),
    first(1, [
        ("evaluate", "run is not set, and neither are model or data"), ("preprocess", "the rows to encode are not set"),
    ]),
)  # fmt: skip
def test_a_command_that_names_nothing_to_work_on_fetches_nothing(name, expected, tmp_path):
    command = [sys.executable, "-m", f"nlu.{name}"]
    environment = {**os.environ, "NLU_CACHE": str(tmp_path)}
    done = subprocess.run(command, cwd=CHECKOUT, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2 and expected in done.stderr, done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_missing_run_is_reported_before_torch_is_imported():
    name, *rest = "predict", "run=absent", "input=x.csv", "output=y.csv"
    code = f"""
import atexit, runpy, sys
sys.argv = ["nlu.{name}", *{rest!r}]
atexit.register(lambda: print("torch" in sys.modules))
runpy.run_module("nlu.{name}", run_name="__main__")
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=CHECKOUT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2 and "run is absent, which is not a folder here" in done.stderr, done.stderr
    assert done.stdout.split() == ["False"]
