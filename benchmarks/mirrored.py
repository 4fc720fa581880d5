"""Speed of a run that an object store keeps, against the same run on a local disk alone.

    python tests/services/run.py --then python benchmarks/mirrored.py

AFQMC, 4 layers of width 312 with random weights, a state saved every 25 steps: 110 MB, more often than anybody would.
Runs go in turns, one at a time; what counts is train_s of result.json, the time from the first step to the last save,
and, besides, the seconds that the end of the process waits until all is there. The store's server takes its time from
the same cores, so that what is shown is worse than with a store elsewhere. Weights must be the same bytes.
"""

import argparse
import hashlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path

from table import Row, show

TARGET = 0.97
COMMAND = (
    "data=afqmc", "model=bert_tiny", "model.pretrained=null", "model.layers=4", "model.hidden_size=312",
    "model.heads=12", "model.intermediate_size=1200", "trainer.device=cpu", "trainer.batch_size=16",
    "trainer.eval_interval=0",
)  # fmt: skip


def run(folder: Path, steps: int, save_every: int, mirror: str | None) -> tuple[float, float, str]:
    """Return seconds of training and of the whole process, and the digest of the last weights."""
    kept = [f"mirror={mirror}"] if mirror else []
    began_s = time.monotonic()
    done = subprocess.run(
        [
            sys.executable, "-m", "nlu.train", *COMMAND, f"trainer.max_duration={steps}st",
            f"trainer.save_interval={save_every}st", f"hydra.run.dir={folder}", *kept,
        ],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    whole_s = time.monotonic() - began_s
    if done.returncode:
        sys.exit(done.stderr)
    weights = (folder / "checkpoints" / "last" / "model.safetensors").read_bytes()
    train_s = json.loads((folder / "result.json").read_text())["train_s"]
    return train_s, whole_s, hashlib.sha256(weights).hexdigest()


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
    found: dict[bool, list[tuple[float, float, str]]] = {True: [], False: []}
    with tempfile.TemporaryDirectory() as name:
        for turn in range(arguments.turns):
            for is_kept in (False, True):
                mirror = f"{arguments.mirror}/mirrored-{uuid.uuid4().hex}" if is_kept else None
                folder = Path(name) / f"{turn}-{is_kept}"
                found[is_kept].append(run(folder, arguments.steps, arguments.save_every, mirror))
    if len({weights for turns in found.values() for _, _, weights in turns}) > 1:
        sys.exit("the weights of the runs differ")
    local, kept = (statistics.median(train_s for train_s, _, _ in found[is_kept]) for is_kept in (False, True))
    waits = [
        (with_it[1] - with_it[0]) - (without[1] - without[0])
        for with_it, without in zip(found[True], found[False], strict=True)
    ]
    row = Row(
        f"training kept in a store, a save every {arguments.save_every} steps", "a local disk alone", "s", local, kept,
        TARGET, lower_is_better=True,
    )  # fmt: skip
    show([row])
    print(f"the end waits {statistics.median(waits):.1f} s longer; weights are the same bytes")


if __name__ == "__main__":
    main()
