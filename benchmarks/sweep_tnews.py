"""What pausing and pruning save and what they cost, on real data: searches against random search.

    python benchmarks/sweep_tnews.py                                    # five seeds of each search
    python benchmarks/sweep_tnews.py --seeds 1 --folder outputs/tnews   # given again, it continues
    python benchmarks/sweep_tnews.py --model textcnn --methods freeze_thaw,random

All search four parameters on the same 8,000 rows of TNEWS (2,000 for dev). Random search trains 24 trials to the end;
HyperBand begins 24, freeze-thaw and asha up to 48. These two have 30 % of random search's examples, and should lose at
most 0.1 points of dev accuracy; HyperBand should lose at most 0.3 points for 40 %.
"""

import argparse
import csv
import os
import random
import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DATA = Path(os.environ.get("NLU_DATA", ROOT.parent / "shared" / "data"))
ROWS = {"train": 8000, "dev": 2000}
TRIALS = 24
MODELS = {
    "simbert_tiny": (
        2, "0.13ep", "optimizer.lr=tag(log,interval(3e-5,1e-3))", "model.head_dropout=interval(0.0,0.3)",
        "trainer.batch_size=choice(16,32,64)", "scheduler.warmup=interval(0.0,0.3)",
    ),
    "textcnn": (
        3, "0.2ep", "optimizer.lr=tag(log,interval(1e-4,1e-2))", "model.head_dropout=interval(0.0,0.5)",
        "trainer.batch_size=choice(16,32,64)", "model.dropout=interval(0.0,0.5)",
    ),
}  # fmt: skip
"""epochs of a trial, the distance of its evaluations, and the space"""
SHARE = {"random": 1.0, "hyperband": 0.4, "freeze_thaw": 0.3, "asha": 0.3}
"""of random search's examples that a search may cost"""
POINTS = {"random": 0.0, "hyperband": 0.3, "freeze_thaw": 0.1, "asha": 0.1}
"""of dev accuracy that it may lose"""
OPTIONS = {
    "random": ("hydra/sweeper/sampler=random", "hydra.sweeper.pruner=none"),
    "hyperband": ("hydra/sweeper/sampler=tpe", "hydra.sweeper.pruner=hyperband", "hydra.sweeper.reduction_factor=4"),
    "freeze_thaw": ("hydra.sweeper.pruner=freeze_thaw",),
    "asha": ("hydra/sweeper/sampler=random", "hydra.sweeper.pruner=asha"),
}


def write_data(folder: Path) -> None:
    """Draw the rows once, seeded; dev rows come from the data set's own dev file."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, count in ROWS.items():
        lines = (DATA / "TNEWS" / f"{name}.tsv").read_text().splitlines(keepends=True)
        (folder / f"{name}.tsv").write_text("".join(random.Random(0).sample(lines, count)))


def search(data: Path, folder: Path, model: str, method: str, seed: int, jobs: int) -> tuple[float, int]:
    """Run a search, or continue it; returns its best value and the examples that all its trials saw."""
    epochs, interval, *space = MODELS[model]
    limits = [f"hydra.sweeper.n_trials={TRIALS}"]
    if method in ("freeze_thaw", "asha"):
        examples = round(SHARE[method] * TRIALS * epochs * ROWS["train"])
        limits = [f"hydra.sweeper.n_trials={2 * TRIALS}", f"hydra.sweeper.max_examples={examples}ex"]
    command = [
        sys.executable, "-m", "nlu.train", "--multirun", "hydra/sweeper=hyperband", *OPTIONS[method], *limits,
        "hydra/launcher=local", f"hydra.sweeper.n_jobs={jobs}", f"hydra.sweeper.sampler.seed={seed}",
        f"hydra.sweep.dir={folder}", f"model={model}", "data=tnews", f"data.train={data}/train.tsv",
        f"data.dev={data}/dev.tsv", "data.urls={}", "precision=auto", f"trainer.max_duration={epochs}ep",
        f"trainer.eval_interval={interval}", "trainer.save_interval=0", *space,
    ]  # fmt: skip
    subprocess.run(command, cwd=ROOT, check=True)
    with (folder / "summary" / "trials.tsv").open() as table:
        rows = list(csv.DictReader(table, delimiter="\t"))
    # A failed trial saw fewer examples, which would look like saving.
    if failed := [row["trial"] for row in rows if row["state"] == "fail"]:
        sys.exit(f"{folder}: trials {', '.join(failed)} failed; a comparison needs them all")
    scored = [row for row in rows if row["accuracy"]]
    return max(float(row["accuracy"]) for row in scored), sum(int(row["examples"] or 0) for row in rows)


def main() -> None:
    """Run, or continue, the searches of every seed and print the comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--model", choices=MODELS, default="simbert_tiny")
    parser.add_argument("--methods", default="random,hyperband,freeze_thaw", help=f"of {', '.join(OPTIONS)}")
    parser.add_argument("--jobs", type=int, default=2, help="trials at a time")
    parser.add_argument("--folder", type=Path, default=Path("outputs/sweep_tnews"))
    arguments = parser.parse_args()
    data = arguments.folder / "data"
    if not (data / "dev.tsv").is_file():
        write_data(data)
    methods = [method for method in arguments.methods.split(",") if method != "random"]
    found: dict[str, list[tuple[float, float]]] = {method: [] for method in methods}
    for seed in range(1, arguments.seeds + 1):
        best: dict[str, tuple[float, int]] = {}
        for method in ("random", *methods):
            folder = arguments.folder / f"{arguments.model}-{method}-{seed}"
            best[method] = search(data.resolve(), folder.resolve(), arguments.model, method, seed, arguments.jobs)
        score, examples = best["random"]
        print(f"seed {seed}: random search {score:.4f} after {examples:,} examples", flush=True)
        for method in methods:
            own, spent = best[method]
            found[method].append((100 * (own - score), spent / examples))
            print(f"seed {seed}: {method} {own:.4f} after {spent:,}: {100 * (own - score):+.2f} points for "
                  f"{spent / examples:.0%} of the examples", flush=True)  # fmt: skip
    for method, each in found.items():
        points, share = statistics.fmean(one for one, _ in each), statistics.fmean(one for _, one in each)
        is_met = points >= -POINTS[method] and share <= SHARE[method] + 0.005
        print(f"{method}, mean of {len(each)} seeds: {points:+.2f} points for {share:.0%} of the examples; at most "
              f"{POINTS[method]} lost for {SHARE[method]:.0%}: {'met' if is_met else 'missed'}")  # fmt: skip


if __name__ == "__main__":
    main()
