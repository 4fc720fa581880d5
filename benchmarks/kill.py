"""Kill a run at random instants, continue it, and compare its bytes with a run that was never broken.

    python benchmarks/kill.py --kills 100
    python benchmarks/kill.py --kills 10 --accumulation 4 --devices 2
    python benchmarks/kill.py --kills 10 --override method=freelb
    python benchmarks/kill.py --kills 10 --kind tag --devices 2 --override head=crf
    python benchmarks/kill.py --kills 20 --kind mlm
    python benchmarks/kill.py --kills 20 --teacher --override method=tinybert
    python tests/services/run.py --then python benchmarks/kill.py --kills 20 --mirror
    python tests/services/run.py --then python benchmarks/kill.py --kills 20 --mirror --faults 0.1

Each cycle starts a run in a fresh folder, sends SIGKILL after a random time (to the whole process group, or to the
parent only), runs the same command again, and so on until the run ends; then the weights, the optimizer, the best
checkpoint and the tables must equal those of the unbroken run, byte for byte (speed columns aside). A state is saved
after every step, so that kills fall into saves as often as into steps.

With `--mirror` each run is kept in an object store, and after half of the kills its folder is deleted, as if it went on
on another machine; with `--faults 0.1` a tenth of all requests to the store meets a fault of
tests/services/faulty_proxy.py.
"""

import argparse
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tiny_run import KINDS, overrides, write_data

ROWS = 203


def command(data: Path, kind: str, run_dir: Path, own: list[str]) -> list[str]:
    """Return the command whose runs are compared."""
    return [
        sys.executable, "-m", "nlu.train", *overrides(data, kind), "trainer.max_duration=60st",
        "trainer.eval_interval=7st", "trainer.save_interval=1st", "trainer.log_interval=3st", "trainer.keep_best=2",
        "trainer.ema_decay=0.9", "optimizer.lr=3e-3", "resume=auto", f"hydra.run.dir={run_dir}", *own,
    ]  # fmt: skip


def digests(run_dir: Path) -> dict[str, str]:
    """Return a digest of everything in a finished run that must not depend on whether it was broken."""
    found = {}
    for name in ("last/model", "last/optimizer", "last/average", "best-1/model", "best-2/model"):
        found[name] = hashlib.sha256((run_dir / "checkpoints" / f"{name}.safetensors").read_bytes()).hexdigest()
    found["predictions"] = hashlib.sha256((run_dir / "predictions" / "dev.jsonl").read_bytes()).hexdigest()
    found["valid.tsv"] = hashlib.sha256((run_dir / "valid.tsv").read_bytes()).hexdigest()
    columns = zip(*(line.split("\t") for line in (run_dir / "train.tsv").read_text().splitlines()), strict=True)
    # Speeds, times and memory are the only numbers of a run that depend on the machine.
    rows = [column for column in columns if not column[0].endswith(("_s", "_mb"))]
    found["train.tsv"] = hashlib.sha256(json.dumps(rows).encode()).hexdigest()
    result = json.loads((run_dir / "result.json").read_text())
    found["result.json"] = json.dumps([result[key] for key in ("metrics", "best", "last", "steps", "examples")])
    return found


def run_until_killed(arguments: list[str], after_s: float, whole_group: bool, log: Path) -> bool:
    """Start the command and kill it after a while; returns whether it was killed before it ended by itself."""
    with log.open("ab") as output:
        process = subprocess.Popen(arguments, stdout=output, stderr=output, start_new_session=True)
    try:
        status = process.wait(timeout=after_s)
    except subprocess.TimeoutExpired:
        if whole_group:
            os.killpg(process.pid, signal.SIGKILL)
        else:
            # The parent only: its ranks must notice that and end by themselves.
            process.kill()
        process.wait()
        return True
    if status != 0:
        sys.exit(f"the run failed with status {status}; its output ends:\n{log.read_text()[-2000:]}")
    return False


def compare(
    data: Path, kind: str, folder: Path, own: list[str], kills_wanted: int, rng: random.Random, mirror: str | None
) -> int:
    """Kill and continue until `kills_wanted` kills were survived; returns the number of cycles compared."""
    log = folder / "log"
    whole = folder / "whole"
    began_s = time.monotonic()
    run_until_killed(command(data, kind, whole, own), 600, True, log)
    whole_s = time.monotonic() - began_s
    expected = digests(whole)
    kills = cycles = moves = 0
    while kills < kills_wanted:
        run_dir = folder / "broken"
        kept = [f"mirror={mirror}/{folder.parent.name}-{folder.name}-{cycles}"] if mirror else []
        killed = True
        while killed:
            # From a fifth on, since earlier kills mostly fall into imports; beyond the length of a run, so that the
            # very end is hit too.
            after_s = rng.uniform(0.2, 1.05) * whole_s if kills < kills_wanted else 600
            is_fresh, began_s = not run_dir.exists(), time.monotonic()
            killed = run_until_killed(command(data, kind, run_dir, [*own, *kept]), after_s, rng.random() < 0.5, log)
            kills += killed
            if is_fresh and not killed:
                # The first run may have compiled what later ones find in a cache.
                whole_s = min(whole_s, time.monotonic() - began_s)
            if killed and kept and rng.random() < 0.5 and run_dir.exists():
                shutil.rmtree(run_dir)
                moves += 1
        cycles += 1
        if differing := [name for name, digest in digests(run_dir).items() if digest != expected[name]]:
            sys.exit(f"{kind} {' '.join(own)}, cycle {cycles}: these differ: {differing}")
        shutil.rmtree(run_dir)
    print(
        f"{kind} {' '.join(own)}: {kills} kills in {cycles} runs, all bytes equal to the "
        f"unbroken run ({whole_s:.1f} s)" + (f"; {moves} times from the mirror only" if mirror else ""),
        flush=True,
    )
    return kills


def options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100, help="kills in all, shared among the combinations")
    parser.add_argument("--accumulation", type=int, nargs="*", default=[1, 4])
    parser.add_argument("--devices", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--kind", choices=list(KINDS), default="classify", help="of task; its data are written")
    parser.add_argument("--teacher", action="store_true", help="train a teacher first, which method.teacher names")
    parser.add_argument("--override", nargs="*", default=[], help="further overrides of the runs")
    parser.add_argument("--seed", type=int, default=0, help="of the instants")
    parser.add_argument(
        "--mirror",
        nargs="?",
        const=os.environ.get("NLU_TEST_S3"),
        help="folder of a bucket; without a value: that of the tests",
    )
    parser.add_argument("--faults", type=float, default=0.0, help="share of the requests to the mirror's store")
    return parser


def main() -> None:
    """Run the cycles for every asked-for combination."""
    arguments = options().parse_args()
    with faults(arguments.faults, arguments.seed):
        run_all(arguments)


@contextmanager
def faults(share: float, seed: int) -> Iterator[None]:
    """Have the runs meet faults on their way to the store, and tell how many."""
    if not share:
        yield
        return
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "services"))
    from faulty_proxy import FaultyProxy, at_random

    with FaultyProxy.before(os.environ["AWS_ENDPOINT_URL"], at_random(share, seed)) as proxy:
        os.environ["AWS_ENDPOINT_URL"] = proxy.url
        yield
        met = ", ".join(f"{kind} {count}" for kind, count in sorted(proxy.counts.items()))
        print(f"faults in {proxy.requests:,} requests: {met}")


def run_all(arguments: argparse.Namespace) -> None:
    """Run the cycles of every combination."""
    combinations = [(accumulation, devices) for accumulation in arguments.accumulation for devices in arguments.devices]
    rng = random.Random(arguments.seed)
    total = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_data(folder, train_rows=ROWS, kind=arguments.kind)
        taught = []
        if arguments.teacher:
            taught = [f"method.teacher={folder}/teacher"]
            run_until_killed(command(folder, arguments.kind, folder / "teacher", []), 600, True, folder / "log")
        for number, (accumulation, devices) in enumerate(combinations):
            # Rounded up, from what is left: a cycle may survive more kills than its share.
            share = -(-(arguments.kills - total) // (len(combinations) - number))
            own = folder / str(number)
            own.mkdir()
            keys = {"trainer.accumulation": accumulation, "trainer.devices": devices, "precision": arguments.precision}
            written = [*(f"{key}={value}" for key, value in keys.items()), *arguments.override, *taught]
            total += compare(folder, arguments.kind, own, written, share, rng, arguments.mirror)
    print(f"{total} kills survived")


if __name__ == "__main__":
    main()
