"""Showing a configuration or refusing a wrong key costs little more than Hydra itself."""

import os
import subprocess
import sys
from pathlib import Path
from unittest import mock

import hydra
import pytest

import nlu
from nlu.train import main
from tests.training.in_process import program

CHECKOUT = Path(nlu.__file__).parents[1]
HEAVY = {
    "torch",
    "transformers",
    "numpy",
    "sklearn",
    "matplotlib",
    "pyarrow",
    "fsspec",
    "rich",
    "tokenizers",
    "optuna",
    "sqlalchemy",
    "http",
    "ssl",
    "subprocess",
}
MAX_RATIO, REFUSED_RATIO, HELP_RATIO = 1.5, 1.5, 1.05
"""Most function calls, in those of bare Hydra. A line with a wrong key is composed twice, once without it."""
BARE = """
import hydra

@hydra.main(config_path="conf", config_name="config")
def main(config):
    print(config)

main()
"""


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


def test_a_refused_key_is_composed_with_and_without_once_each(capsys):
    with mock.patch("hydra.compose", wraps=hydra.compose) as composing:
        program(main, "train", "trainer.batchsize=3", status=2)
    assert "nearest: trainer.batch_size" in capsys.readouterr().err
    assert [call.args[1] for call in composing.call_args_list] == [["trainer.batchsize=3"], []]


COUNTED = """
import cProfile, contextlib, io, pstats, runpy, sys
name, *sys.argv = sys.argv[1:]
program = runpy.run_path if name.endswith(".py") else runpy.run_module
profile, shown = cProfile.Profile(), io.StringIO()
with contextlib.redirect_stdout(shown), contextlib.suppress(SystemExit, Exception):
    profile.runcall(program, name, run_name="__main__")
print(pstats.Stats(profile).total_calls, "seed: 1" in shown.getvalue())
"""


def calls_of(program: str, folder: Path, *arguments: str, shown: bool) -> int:
    """Return how many functions a program calls, imports included; it shows its configuration if `shown`."""
    command = [sys.executable, "-c", COUNTED, program, program, *arguments]
    # With the variable set, bare Hydra prints no message, and that takes seven calls in a hundred.
    env = {**os.environ, "HYDRA_FULL_ERROR": "0"}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=True, timeout=120)
    calls, is_shown = done.stdout.split()
    assert is_shown == str(shown), done.stderr
    return int(calls)


@pytest.mark.thorough
def test_showing_the_configuration_takes_little_more_than_a_bare_hydra_program(tmp_path):
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf/config.yaml").write_text("seed: 1\n")
    (tmp_path / "bare.py").write_text(BARE)
    bare, ours = (
        calls_of(program, folder, "--cfg", "job", shown=True)
        for program, folder in (("bare.py", tmp_path), ("nlu.train", CHECKOUT))
    )
    assert ours <= MAX_RATIO * bare, f"nlu.train --cfg job calls {ours} functions, bare Hydra {bare}"


@pytest.mark.parametrize(
    ("command", "argument", "ratio"),
    [
        ("train", "devicee=cpu", REFUSED_RATIO),
        pytest.param("train", "--help", HELP_RATIO, marks=pytest.mark.thorough),
        pytest.param("evaluate", "devicee=cpu", REFUSED_RATIO, marks=pytest.mark.thorough),
        pytest.param("export", "devicee=cpu", REFUSED_RATIO, marks=pytest.mark.thorough),
    ],
)
def test_help_and_a_refused_key_cost_little_more_than_hydra_over_the_same_files(tmp_path, command, argument, ratio):
    text = BARE.replace('"conf"', repr(str(CHECKOUT / "conf"))).replace('"config"', repr(command))
    (tmp_path / "bare.py").write_text(text)
    bare = calls_of("bare.py", tmp_path, argument, shown=False)
    ours = calls_of(f"nlu.{command}", CHECKOUT, argument, shown=False)
    assert ours <= ratio * bare, f"nlu.{command} {argument} calls {ours} functions, bare Hydra {bare}"


@pytest.mark.parametrize(
    ("name", "expected"),
    [("evaluate", "run is not set, and neither are model or data"), ("preprocess", "the rows to encode are not set")],
)
def test_a_command_that_names_nothing_to_work_on_fetches_nothing(name, expected, tmp_path):
    command = [sys.executable, "-m", f"nlu.{name}"]
    environment = {**os.environ, "NLU_CACHE": str(tmp_path)}
    done = subprocess.run(command, cwd=CHECKOUT, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2 and expected in done.stderr, done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "arguments",
    [
        ("predict", "run=absent", "input=x.csv", "output=y.csv"), ("serve", "run=absent"),
        ("evaluate", "run=absent", "data.test=x.csv"), ("export", "run=absent", "format=onnx", "out=y"),
    ],
    ids=lambda arguments: arguments[0],
)  # fmt: skip
def test_a_missing_run_is_reported_before_torch_is_imported(arguments):
    name, *rest = arguments
    code = f"""
import atexit, runpy, sys
sys.argv = ["nlu.{name}", *{rest!r}]
atexit.register(lambda: print("torch" in sys.modules))
runpy.run_module("nlu.{name}", run_name="__main__")
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=CHECKOUT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2 and "run is absent, which is not a folder here" in done.stderr, done.stderr
    assert done.stdout.split() == ["False"]
