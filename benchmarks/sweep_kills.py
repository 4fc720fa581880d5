"""Kill a sweep at random instants, continue it, and compare every trial with those of a sweep that was never broken.

    python benchmarks/sweep_kills.py --kills 100
    python benchmarks/sweep_kills.py --kills 20 --pruner freeze_thaw
    python benchmarks/sweep_kills.py --kills 10 --storage postgresql://postgres@HOST/optuna        # or s3://bucket/folder

Each cycle begins a sweep of real runs (a tiny BERT, local, two at a time) in a fresh folder, sends SIGKILL
after a random time to the sweep itself, to its jobs (one, or all), or to both, runs the same command again, and so on.
In the end exactly n_trials are finished, each number once, and each trial's parameters, reports, table of evaluations
and value, and so the best one, are those of the unbroken sweep: the sampler is random and seeded, nothing is pruned. A
run saves its state after every step, so that kills fall into everything that a run does.

With freeze_thaw or asha there is one trial at a time, because decisions about several depend on which one is faster.
Then the decisions, with their reasons, and the states of all trials are compared too; most trials stay paused.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from pathlib import Path

from tiny_run import overrides, write_data

MARK = "NLU_SWEEP_KILLS"
"""Environment variable by which the processes of a sweep are found, also after their parent has died."""
JOB = "submitit.core._submit"
"""is in the command of every process of a job"""
TRIALS = 6
STEPS = 16
BATCH_SIZE = 8
"""that of tiny_run.py"""
EVAL_STEPS = 4
LIMIT_S = 900
PAUSING_TRIALS = 16
"""trials that may begin if they are paused; the budget is a quarter of them"""
TARGETS = ("sweep", "one job", "all jobs", "everything")


def command(data: Path, folder: Path, storage: str | None, pruner: str) -> list[str]:
    """Return the command that begins the sweep and, given again, continues it."""
    trials, jobs, *budget = (TRIALS, 2) if pruner == "none" else (
        PAUSING_TRIALS, 1, f"hydra.sweeper.max_examples={PAUSING_TRIALS // 4 * STEPS * BATCH_SIZE}ex"
    )  # fmt: skip
    return [
        sys.executable, "-m", "nlu.train", "--multirun", "hydra/sweeper=hyperband", "hydra/sweeper/sampler=random",
        "hydra/launcher=local", f"hydra.sweeper.pruner={pruner}", f"hydra.sweeper.n_trials={trials}",
        f"hydra.sweeper.n_jobs={jobs}", *budget, f"hydra.sweep.dir={folder}",
        *([f"hydra.sweeper.storage={storage}"] if storage else []),
        *overrides(data), f"trainer.max_duration={STEPS}st", f"trainer.eval_interval={EVAL_STEPS}st",
        "trainer.save_interval=1st", "trainer.keep_best=1",
        "optimizer.lr=tag(log,interval(1e-4,1e-2))", "model.dropout=choice(0.0,0.1)",
    ]  # fmt: skip


def processes(mark: str, word: str = "") -> list[int]:
    """Return the living processes, with a word in their command, that a sweep with this mark started, and itself."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if not entry.name.isdigit() or word.encode() not in (entry / "cmdline").read_bytes():
                continue
            # By the environment, which children inherit: a job whose parent was killed belongs to init and lacks any
            # other sign.
            if f"{MARK}={mark}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
        except OSError:
            continue
    return sorted(found)


def kill(sweep: subprocess.Popen, mark: str, target: str, rng: random.Random) -> bool:
    """Send SIGKILL; False where there was nothing left to kill."""
    # Not what prepares the data before the first trial: without it the sweep ends, and says so.
    jobs = processes(mark, JOB)
    chosen = {
        "sweep": [sweep.pid],
        "one job": [rng.choice(jobs)] if jobs else [],
        "all jobs": jobs,
        "everything": [sweep.pid, *jobs],
    }[target]
    killed = False
    for pid in chosen:
        if pid != sweep.pid or sweep.poll() is None:
            try:
                os.kill(pid, signal.SIGKILL)
                killed = True
            except ProcessLookupError:
                continue
    return killed


def run(arguments: list[str], mark: str, log: Path, kills: list[tuple[float, str]], rng: random.Random) -> Counter:
    """Run the command, killing after each of these (seconds, target) in turn, until it ends by itself; counts kills."""
    done: Counter = Counter()
    environment = {**os.environ, MARK: mark, "OMP_NUM_THREADS": "1"}
    while True:
        with log.open("ab") as output:
            sweep = subprocess.Popen(
                arguments, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment,
                start_new_session=True,
            )  # fmt: skip
        deadline_s = time.monotonic() + LIMIT_S
        while sweep.poll() is None and time.monotonic() < deadline_s:
            if not kills:
                time.sleep(0.1)
                continue
            after_s, target = kills.pop(0)
            try:
                sweep.wait(after_s)
            except subprocess.TimeoutExpired:
                done[target] += kill(sweep, mark, target, rng)
        if sweep.poll() is None:
            fail(f"the sweep did not end within {LIMIT_S} s", log, mark)
        if sweep.returncode == 0:
            return done
        # Any other end is an error of the sweep, not one of our kills.
        if sweep.returncode != -signal.SIGKILL:
            fail(f"the sweep failed with status {sweep.returncode}", log, mark)


def fail(reason: str, log: Path, mark: str) -> None:
    """End everything that was started, and this program."""
    for pid in processes(mark):
        os.kill(pid, signal.SIGKILL)
    sys.exit(f"{reason}; its output ends:\n{log.read_text(errors='replace')[-4000:]}")


def outcome(folder: Path, url: str, pruner: str) -> dict[int, dict]:
    """Return what came of each trial of a finished sweep; exits where one is missing or unfinished."""
    import optuna

    from nlu.search.storage.open_study import open_storage
    from nlu.search.trial_steps import log_of, steps_of

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.load_study(study_name=folder.name, storage=open_storage(url))
    trials = study.trials
    numbers = [trial.number for trial in trials]
    states = Counter(trial.state.name for trial in trials)
    if numbers != list(range(len(trials))) or "FAIL" in states:
        sys.exit(f"{folder}: there are numbers {numbers} in states {dict(states)}")
    if pruner == "none" and states != {"COMPLETE": TRIALS}:
        sys.exit(f"{folder}: {TRIALS} complete trials were to be, there are {dict(states)}")
    if pruner != "none" and len(log_of(trials)) <= len(trials):
        sys.exit(f"{folder}: no trial was continued, so the sweep proves nothing")
    folders = sorted(path.name for path in folder.iterdir() if path.name.isdigit())
    if folders != sorted(map(str, numbers)):
        sys.exit(f"{folder}: the trials' folders are {folders}")
    found = {}
    for trial in trials:
        run_dir = folder / str(trial.number)
        result = json.loads((run_dir / "result.json").read_text()) if trial.state.is_finished() else {}
        found[trial.number] = {
            "params": trial.params, "state": trial.state.name, "value": trial.value,
            "reported": trial.intermediate_values, "decisions": steps_of(trial),
            "evaluations": (run_dir / "valid.tsv").read_text(), "examples": result.get("examples"),
            "metrics": result.get("metrics"), "is_best": trial.number == study.best_trial.number,
        }  # fmt: skip
    return found


def sweep_storage(wanted: str | None, folder: Path) -> tuple[str | None, str]:
    """Return the storage to write into the command, and the URL under which it is found afterwards."""
    from nlu.search.storage.open_study import storage_url

    if wanted is not None and wanted.startswith(("s3", "oss")):
        wanted = f"{wanted.rstrip('/')}/{folder.name}"
    return wanted, storage_url(wanted, folder)


def main() -> None:
    """Run one unbroken sweep, then broken ones until there were enough kills."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--kills-per-sweep", type=int, default=5, help="at most so many before a sweep may end")
    parser.add_argument("--storage", help="of the sweeps; the default is the journal file in the sweep folder")
    parser.add_argument("--pruner", choices=("none", "asha", "freeze_thaw"), default="none")
    parser.add_argument("--seed", type=int, default=0, help="of instants and targets")
    arguments = parser.parse_args()
    rng = random.Random(arguments.seed)
    kills: Counter = Counter()
    sweeps = 0
    with tempfile.TemporaryDirectory(prefix="sweep-kills-") as name:
        data, log = Path(name), Path(name) / "log"
        write_data(data)
        mark = uuid.uuid4().hex
        whole = data / f"whole-{mark}"
        storage, url = sweep_storage(arguments.storage, whole)
        began_s = time.monotonic()
        run(command(data, whole, storage, arguments.pruner), mark, log, [], rng)
        whole_s = time.monotonic() - began_s
        expected = outcome(whole, url, arguments.pruner)
        print(f"unbroken sweep of {len(expected)} trials: {whole_s:.0f} s", flush=True)
        while kills.total() < arguments.kills:
            mark = uuid.uuid4().hex
            folder = data / f"broken-{mark}"
            storage, url = sweep_storage(arguments.storage, folder)
            count = min(arguments.kills_per_sweep, arguments.kills - kills.total())
            plan = [(rng.uniform(0.05, 0.6) * whole_s, rng.choice(TARGETS)) for _ in range(count)]
            kills += run(command(data, folder, storage, arguments.pruner), mark, log, plan, rng)
            sweeps += 1
            found = outcome(folder, url, arguments.pruner)
            differing = [number for number in {**expected, **found} if found.get(number) != expected.get(number)]
            if differing:
                number = differing[0]
                sys.exit(f"trials {differing} differ; {number} was {expected.get(number)}, is {found.get(number)}")
            # A process that outlives its sweep could still write into the storage.
            if left := processes(mark):
                fail(f"processes {left} outlived their sweep", log, mark)
            print(f"{kills.total()} kills so far ({dict(kills)}), {sweeps} sweeps as the unbroken one", flush=True)
    best = next(number for number, trial in expected.items() if trial["is_best"])
    print(
        f"{kills.total()} kills survived in {sweeps} sweeps: {len(expected)} trials in each, none twice, all values, "
        f"and the best (trial {best}, {expected[best]['value']:.6g}), as in the unbroken sweep"
    )


if __name__ == "__main__":
    main()
