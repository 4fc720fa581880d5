"""Peak memory by number of rows, of preprocessing, training, scoring and predicting: what grows, and by how much.

    python benchmarks/memory.py --rows 1000000 3000000
    python benchmarks/memory.py --rows 200000 600000 --what score --tasks tag
    python benchmarks/memory.py --rows 1000000 10000000 --what preprocess train --tasks mlm

Writes synthetic rows of 4 to 40 words to a temporary folder and runs our commands on them, each in a process of its
own: `nlu.preprocess` with an empty cache, then `nlu.train` for 20 steps on what that left, then `nlu.train` for one
step on a few rows, which scores all rows as dev set and keeps their predictions, then `nlu.predict` from a file of all
rows to a new one. Rows of the task mlm are lines of a corpus, which has documents of ten lines. The peak resident set
of each process is printed, and how much of it was anonymous: the rest are pages of files (libraries, the store), which
the system takes back when it needs them.
"""

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from table import Row

KINDS = ("preprocess", "train", "score", "predict")
TASKS = ("classify", "tag", "mlm")
TINY = (
    "model=bert_tiny", "model.hidden_size=8", "model.heads=1", "model.layers=1", "model.intermediate_size=8",
    "model.max_positions=64", "data.max_len=64", "trainer.device=cpu", "trainer.batch_size=256",
)  # fmt: skip
"""A model that is hardly there, so that a million rows are scored in minutes."""
TYPES = ("person", "place", "work")
ROWS_TO_TRAIN = 2_000
"""when it is scoring that is measured"""
LEAST_S = 0.05


@dataclass(frozen=True)
class Measured:
    """One process."""

    peak_mb: float
    anonymous_mb: float
    seconds: float


def write_rows(path: Path, rows: int, task: str, seed: int = 0) -> None:
    """Write rows from a vocabulary of 5,000 words: text and label, words and their tags, or lines of a corpus."""
    rng = random.Random(seed)
    words = [f"word{number}" for number in range(5_000)]
    with path.open("w") as file:
        for number in range(rows):
            chosen = rng.choices(words, k=rng.randint(4, 40))
            if task == "classify":
                file.write(f"{' '.join(chosen)}\t{rng.randrange(4)}\n")
                continue
            if task == "mlm":
                file.write(f"{' '.join(chosen)}\n" + "\n" * (number % 10 == 9))
                continue
            tags = ["O"] * len(chosen)
            first, kind = rng.randrange(len(chosen)), rng.choice(TYPES)
            tags[first : first + 2] = [f"B-{kind}", f"I-{kind}"][: len(chosen) - first]
            lines = (f"{word} {tag}\n" for word, tag in zip(chosen, tags, strict=True))
            file.write("".join(lines) + "\n")


def suffix(task: str) -> str:
    return {"classify": "tsv", "tag": "conll", "mlm": "txt"}[task]


def overrides(task: str) -> list[str]:
    """Return what all commands of a task have in common."""
    own = {
        "classify": ["task=classify", "data=files", "data.fields={text: 0, label: 1}", "data.header=false"],
        "tag": ["task=tag", "data=files", "data.format=conll", "data.fields={tokens: 0, tags: 1}"],
        "mlm": ["task=mlm", "data=corpus"],
    }
    return [*TINY, *own[task]]


def run(module: str, arguments: list[str], cache: Path) -> Measured:
    """Run a command to its end; exits where it fails."""
    environment = {**os.environ, "NLU_CACHE": str(cache)}
    with tempfile.TemporaryFile() as said:
        began_s = time.monotonic()
        command = [sys.executable, "-m", module, *arguments]
        process = subprocess.Popen(command, env=environment, stdout=said, stderr=said)
        anonymous_kb = 0
        while True:
            # wait4 returns the usage of this child only; RUSAGE_CHILDREN would give the largest child so far.
            pid, status, usage = os.wait4(process.pid, os.WNOHANG)
            if pid:
                break
            # The kernel keeps a peak of all resident memory only, so the anonymous part is sampled while the process
            # runs.
            anonymous_kb = max(anonymous_kb, anonymous(process.pid))
            time.sleep(LEAST_S)
        # The child is already reaped, and Popen would otherwise wait for it again.
        process.returncode = os.waitstatus_to_exitcode(status)
        if status:
            said.seek(0)
            sys.exit(f"{module} {' '.join(arguments)} failed:\n{said.read().decode(errors='replace')[-3000:]}")
    return Measured(usage.ru_maxrss / 1024, anonymous_kb / 1024, time.monotonic() - began_s)


def anonymous(pid: int) -> int:
    """Return the resident memory of a process, in kB, that no file stands behind; 0 where the system does not say."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("RssAnon:")), 0)


def measure_rows(folder: Path, rows: int, task: str, kinds: list[str]) -> dict[str, Measured]:
    """Measure each kind with so many rows."""
    found: dict[str, Measured] = {}
    data, few = folder / f"rows.{suffix(task)}", folder / f"few.{suffix(task)}"
    write_rows(data, rows, task)
    if "preprocess" in kinds or "train" in kinds:
        many = [*overrides(task), f"data.train={data}", "data.dev_fraction=0.01"]
        found["preprocess"] = run("nlu.preprocess", many, folder / "cache")
        if "train" in kinds:
            more = ["trainer.max_duration=20st", "trainer.eval_interval=0", f"hydra.run.dir={folder}/trained"]
            found["train"] = run("nlu.train", [*many, *more], folder / "cache")
    if "score" in kinds:
        write_rows(few, ROWS_TO_TRAIN, task, seed=1)
        scored = [*overrides(task), f"data.train={few}", f"data.dev={data}"]
        run("nlu.preprocess", scored, folder / "cache")
        more = ["trainer.max_duration=1st", "trainer.eval_interval=0", f"hydra.run.dir={folder}/scored"]
        found["score"] = run("nlu.train", [*scored, *more], folder / "cache")
    if "predict" in kinds:
        write_rows(few, ROWS_TO_TRAIN, task, seed=1)
        own = [*overrides(task), f"data.train={few}", "trainer.max_duration=1st", f"hydra.run.dir={folder}/run"]
        run("nlu.train", own, folder / "cache")
        asked = [f"run={folder}/run", f"input={data}", f"output={folder}/out.{suffix(task)}", "device=cpu"]
        found["predict"] = run("nlu.predict", asked, folder / "cache")
    return {kind: found[kind] for kind in kinds}


def compare(task: str, sizes: list[int], kinds: list[str]) -> list[Row]:
    """Measure one task with all numbers of rows; the rows compare the last with the first."""
    by_size = {}
    for rows in sizes:
        with tempfile.TemporaryDirectory() as name:
            by_size[rows] = measure_rows(Path(name), rows, task, kinds)
        for kind, one in by_size[rows].items():
            print(
                f"{kind}, {task}, {rows:,} rows: peak {one.peak_mb:,.0f} MB, {one.anonymous_mb:,.0f} MB of it "
                f"anonymous, {one.seconds:.0f} s, {rows / one.seconds:,.0f} rows/s", flush=True,
            )  # fmt: skip
    if len(sizes) == 1:
        return []
    first, last = sizes[0], sizes[-1]
    table = []
    for kind in kinds:
        before, after = by_size[first][kind], by_size[last][kind]
        growth = (after.anonymous_mb - before.anonymous_mb) / (last - first) * 1e6
        print(f"{kind}, {task}: {growth:.0f} MB of anonymous memory more for each million rows", flush=True)
        claim = f"peak memory: {kind}, {task}, {last:,} rows"
        table.append(Row(claim, f"ours with {first:,} rows", "MB", before.peak_mb, after.peak_mb, lower_is_better=True))
    return table


def measure(*words: str) -> list[Row]:
    """Measure what is asked for. `words`: as on the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[1_000_000, 3_000_000])
    parser.add_argument("--what", choices=KINDS, nargs="+", default=list(KINDS))
    parser.add_argument("--tasks", choices=TASKS, nargs="+", default=["classify", "tag"])
    arguments = parser.parse_args(words)
    if "mlm" in arguments.tasks and "predict" in arguments.what:
        parser.error("a run of task=mlm predicts no rows; give --what preprocess train score")
    return [row for task in arguments.tasks for row in compare(task, arguments.rows, arguments.what)]


if __name__ == "__main__":
    measure(*sys.argv[1:])
