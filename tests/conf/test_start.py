"""Showing a configuration or refusing a wrong key costs little more than Hydra itself."""

import os
import statistics
import subprocess
import sys
import time
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
MAX_RATIO = 2.5
ROUNDS = 5
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


def elapsed_s(command: list[str], folder: Path) -> float:
    start = time.perf_counter()
    subprocess.run(command, cwd=folder, stdout=subprocess.DEVNULL, check=True, timeout=60, env=dict(os.environ))
    return time.perf_counter() - start


def test_showing_the_configuration_costs_little_more_than_a_bare_hydra_program(tmp_path):
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf/config.yaml").write_text("seed: 1\n")
    (tmp_path / "bare.py").write_text(BARE)
    bare = [sys.executable, "bare.py", "--cfg", "job"]
    ours = [sys.executable, "-m", "nlu.train", "--cfg", "job"]
    times = [(elapsed_s(bare, tmp_path), elapsed_s(ours, CHECKOUT)) for _ in range(ROUNDS)]
    bare_s, ours_s = (statistics.median(part) for part in zip(*times, strict=True))
    assert ours_s <= MAX_RATIO * bare_s, f"nlu.train --cfg job takes {ours_s:.2f} s, bare Hydra {bare_s:.2f} s"
