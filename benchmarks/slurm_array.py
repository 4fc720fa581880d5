"""Seconds until Slurm has all jobs of a grid, as one array, beside sbatch for each of them by itself.

    python tests/slurm/run.py --then python benchmarks/slurm_array.py

The grid is submitted with hydra.launcher.wait=false, and what counts is the whole command: Python's start, and
composing and checking every job. It is measured for a small program and for nlu.train, whose configuration takes ten
times as long to compose. The jobs themselves are cancelled as soon as they are counted.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from table import Row, show

PROGRAM = Path(__file__).with_name("sleeping_trial.py")
LIMIT_S = 0.2


def queued() -> int:
    """Return how many jobs Slurm has."""
    return len(subprocess.run(["squeue", "-rh"], capture_output=True, text=True, check=True).stdout.splitlines())


def cancel_all() -> None:
    subprocess.run(["scancel", "--user", "root"], check=True)
    # Jobs that still end would slow down the next submission.
    while queued():
        time.sleep(0.5)


def main() -> None:
    """Submit both ways and print seconds a job."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=100)
    jobs = parser.parse_args().jobs
    numbers = ",".join(map(str, range(1, jobs + 1)))
    programs = {
        "a small program": [str(PROGRAM), f"place={numbers}", "mean_s=600", f"trials={jobs + 1}"],
        "nlu.train": ["-m", "nlu.train", f"seed={numbers}"],
    }
    with tempfile.TemporaryDirectory(prefix="slurm-array-") as name:
        began_s = time.monotonic()
        for _ in range(jobs):
            subprocess.run(
                ["sbatch", "--output=/dev/null", "--wrap", "sleep 600"], cwd=name, capture_output=True, check=True
            )
        single_s = time.monotonic() - began_s
        cancel_all()
        for number, (program, own) in enumerate(programs.items()):
            array_s = submitted(own, jobs, Path(name) / str(number))
            cancel_all()
            show([
                Row(f"a grid of {jobs} jobs of {program} handed to Slurm, whole command", "sbatch for each", "s a job",
                    single_s / jobs, array_s / jobs, lower_is_better=True, limit=LIMIT_S),
            ])  # fmt: skip


def submitted(program: list[str], jobs: int, folder: Path) -> float:
    """Submit the grid and return the seconds of the whole command."""
    own = ["--multirun", "hydra/launcher=slurm", "hydra.launcher.wait=false", f"hydra.sweep.dir={folder}"]
    began_s = time.monotonic()
    done = subprocess.run([sys.executable, *program, *own], capture_output=True, text=True, check=False)
    array_s = time.monotonic() - began_s
    if done.returncode or len(list((folder / ".submitted").glob("*"))) == 0:
        sys.exit(f"the grid was not submitted: {done.stderr[-3000:]}")
    return array_s


if __name__ == "__main__":
    main()
