"""What pruning saves and what it costs: HyperBand against random search without pruning, on real data.

    python benchmarks/sweep_hyperband.py                                # three seeds of the search, 24 trials each
    python benchmarks/sweep_hyperband.py --seeds 1 --folder outputs/hyperband     # given again, it continues

Both search four parameters of SimBERT-tiny on the same 8,000 rows of TNEWS (2,000 for dev), at most two epochs
a trial, scored every 0.13 epochs, where the first rung lies. HyperBand's best dev accuracy should lie within 0.3
points of random search's, for 40 % of the examples.
"""

import argparse
import csv
import os
import random
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DATA = Path(os.environ.get("NLU_DATA", ROOT.parent / "shared" / "data"))
ROWS = {"train": 8000, "dev": 2000}
POINTS = 0.3
SHARE = 0.4
SPACE = (
    "optimizer.lr=tag(log,interval(3e-5,1e-3))", "model.head_dropout=interval(0.0,0.3)",
    "trainer.batch_size=choice(16,32,64)", "scheduler.warmup=interval(0.0,0.3)",
)  # fmt: skip
SEARCHES = {
    "HyperBand": ("hydra/sweeper/sampler=tpe", "hydra.sweeper.pruner=hyperband", "hydra.sweeper.reduction_factor=4"),
    "random": ("hydra/sweeper/sampler=random", "hydra.sweeper.pruner=none"),
}


def write_data(folder: Path) -> None:
    """Draw the rows once, seeded; dev rows come from the data set's own dev file."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, count in ROWS.items():
        lines = (DATA / "TNEWS" / f"{name}.tsv").read_text().splitlines(keepends=True)
        (folder / f"{name}.tsv").write_text("".join(random.Random(0).sample(lines, count)))


def search(data: Path, folder: Path, kind: str, seed: int, trials: int, jobs: int) -> tuple[float, int]:
    """Run a search, or continue it; returns its best value and the examples that all its trials saw."""
    command = [
        sys.executable, "-m", "nlu.train", "--multirun", "hydra/sweeper=hyperband", *SEARCHES[kind],
        "hydra/launcher=submitit_local", f"hydra.sweeper.n_trials={trials}", f"hydra.sweeper.n_jobs={jobs}",
        f"hydra.sweeper.sampler.seed={seed}", f"hydra.sweep.dir={folder}", "model=simbert_tiny", "data=tnews",
        f"data.train={data}/train.tsv", f"data.dev={data}/dev.tsv", "data.urls={}", "precision=bf16",
        "trainer.max_duration=2ep", "trainer.eval_interval=0.13ep", "trainer.save_interval=0", *SPACE,
    ]  # fmt: skip
    subprocess.run(command, cwd=ROOT, check=True)
    with (folder / "summary" / "trials.tsv").open() as table:
        rows = list(csv.DictReader(table, delimiter="\t"))
    # A failed trial saw fewer examples, which would look like saving.
    if failed := [row["trial"] for row in rows if row["state"] not in ("complete", "pruned")]:
        sys.exit(f"{folder}: trials {', '.join(failed)} failed; a comparison needs them all")
    return max(float(row["dev/accuracy"]) for row in rows), sum(int(row["examples"]) for row in rows)


def main() -> None:
    """Run, or continue, the searches of every seed and print the comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--trials", type=int, default=24)
    parser.add_argument("--jobs", type=int, default=2, help="trials at a time")
    parser.add_argument("--folder", type=Path, default=Path("outputs/sweep_hyperband"))
    arguments = parser.parse_args()
    data = arguments.folder / "data"
    if not (data / "dev.tsv").is_file():
        write_data(data)
    met = True
    for seed in range(1, arguments.seeds + 1):
        found = {
            kind: search(
                data.resolve(), (arguments.folder / f"{kind}-{seed}").resolve(), kind, seed, arguments.trials,
                arguments.jobs,
            )
            for kind in SEARCHES
        }  # fmt: skip
        (best, examples), (random_best, random_examples) = found["HyperBand"], found["random"]
        lost, share = 100 * (random_best - best), examples / random_examples
        met &= lost <= POINTS and share <= SHARE
        print(
            f"seed {seed}: HyperBand {best:.4f} after {examples:,} examples, random search {random_best:.4f} after "
            f"{random_examples:,}: {-lost:+.2f} points for {share:.0%} of the examples",
            flush=True,
        )
    print(f"within {POINTS} points for at most {SHARE:.0%} of the examples: {'yes' if met else 'no'}")


if __name__ == "__main__":
    main()
