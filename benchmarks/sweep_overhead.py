"""What it costs to run as a trial: from asking for it to its first training step, less what a plain run needs.

    python benchmarks/sweep_overhead.py
    python benchmarks/sweep_overhead.py --runs 10 --storage postgresql://postgres@HOST/optuna

Plain runs and sweeps of one trial alternate, all by the same settings (a tiny BERT, every step recorded). A plain run's
time begins when its process is started; a trial's, when the sweeper asks the sampler for it. Both end when the first
step stands in train.tsv. The basic launcher runs the trial in the sweep's own process, where everything is imported
already; local starts two interpreters for it, one of which waits.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tiny_run import overrides, write_data

LAUNCHERS = ("basic", "local")
POLL_S = 0.005
LIMIT_S = 300


def settings(data: Path) -> list[str]:
    """Return what plain runs and trials have in common."""
    return [*overrides(data), "trainer.max_duration=3st", "trainer.log_interval=1st"]


def first_step_s(arguments: list[str], table: Path) -> tuple[float, float]:
    """Run a command; returns when (time.time()) it was started and when the table had its first row."""
    began_s = time.time()
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        arguments, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        env=environment,
    )  # fmt: skip
    # The first line is the header.
    while not (table.exists() and table.read_text().count("\n") > 1):
        if process.poll() is not None or time.time() - began_s > LIMIT_S:
            process.kill()
            sys.exit(f"{table} is still without a step; the command ended with:\n{process.communicate()[1][-3000:]}")
        time.sleep(POLL_S)
    reached_s = time.time()
    if process.wait() != 0:
        sys.exit(f"the command failed with status {process.returncode}")
    return began_s, reached_s


def plain(data: Path, folder: Path) -> float:
    """Return the seconds of a plain run."""
    command = [sys.executable, "-m", "nlu.train", *settings(data), f"hydra.run.dir={folder}"]
    began_s, reached_s = first_step_s(command, folder / "train.tsv")
    return reached_s - began_s


def trial(data: Path, folder: Path, launcher: str, storage: str | None) -> float:
    """Return the seconds of a sweep's only trial."""
    import optuna

    from nlu.search.storage.opening import open_storage, storage_url

    command = [
        sys.executable, "-m", "nlu.train", "--multirun", "hydra/sweeper=hyperband", "hydra/sweeper/sampler=random",
        f"hydra/launcher={launcher}", "hydra.sweeper.n_trials=1", "hydra.sweeper.pruner=none",
        f"hydra.sweep.dir={folder}", *([f"hydra.sweeper.storage={storage}"] if storage else []), *settings(data),
        "optimizer.lr=tag(log,interval(1e-4,1e-2))",
    ]  # fmt: skip
    _, reached_s = first_step_s(command, folder / "0" / "train.tsv")
    study = optuna.load_study(study_name=folder.name, storage=open_storage(storage_url(storage, folder)))
    # Optuna's own time of `ask`; both clocks are that of this machine.
    asked = study.trials[0].datetime_start
    assert asked is not None
    return reached_s - asked.timestamp()


def main() -> None:
    """Print medians, and the differences of the medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5, help="of each kind")
    parser.add_argument("--storage", help="of the sweeps; the default is the journal file in the sweep folder")
    arguments = parser.parse_args()
    times_s: dict[str, list[float]] = {name: [] for name in ("plain run", *LAUNCHERS)}
    with tempfile.TemporaryDirectory(prefix="sweep-overhead-") as name:
        data = Path(name)
        write_data(data)
        plain(data, data / "warm-up")  # makes the data store, and has the libraries read from disk
        for number in range(arguments.runs):
            times_s["plain run"].append(plain(data, data / f"plain-{number}"))
            for launcher in LAUNCHERS:
                folder = data / f"{data.name}-{launcher}-{number}"
                times_s[launcher].append(trial(data, folder, launcher, arguments.storage))
    base_s = statistics.median(times_s["plain run"])
    print(f"to the first step, median of {arguments.runs}\n")
    for name, found_s in times_s.items():
        middle_s = statistics.median(found_s)
        spread = f"{min(found_s):.2f} to {max(found_s):.2f}"
        print(f"{name:15} {middle_s:6.2f} s  ({spread})  {middle_s - base_s:+6.2f} s")


if __name__ == "__main__":
    main()
