"""Run every speed benchmark, print its rows and write them, with the machine and the versions, to a table.

python benchmarks/all.py --write outputs/bench.md
python benchmarks/all.py --quick
python benchmarks/all.py --only train predict
"""

import argparse
import os
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import memory
import predict
import preprocess
import serve_load
import train
from table import Row, commit, description, markdown, versions

from nlu.config.errors import DataError

BENCHMARKS: dict[str, Callable[..., list[Row]]] = {
    "train": train.measure, "predict": predict.measure, "preprocess": preprocess.measure, "memory": memory.measure,
    "serve_load": serve_load.measure,
}  # fmt: skip
QUICK = (
    ("train", "--sizes", "4 x 312", "--turns", "2", "--steps", "10"),
    ("train", "--sizes", "BERT-base", "--turns", "2", "--steps", "1"),
    ("predict", "--sizes", "4 x 312", "--turns", "2", "--rows", "600", "--first-peer-only"),
    ("preprocess", "--files", "afqmc.json", "--turns", "2", "--rows", "20000"),
)
WITHOUT_THREADS = {"memory"}
FULL = {"memory": ("--rows", "200000", "600000")}
"""words of the full benchmarks, where their defaults take too long"""
NOTES = """\
Each ratio is how many times better ours is, from medians of alternating turns on one machine at one time; absolute
figures depend on the machine and on what else it does. Real tokens are tokens without padding. The machine's limit is
the faster of two matrix products (2048 x 2048 x 2048, and one of BERT-base's shape) timed between the turns in the same
precision; a share is the work of a whole encoder's weights for the real tokens, 3 x 2 x weights in training, over it.
What is compared, and how, stands at the top of each script in this folder.
"""


def document(rows: list[Row], skipped: list[str], threads: int, command: str) -> str:
    """Return the rows with what a reader needs to know of them."""
    where = f"{datetime.now(UTC):%Y-%m-%d}, on {description(threads)}; {versions()}"
    left_out = "".join(f"Skipped: {sentence}\n" for sentence in skipped)
    return f"`{command}` at {commit()}, {where}.\n\n{markdown(rows)}\n{NOTES}{left_out}"


def main() -> None:
    """Run what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the main ratios, in 3 to 6 minutes on 2 cores")
    parser.add_argument("--only", nargs="+", choices=list(BENCHMARKS), help="of the full benchmarks")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--write", metavar="FILE", type=Path, help="write the table there")
    arguments = parser.parse_args()
    jobs = QUICK if arguments.quick else tuple((name, *FULL.get(name, ())) for name in arguments.only or BENCHMARKS)
    began_s = time.monotonic()
    rows: list[Row] = []
    skipped: list[str] = []
    for name, *words in jobs:
        threads = [] if name in WITHOUT_THREADS else ["--threads", str(arguments.threads)]
        try:
            rows += BENCHMARKS[name](*words, *threads)
        except DataError as error:
            # A missing data set ends one benchmark, not the others, and the table names it.
            skipped.append(f"{' '.join([name, *words])}: {error}")
    print(f"{(time.monotonic() - began_s) / 60:.1f} minutes")
    missed = [row for row in rows if row.met is False]
    for row in missed:
        print(f"target missed: {row.claim}, against {row.peer}")
    for sentence in skipped:
        print(f"skipped: {sentence}")
    if arguments.write:
        command = "python benchmarks/" + " ".join([Path(sys.argv[0]).name, *sys.argv[1:]])
        text = document(rows, skipped, arguments.threads, command)
        arguments.write.parent.mkdir(parents=True, exist_ok=True)
        arguments.write.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
