"""Showing a configuration or refusing a wrong key costs little more than Hydra itself."""

import subprocess
import sys
from pathlib import Path

import pytest

import nlu

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
}
MAX_RATIO = 1.5
BARE = """
import hydra

@hydra.main(config_path="conf", config_name="config")
def main(config):
    print(config)

main()
"""


@pytest.mark.parametrize(
    ("arguments", "status"),
    [(["--cfg", "job"], 0), (["--help"], 0), (["dry_run=true"], 0), (["trainer.batchsize=3"], 2)],
)
def test_nothing_heavy_is_imported_before_a_run_begins(tmp_path, arguments, status):
    command = [sys.executable, "-X", "importtime", "-m", "nlu.train", *arguments, f"hydra.run.dir={tmp_path}/run"]
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, timeout=60)
    assert done.returncode == status, done.stderr[-1000:]
    imported = {line.rpartition("|")[2].strip().partition(".")[0] for line in done.stderr.splitlines()}
    assert "hydra" in imported and "nlu" in imported
    assert not imported & HEAVY
    assert not (tmp_path / "run").exists()


COUNTED = """
import cProfile, contextlib, io, pstats, runpy, sys
name, *sys.argv = sys.argv[1:]
program = runpy.run_path if name.endswith(".py") else runpy.run_module
profile, shown = cProfile.Profile(), io.StringIO()
with contextlib.redirect_stdout(shown), contextlib.suppress(SystemExit):
    profile.runcall(program, name, run_name="__main__")
print(pstats.Stats(profile).total_calls, "seed: 1" in shown.getvalue())
"""


def calls_of(program: str, folder: Path) -> int:
    """Return how many functions a program calls to show its configuration, imports included."""
    command = [sys.executable, "-c", COUNTED, program, program, "--cfg", "job"]
    done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, text=True, check=True, timeout=120)
    calls, is_shown = done.stdout.split()
    assert is_shown == "True"
    return int(calls)


def test_showing_the_configuration_takes_little_more_than_a_bare_hydra_program(tmp_path):
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf/config.yaml").write_text("seed: 1\n")
    (tmp_path / "bare.py").write_text(BARE)
    bare, ours = calls_of("bare.py", tmp_path), calls_of("nlu.train", CHECKOUT)
    assert ours <= MAX_RATIO * bare, f"nlu.train --cfg job calls {ours} functions, bare Hydra {bare}"
