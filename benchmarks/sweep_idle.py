"""How long slots stand empty while trials remain: our sweeper beside the stock Optuna sweeper, on the same trials.

    python benchmarks/sweep_idle.py                                # trials of 2 s and of 20 s on average, 4 slots
    python benchmarks/sweep_idle.py --means 2 --trials 16
    python tests/slurm/run.py --then python benchmarks/sweep_idle.py --launcher slurm --slots 8 --trials 32 --means 20

The trials are processes of submitit's local launcher that sleep, each for a different time, and note when they were
launched and when they ended. From the first launch until the last trial is launched every slot should be taken, and
afterwards those of the trials that still run: of that time, the share without a job is idle. In the second column a
slot counts as idle also while its job starts up (interpreter, Hydra), so until its trial's own work begins.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from sleeping_trial import length_s

PROGRAM = Path(__file__).with_name("sleeping_trial.py")
SWEEPERS = ("hyperband", "optuna")


def command(sweeper: str, launcher: str, folder: Path, slots: int, trials: int, mean_s: float) -> list[str]:
    """Return the command of a sweep over all places, by a grid, which both sweepers have."""
    own = ["hydra.sweeper.pruner=none"] if sweeper == "hyperband" else []
    places = ",".join(map(str, range(trials)))
    return [
        sys.executable, str(PROGRAM), "--multirun", f"hydra/sweeper={sweeper}", "hydra/sweeper/sampler=grid", *own,
        f"hydra/launcher={launcher}", f"hydra.sweeper.n_jobs={slots}", f"hydra.sweeper.n_trials={trials}",
        f"hydra.sweep.dir={folder}", f"place=choice({places})", f"mean_s={mean_s}", f"trials={trials}",
    ]  # fmt: skip


def idle_share(jobs: list[dict], slots: int, start: str) -> float:
    """Return the share of the slots' time, while trials remain, that is not between `start` and the end of a job."""
    # Only while trials remain: after the last one is launched, a slot stands empty in any search.
    first, last = min(job["launched"] for job in jobs), max(job[start] for job in jobs)
    available_s = slots * (last - first)
    used_s = sum(min(job["ended"], last) - min(job[start], last) for job in jobs)
    return 1 - used_s / available_s


def measure(sweeper: str, launcher: str, slots: int, trials: int, mean_s: float) -> tuple[float, float, float]:
    """Run a sweep; returns both idle shares and its seconds from start to end."""
    with tempfile.TemporaryDirectory(prefix="sweep-idle-") as name:
        log = Path(name) / "jobs.jsonl"
        environment = {**os.environ, "NLU_IDLE_LOG": str(log), "OMP_NUM_THREADS": "1"}
        began_s = time.monotonic()
        done = subprocess.run(
            command(sweeper, launcher, Path(name) / "sweep", slots, trials, mean_s),
            env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
        )  # fmt: skip
        wall_s = time.monotonic() - began_s
        if done.returncode != 0:
            sys.exit(f"the sweep by {sweeper} failed:\n{(done.stderr + done.stdout)[-4000:]}")
        jobs = [json.loads(line) for line in log.read_text().splitlines()]
    # A sweeper that left out trials would look busy.
    if sorted(job["place"] for job in jobs) != list(range(trials)):
        sys.exit(f"the sweep by {sweeper} ran the places {sorted(job['place'] for job in jobs)}")
    return idle_share(jobs, slots, "launched"), idle_share(jobs, slots, "began"), wall_s


def main() -> None:
    """Print a line for each mean length and sweeper."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--means", type=float, nargs="*", default=[2.0, 20.0], help="mean length of a trial in s")
    parser.add_argument("--trials", type=int, default=24)
    parser.add_argument("--slots", type=int, default=4)
    parser.add_argument("--launcher", choices=("local", "slurm"), default="local")
    arguments = parser.parse_args()
    # The stock sweeper waits for a batch with every launcher, and is compared on the one that it was written for.
    sweepers = SWEEPERS if arguments.launcher == "local" else SWEEPERS[:1]
    trials, slots = arguments.trials, arguments.slots
    print(f"{trials} trials, {slots} slots\n\nmean s  sweeper    idle   idle or starting  wall s  least wall s")
    for mean_s in arguments.means:
        least_s = sum(length_s(place, trials, mean_s) for place in range(trials)) / slots
        for sweeper in sweepers:
            empty, not_working, wall_s = measure(sweeper, arguments.launcher, slots, trials, mean_s)
            shares = f"{empty:5.1%}  {not_working:16.1%}"
            print(f"{mean_s:6g}  {sweeper:9}  {shares}  {wall_s:6.0f}  {least_s:12.0f}", flush=True)


if __name__ == "__main__":
    main()
