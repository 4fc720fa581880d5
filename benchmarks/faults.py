"""Let something break under a run, and print a table: what the user reads, and whether anything was lost.

    python benchmarks/faults.py
    python benchmarks/faults.py --only disk rank
    python benchmarks/faults.py --limit-s 1500        # on a busy machine, where a start takes minutes
    python benchmarks/faults.py --bad-inputs 200

Each fault meets a real run of `nlu.train`. The run must end with one sentence instead of a traceback (or live through
the fault), and the same command must then give the bytes of a run that met no fault. Full and read-only disks are real
mounts in a namespace of the kernel, for which this needs `unshare -Urm`. With `--bad-inputs`, so many generated
mistakes are given to all commands; each must be refused with one message and status 2.
"""

import argparse
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bad_inputs import generated
from kill import digests
from tiny_run import overrides, write_data

HUNG = 124
"""the status of a command that has not ended in time"""
SITE = """
import errno, os, time
if jump := float(os.environ.get("CLOCK_JUMP_S", 0)):
    began, real = time.monotonic(), time.time
    time.time = lambda: real() + (jump if time.monotonic() - began > 4 else 0.0)
if os.environ.get("QUOTA_USED_UP"):
    def fsync(descriptor):
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))
    os.fsync = fsync
"""
"""a sitecustomize.py that lets the clock of a process jump four seconds after its start, or reports a quota that is
used up as NFS does: when a file is written to the disk"""


@dataclass
class Outcome:
    """How a command has ended."""

    status: int
    said: str

    @property
    def sentence(self) -> str:
        """The message for the user, on one line."""
        lines = [line for line in self.said.splitlines() if line.strip()]
        found = [line for line in lines if "nlu: error" in line or "error:" in line.lower()] or lines[-1:] or [""]
        return re.sub(r"\s+", " ", found[0].replace("nlu: error: ", ""))[:300]

    @property
    def has_traceback(self) -> bool:
        return "Traceback" in self.said


class Bench:
    """Runs that meet a fault and are compared with one that does not."""

    def __init__(self, folder: Path, limit_s: float):
        """`limit_s`: a command that takes longer hangs."""
        self.folder, self.limit_s = folder, limit_s
        self.data = folder / "data"
        self.data.mkdir()
        write_data(self.data)
        self.environment = {**os.environ, "NLU_CACHE": str(folder / "cache"), "OMP_NUM_THREADS": "1"}
        self.whole: dict[int, dict[str, str]] = {}

    def command(self, run_dir: Path, *own: str, devices: int = 1) -> list[str]:
        return [
            sys.executable, "-m", "nlu.train", *overrides(self.data), "trainer.max_duration=40st",
            "trainer.eval_interval=10st", "trainer.save_interval=2st", "trainer.log_interval=5st",
            "trainer.keep_best=2", f"trainer.devices={devices}", "resume=auto", f"hydra.run.dir={run_dir}", *own,
        ]  # fmt: skip

    def run(self, command: Sequence[str], **environment: str) -> Outcome:
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=self.limit_s, env={**self.environment, **environment},
                stdin=subprocess.DEVNULL, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            said = bytes(error.stderr or b"").decode(errors="replace")
            return Outcome(HUNG, f"error: it has not ended after {self.limit_s:.0f} s\n{said}")
        return Outcome(done.returncode, done.stderr)

    def expected(self, devices: int = 1) -> dict[str, str]:
        """The digests of a run without a fault."""
        if devices not in self.whole:
            run_dir = self.folder / f"whole-{devices}"
            assert self.run(self.command(run_dir, devices=devices)).status == 0
            self.whole[devices] = digests(run_dir)
        return self.whole[devices]

    def half(self, run_dir: Path, devices: int = 1) -> Path:
        """A run that was stopped in the middle."""
        assert self.run(self.command(run_dir, "trainer.stop_after=20st", devices=devices)).status == 0
        return run_dir

    def is_same(self, run_dir: Path, devices: int = 1) -> bool:
        """Continue a run without the fault; returns whether it has the bytes of one that never met it."""
        again = self.run(self.command(run_dir, devices=devices))
        # Cut off on a busy machine, it has neither a result nor all of its files.
        assert again.status != HUNG, f"the run without the fault has not ended after {self.limit_s:.0f} s"
        return again.status == 0 and digests(run_dir) == self.expected(devices)


Case = Callable[[Bench, Path], tuple[Outcome, bool]]
CASES: dict[str, Case] = {}


def case(name: str) -> Callable[[Case], Case]:
    def keep(work: Case) -> Case:
        CASES[name] = work
        return work

    return keep


def mounted(bench: Bench, run_dir: Path, options: str, then: str) -> tuple[Outcome, bool]:
    """Run with the run folder on a file system with these options; it is remounted with `then`, and the run goes on."""
    disk, copy = run_dir.parent / "disk", run_dir.parent / "copy"
    disk.mkdir()
    command = " ".join(map(repr, bench.command(disk / "run")))
    script = f"""
        mount -t tmpfs -o size=200m none {disk}
        if [ -d {run_dir} ]; then cp -r {run_dir} {disk}/run; fi
        mount -o remount,{options} {disk}
        {command}; echo "STATUS $?" >&2
        mount -o remount,{then} {disk}
        {command} 2>{copy}.err; echo "AGAIN $?" >&2
        cp -r {disk}/run {copy}
    """
    done = bench.run(["unshare", "-Urm", "bash", "-c", script])
    if done.status == HUNG:
        return done, False
    first, _, rest = done.said.partition("STATUS ")
    outcome = Outcome(int(rest.split()[0]), first)
    return outcome, "AGAIN 0" in rest and digests(copy) == bench.expected()


@case("disk: full while a state is saved")
def full_disk(bench: Bench, run_dir: Path) -> tuple[Outcome, bool]:
    bench.half(run_dir)
    used_kb = sum(path.stat().st_size for path in run_dir.rglob("*") if path.is_file()) // 1024 + 300
    return mounted(bench, run_dir, f"size={used_kb}k", "size=200m")


@case("disk: full before the first save")
def full_at_first(bench: Bench, run_dir: Path) -> tuple[Outcome, bool]:
    return mounted(bench, run_dir, "size=200k", "size=200m")


@case("disk: read-only")
def read_only(bench: Bench, run_dir: Path) -> tuple[Outcome, bool]:
    bench.half(run_dir)
    return mounted(bench, run_dir, "ro", "rw")


def damaged(pattern: str, damage: Callable[[Path], None], *, is_kept: bool = True) -> Case:
    """A file of a run, or of the cache, that something else has changed; it is put back afterwards."""

    def work(bench: Bench, run_dir: Path) -> tuple[Outcome, bool]:
        bench.half(run_dir)
        root = bench.folder if pattern.startswith("cache/") else run_dir
        path = sorted(path for path in root.glob(pattern) if path.is_file())[0]
        kept = path.read_bytes()
        damage(path)
        outcome = bench.run(bench.command(run_dir))
        if outcome.status and is_kept:
            path.write_bytes(kept)
        return outcome, bench.is_same(run_dir)

    return work


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)


def swap(path: Path) -> None:
    """Exchange a file with its neighbor of the same kind."""
    other = path.with_name("average.safetensors")
    path.write_bytes(other.read_bytes())


CASES["checkpoint: model cut"] = damaged("checkpoints/last/model.safetensors", cut)
CASES["checkpoint: a bit of the optimizer flipped"] = damaged("checkpoints/last/optimizer.safetensors", flip)
CASES["checkpoint: model swapped with the average"] = damaged("checkpoints/last/model.safetensors", swap)
CASES["checkpoint: state.json cut"] = damaged("checkpoints/last/state.json", cut)
CASES["run folder: config.yaml cut"] = damaged("config.yaml", cut)
CASES["run folder: last line of train.tsv cut"] = damaged(
    "train.tsv", lambda path: path.write_bytes(path.read_bytes()[:-7])
)
CASES["data store: tokens cut"] = damaged("cache/stores/*/train/*", cut)
CASES["data store: a byte changed"] = damaged("cache/stores/*/train/*", flip)


def signalled(number: signal.Signals, *own: str, back_s: float | None = None) -> Case:
    """Rank 1 of 2 gets a signal in the middle of the run; after `back_s` it continues."""

    def work(bench: Bench, run_dir: Path) -> tuple[Outcome, bool]:
        log = run_dir.parent / "log"
        with log.open("w") as output:
            process = subprocess.Popen(
                bench.command(run_dir, *own, devices=2), stderr=output, stdout=subprocess.DEVNULL,
                stdin=subprocess.DEVNULL, env=bench.environment, start_new_session=True,
            )  # fmt: skip
            until(lambda: (run_dir / "checkpoints/last/state.json").exists(), bench.limit_s)
            rank = worker_of(process.pid, 1)
            os.kill(rank, number)
            if back_s is not None:
                time.sleep(back_s)
                os.kill(rank, signal.SIGCONT)
            try:
                status = process.wait(timeout=bench.limit_s)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                status = HUNG
        return Outcome(status, log.read_text()), bench.is_same(run_dir, devices=2)

    return work


def until(is_there: Callable[[], bool], limit_s: float) -> None:
    deadline_s = time.monotonic() + limit_s
    while not is_there():
        assert time.monotonic() < deadline_s, "the run does not begin"
        time.sleep(0.05)


def worker_of(parent: int, rank: int) -> int:
    """Return the process of a rank: the command starts them in their order."""
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return [int(pid) for pid in children if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()][rank]


CASES["rank: killed"] = signalled(signal.SIGKILL)
CASES["rank: hangs"] = signalled(signal.SIGSTOP, "trainer.timeout_min=0.2")
CASES["rank: slow for 5 s"] = signalled(signal.SIGSTOP, back_s=5.0)


def surrounded(*, is_begun: bool = False, **environment: str) -> Case:
    """A run in an unusual environment, from its first step or from the middle on."""

    def work(bench: Bench, run_dir: Path) -> tuple[Outcome, bool]:
        if is_begun:
            bench.half(run_dir)
        (run_dir.parent / "sitecustomize.py").write_text(SITE)
        added = {name: value.format(folder=run_dir.parent) for name, value in environment.items()}
        outcome = bench.run(bench.command(run_dir), **added)
        return outcome, bench.is_same(run_dir)

    return work


CASES["disk: quota used up"] = surrounded(is_begun=True, PYTHONPATH="{folder}", QUOTA_USED_UP="1")
CASES["clock: an hour forward"] = surrounded(PYTHONPATH="{folder}", CLOCK_JUMP_S="3600")
CASES["clock: a day back"] = surrounded(PYTHONPATH="{folder}", CLOCK_JUMP_S="-86400")
CASES["HOME is gone"] = surrounded(HOME="/proc/nowhere", NLU_CACHE="")
CASES["the cache cannot be written"] = surrounded(NLU_CACHE="/proc/nowhere")
CASES["TMPDIR is gone"] = surrounded(TMPDIR="/proc/nowhere")


def table(bench: Bench, names: Sequence[str]) -> Iterator[str]:
    """Yield the lines of the table as its cases end."""
    yield "| fault | status | what the user reads | lost |"
    yield "|---|---|---|---|"
    for number, name in enumerate(names):
        folder = bench.folder / str(number)
        folder.mkdir()
        try:
            outcome, is_same = CASES[name](bench, folder / "run")
        except Exception as error:  # a case that could not be tried must not hide the others
            yield f"| {name} | not tried | {type(error).__name__}: {error} | |"
            continue
        sentence = outcome.sentence if outcome.status else "(the run continues)"
        sentence = sentence.replace(str(folder), "").replace(str(bench.folder), "").replace("|", "\\|")
        wrong = " with a traceback" if outcome.has_traceback else ""
        yield f"| {name} | {outcome.status}{wrong} | {sentence} | {'nothing' if is_same else 'BYTES DIFFER'} |"


def bad_inputs(bench: Bench, count: int, seed: int) -> Iterator[str]:
    """Yield a line for each generated mistake that is not refused as it should be, and a summary."""
    rng = random.Random(seed)
    run_dir = bench.folder / "trained"
    assert bench.run(bench.command(run_dir)).status == 0
    wrong = 0
    for number, (what, arguments) in enumerate(generated(rng, bench.data, run_dir, bench.folder / "mistakes", count)):
        outcome = bench.run([sys.executable, "-m", *arguments])
        if outcome.status != 2 or outcome.has_traceback or "nlu: error" not in outcome.said:
            wrong += 1
            yield f"{number} {what}: status {outcome.status}: {outcome.sentence}\n    {' '.join(arguments)}"
    yield f"{count - wrong} of {count} generated mistakes were refused with a message and status 2"


def main() -> None:
    """Print the table, or what is wrong with generated mistakes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", help="cases whose names contain one of these")
    parser.add_argument("--bad-inputs", type=int, default=0, metavar="N", help="try N generated mistakes instead")
    parser.add_argument("--limit-s", type=float, default=240.0, help="a command that takes longer hangs")
    parser.add_argument("--seed", type=int, default=0, help="of the mistakes")
    arguments = parser.parse_args()
    names = [name for name in CASES if not arguments.only or any(part in name for part in arguments.only)]
    folder = Path(tempfile.mkdtemp())
    try:
        bench = Bench(folder, arguments.limit_s)
        lines = bad_inputs(bench, arguments.bad_inputs, arguments.seed) if arguments.bad_inputs else table(bench, names)
        for line in lines:
            print(line, flush=True)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
