"""Train the runs behind benchmarks/curves: random configurations of small models on real data, scored along the way.

    python benchmarks/curves/make.py                      # all tasks, in three hours of a core; it continues
    python benchmarks/curves/make.py sst2_static --folder outputs/curves

A task is a model on a part of a data set. A search without a pruner draws 60 configurations at random and trains each
to its end; every tenth of them is trained with two further seeds. Each evaluation is recorded twice: with the moving
average of the weights, which nlu scores, and with the raw weights. FOLDER/TASK holds the search, and
benchmarks/curves/TASK.json the table that benchmarks/sweep_curves.py reads. Data: $NLU_DATA, see docs/data.md.
"""

import argparse
import csv
import json
import os
import random
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
DATA = Path(os.environ.get("NLU_DATA", ROOT.parent / "shared" / "data"))
CONFIGURATIONS, REPEATED, SEEDS = 60, 6, (2, 3)
RAW = "raw.tsv"


@dataclass(frozen=True)
class Task:
    """A model on a part of a data set."""

    train: str
    dev: str
    rows: tuple[int, int]
    """drawn from the two files"""
    shared: str
    """what all its runs have in common"""
    space: str
    """besides schedule and batch size"""


SPACE = "scheduler=choice(one_cycle,constant) trainer.batch_size=choice(8,16,32,64)"
OF_TEXTCNN = "model.dropout=interval(0.0,0.6) model.hidden_size=choice(64,128,256)"
TASKS = {
    "reviews_textcnn": Task(
        "ChnSentiCorp/train.tsv", "ChnSentiCorp/dev.tsv", (2000, 1200),
        "model=textcnn data=chnsenticorp data.max_len=128 trainer.max_duration=3ep trainer.eval_interval=0.2ep",
        f"optimizer.lr=tag(log,interval(1e-4,2e-2)) {OF_TEXTCNN}",
    ),
    "tnews_simbert_tiny": Task(
        "TNEWS/train.tsv", "TNEWS/dev.tsv", (3000, 1000),
        "model=simbert_tiny data=tnews trainer.max_duration=2ep trainer.eval_interval=0.16666ep",
        "optimizer.lr=tag(log,interval(3e-5,3e-3)) model.head_dropout=interval(0.0,0.5) "
        "scheduler.warmup=interval(0.0,0.3)",
    ),
    "cluener_textcnn": Task(
        "CLUENER2020/train.json", "CLUENER2020/dev.json", (2400, 1000),
        "model=textcnn data=cluener trainer.max_duration=4ep trainer.eval_interval=0.25ep",
        f"optimizer.lr=tag(log,interval(3e-4,3e-2)) {OF_TEXTCNN}",
    ),
    "sst2_static": Task(
        "SST-2/train.tsv", "SST-2/dev.tsv", (8000, 872),
        "model=static data=sst2 trainer.max_duration=2ep trainer.eval_interval=0.125ep",
        "optimizer.lr=tag(log,interval(1e-4,1e-1)) model.dropout=interval(0.0,0.6) "
        "model.embedding_size=choice(32,64,128,256)",
    ),
    "tnews_textcnn": Task(
        "TNEWS/train.tsv", "TNEWS/dev.tsv", (6000, 2000),
        "model=textcnn data=tnews trainer.max_duration=3ep trainer.eval_interval=0.1875ep",
        f"optimizer.lr=tag(log,interval(1e-4,2e-2)) {OF_TEXTCNN}",
    ),
}  # fmt: skip


def train(arguments: list[str]) -> None:
    """Run nlu.train in this process, and score the raw weights at each evaluation too, into RUN/raw.tsv."""
    from nlu.commands.train import command
    from nlu.training import best, loop
    from nlu.training.parts import Training

    evaluate = best.evaluate

    def both(run: Training) -> bool:
        metrics, scored = best.scored_sets(run)
        for one in scored.values():
            one.spool.close()
        entry = best.entry_of(run, run.state.step, metrics)
        with (run.run_dir / RAW).open("a") as file:
            file.write(f"{entry.examples}\t{entry.value}\n")
        return evaluate(run)

    loop.evaluate = both
    sys.argv = ["nlu.train", *arguments]
    command()


def in_process(arguments: list[str]) -> None:
    """Run nlu.train in a process of its own, which can be repeated: finished runs stay as they are."""
    subprocess.run([sys.executable, __file__, "--train", *arguments], check=True, cwd=ROOT)


def drawn(task: str, folder: Path) -> list[str]:
    """Write the rows of a task, drawn once with a fixed seed, unless they are there; returns keys that name them."""
    named, task_of = [], TASKS[task]
    for name, path, count in zip(("train", "dev"), (task_of.train, task_of.dev), task_of.rows, strict=True):
        own = folder / f"{task}-{name}{Path(path).suffix}"
        if not own.is_file():
            folder.mkdir(parents=True, exist_ok=True)
            lines = (DATA / path).read_text(encoding="utf-8").splitlines(keepends=True)
            # SST-2 has a line of names.
            head, lines = (lines[:1], lines[1:]) if "SST-2" in path else ([], lines)
            own.write_text("".join(head + random.Random(0).sample(lines, count)), encoding="utf-8")
        named.append(f"data.{name}={own}")
    return [*named, "data.urls={}"]


def curve(run: Path) -> dict[str, object]:
    """Return the curves of a run: the value of each evaluation with averaged and with raw weights."""
    result = json.loads((run / "result.json").read_text())["best"]
    with (run / "valid.tsv").open() as table:
        rows = [row for row in csv.DictReader(table, delimiter="\t") if row["set"] == result["set"]]
    of_metric = [row for row in rows if row["metric"] == result["metric"]]
    raw = dict(line.split("\t") for line in (run / RAW).read_text().splitlines())
    return {
        "examples": [int(row["examples"]) for row in of_metric],
        "averaged": [round(float(row["value"]), 4) for row in of_metric],
        "raw": [round(float(raw[row["examples"]]), 4) for row in of_metric],
    }


def make(task: str, folder: Path) -> None:
    """Train the runs of a task and write its table."""
    space = [*SPACE.split(), *TASKS[task].space.split()]
    shared = [*TASKS[task].shared.split(), *drawn(task, folder / "data")]
    shared += ["precision=auto", "trainer.save=false", "tracker=none"]
    search = folder / task
    sweeper = (
        "--multirun", "hydra/sweeper=hyperband", "hydra/sweeper/sampler=random", "hydra.sweeper.pruner=none",
        f"hydra.sweeper.n_trials={CONFIGURATIONS}", "hydra.sweeper.sampler.seed=1", f"hydra.sweep.dir={search}",
    )  # fmt: skip
    in_process([*sweeper, *shared, *space])
    names = [one.partition("=")[0] for one in space]
    with (search / "summary" / "trials.tsv").open() as table:
        trials = {int(row["trial"]): row for row in csv.DictReader(table, delimiter="\t")}
    rows = []
    for number in range(CONFIGURATIONS):
        values = {name: trials[number][name] for name in names}
        rows.append({"configuration": number, "seed": 1, "values": values, **curve(search / str(number))})
        if number >= REPEATED:
            continue
        again = folder / f"{task}-seeds" / str(number)
        given = [f"{name}={value}" for name, value in values.items()]
        grid = ["--multirun", f"seed={','.join(map(str, SEEDS))}", f"hydra.sweep.dir={again}"]
        if not all((again / str(at) / "result.json").is_file() for at in range(len(SEEDS))):
            in_process([*grid, *shared, *given])
        rows += [
            {"configuration": number, "seed": seed, "values": values, **curve(again / str(at))}
            for at, seed in enumerate(SEEDS)
        ]
    head = {"task": task, **asdict(TASKS[task]), "space": space}
    text = json.dumps(head)[:-1] + ', "runs": [\n' + ",\n".join(map(json.dumps, rows)) + "\n]}\n"
    (HERE / f"{task}.json").write_text(text, encoding="utf-8")


def begin() -> None:
    """Make the tables that the command line names."""
    if sys.argv[1:2] == ["--train"]:
        train(sys.argv[2:])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="*", metavar="TASK", help=f"{', '.join(TASKS)}; none = all")
    parser.add_argument("--folder", type=Path, default=Path("outputs/curves"))
    arguments = parser.parse_args()
    for task in arguments.tasks or TASKS:
        make(task, arguments.folder.resolve())


if __name__ == "__main__":
    begin()
