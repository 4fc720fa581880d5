"""Speed of a run that an object store keeps, against the same run only on a local disk.

    python tests/services/run.py --then python benchmarks/mirrored.py

AFQMC, 4 layers of width 312 with random weights, a state saved every 25 steps: 110 MB, more often than anybody would.
Runs go in turns, one at a time; what counts is train_s of result.json, the time from the first step to the last save,
and, besides, the seconds that the end of the process waits until all is there. The store's server takes its time from
the same cores, so that what is shown is worse than with a store elsewhere; the CPU time of the run's own process tells
by how much. Weights must be the same bytes.
"""

import argparse
import hashlib
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path
from typing import NamedTuple

from table import Row, show

TARGET = 0.97
COMMAND = (
    "data=afqmc", "model=bert_tiny", "model.pretrained=null", "model.layers=4", "model.hidden_size=312",
    "model.heads=12", "model.intermediate_size=1200", "trainer.device=cpu", "trainer.batch_size=16",
    "trainer.eval_interval=0",
)  # fmt: skip


class Turn(NamedTuple):
    """What one run took."""

    train_s: float
    whole_s: float
    cpu_s: float
    """of its process only"""
    weights: str
    """digest of the last ones"""


def run(folder: Path, steps: int, save_every: int, mirror: str | None) -> Turn:
    """Train once, to the end."""
    kept = [f"mirror={mirror}"] if mirror else []
    began_s, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [
            sys.executable, "-m", "nlu.train", *COMMAND, f"trainer.max_duration={steps}st",
            f"trainer.save_interval={save_every}st", f"hydra.run.dir={folder}", *kept,
        ],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    whole_s, after = time.monotonic() - began_s, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        sys.exit(done.stderr)
    weights = (folder / "checkpoints" / "last" / "model.safetensors").read_bytes()
    train_s = json.loads((folder / "result.json").read_text())["train_s"]
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Turn(train_s, whole_s, cpu_s, hashlib.sha256(weights).hexdigest())


def main() -> None:
    """Run both sides in turns and print the ratio of their speeds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mirror", default=os.environ.get("NLU_TEST_S3"), help="folder of a bucket")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--save-every", type=int, default=25, help="steps between two saves")
    parser.add_argument("--turns", type=int, default=3)
    arguments = parser.parse_args()
    if arguments.mirror is None:
        parser.error("no --mirror, and NLU_TEST_S3 is not set: start it by tests/services/run.py --then")
    found: dict[bool, list[Turn]] = {True: [], False: []}
    with tempfile.TemporaryDirectory() as name:
        for turn in range(arguments.turns):
            for is_kept in (False, True):
                mirror = f"{arguments.mirror}/mirrored-{uuid.uuid4().hex}" if is_kept else None
                folder = Path(name) / f"{turn}-{is_kept}"
                found[is_kept].append(run(folder, arguments.steps, arguments.save_every, mirror))
    # A mirror that changed the training would make the speeds worthless.
    if len({turn.weights for turns in found.values() for turn in turns}) > 1:
        sys.exit("the weights of the runs differ")
    local, kept = (statistics.median(turn.train_s for turn in found[is_kept]) for is_kept in (False, True))
    own_local, own_kept = (statistics.median(turn.cpu_s for turn in found[is_kept]) for is_kept in (False, True))
    waits = [
        (with_it.whole_s - with_it.train_s) - (without.whole_s - without.train_s)
        for with_it, without in zip(found[True], found[False], strict=True)
    ]
    row = Row(
        f"training kept in a store, a save every {arguments.save_every} steps", "a local disk alone", "s", local, kept,
        TARGET, lower_is_better=True,
    )  # fmt: skip
    own = Row(
        "CPU time of that process, from its start to its end", "a local disk alone", "s", own_local, own_kept,
        lower_is_better=True,
    )  # fmt: skip
    show([row, own])
    print(f"the end waits {statistics.median(waits):.1f} s longer; weights are the same bytes")


if __name__ == "__main__":
    main()
