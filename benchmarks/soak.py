"""Train, search and serve at the same time for a while, and see whether memory, files or processes grow.

    python benchmarks/soak.py --minutes 10
    python benchmarks/soak.py --minutes 600 --figure soak.png

Three commands run until the time is over: a training with an evaluation every 10 steps and a save every 20, a search
of short trials, two at a time, and a server that answers requests of 4 clients. Each second the resident memory of
these processes (not of the jobs of the search, which end), their open files and their threads are read; the samples are
written beside the figure as they come. Every ten minutes and in the end, a line for each says what it began and ended
with, and its slope by least squares after the first fifth, in which caches fill.

In the end the training is stopped by SIGTERM and must be able to continue, the search must have no failed trial, and
each answer of the server must have been that of the first one for the same row.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from serve_load import _answers, free_port
from tiny_run import overrides, write_data

WARM = 0.2
"""the share of the time whose samples do not count, since caches fill"""
CLIENTS = 4
LIMIT_S = 1200.0
"""for a start or an end on a busy machine"""
LINES_S = 600
"""between two prints of the lines"""
COLUMNS = "process\tseconds\tresident_mb\tfiles\tthreads\n"


@dataclass
class Watched:
    """A process and what was read of it."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path
    seconds: list[float] = field(default_factory=list)
    resident_mb: list[float] = field(default_factory=list)
    files: list[int] = field(default_factory=list)
    threads: list[int] = field(default_factory=list)

    def sample(self, at_s: float) -> None:
        folder = Path(f"/proc/{self.process.pid}")
        with suppress(OSError, StopIteration, IndexError, ValueError):
            fields = dict(line.split(":", 1) for line in (folder / "status").read_text().splitlines() if ":" in line)
            resident_mb = int(fields["VmRSS"].split()[0]) * 1024 / 1e6
            self.files.append(len(list((folder / "fd").iterdir())))
            self.threads.append(int(fields["Threads"]))
            self.resident_mb.append(resident_mb)
            self.seconds.append(at_s)

    def row(self) -> str:
        """The last sample, as a line of the table of samples."""
        return (
            f"{self.name}\t{self.seconds[-1]:.1f}\t{self.resident_mb[-1]:.1f}\t{self.files[-1]}\t{self.threads[-1]}\n"
        )

    def slope(self) -> float:
        """MB in an hour, after the first samples."""
        skipped = int(WARM * len(self.seconds))
        hours, resident_mb = np.array(self.seconds[skipped:]) / 3600, self.resident_mb[skipped:]
        return float(np.polyfit(hours, resident_mb, 1)[0]) if len(resident_mb) > 2 else float("nan")

    def line(self) -> str:
        skipped = int(WARM * len(self.seconds))
        began, ended = self.resident_mb[skipped], self.resident_mb[-1]
        files, threads = (f"{each[skipped]} to {each[-1]}" for each in (self.files, self.threads))
        memory = f"{began:7.1f} to {ended:7.1f} MB, {self.slope():+8.1f} MB/hour"
        return f"{self.name:9} {memory}, {files} files, {threads} threads"


class Soak:
    """The commands, in a scratch folder."""

    def __init__(self, folder: Path):
        self.folder, self.data = folder, folder / "data"
        self.data.mkdir()
        write_data(self.data)
        self.environment = {**os.environ, "OMP_NUM_THREADS": "1", "NLU_CACHE": str(folder / "cache")}
        self.run = folder / "run"

    def train(self, *own: str) -> list[str]:
        return [
            sys.executable, "-m", "nlu.train", *overrides(self.data), "trainer.eval_interval=10st",
            "trainer.save_interval=20st", "trainer.log_interval=5st", "resume=auto", *own,
        ]  # fmt: skip

    def search(self) -> list[str]:
        return [
            *self.train("trainer.max_duration=20st"), "--multirun", "hydra/sweeper=hyperband",
            "hydra/sweeper/sampler=random", "hydra/launcher=local", "hydra.sweeper.n_trials=100000",
            "hydra.sweeper.n_jobs=2", f"hydra.sweep.dir={self.folder}/search",
            "optimizer.lr=tag(log,interval(1e-4,1e-2))",
        ]  # fmt: skip

    def start(self, name: str, command: Sequence[str]) -> Watched:
        log = self.folder / f"{name}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=self.environment,
                start_new_session=True,
            )  # fmt: skip
        return Watched(name, process, log)

    def once(self, command: Sequence[str]) -> None:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=self.environment, timeout=LIMIT_S
        )
        assert done.returncode == 0, done.stderr[-2000:]


def ask(port: int, rows: list[dict[str, str]], stopped: threading.Event, wrong: list[str], count: list[int]) -> None:
    """Send the rows again and again; an answer that differs from the first one for its row, or none, is wrong."""
    first: dict[int, Any] = {}
    while not stopped.is_set():
        for place, row in enumerate(rows):
            body = json.dumps({"rows": [row]}).encode()
            request = urllib.request.Request(f"http://127.0.0.1:{port}/predict", body)  # noqa: S310
            request.add_header("Content-Type", "application/json")
            try:
                with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310
                    found = json.load(answer)
            except OSError as error:
                if not stopped.is_set():
                    wrong.append(f"row {place}: {error}")
                continue
            count[0] += 1
            if first.setdefault(place, found) != found:
                wrong.append(f"row {place}: {found} after {first[place]}")
            if stopped.is_set():
                return


def until_there(is_there: Any, watched: Watched) -> None:
    deadline_s = time.monotonic() + LIMIT_S
    while not is_there():
        assert watched.process.poll() is None, watched.log.read_text()[-2000:]
        assert time.monotonic() < deadline_s, f"{watched.name} does not begin"
        time.sleep(0.2)


def ended(watched: Watched) -> int:
    """Stop a process as a queue does; returns its status."""
    if watched.process.poll() is None:
        watched.process.send_signal(signal.SIGTERM)
    try:
        return watched.process.wait(timeout=LIMIT_S)
    finally:
        # Jobs of the search that have not ended.
        with suppress(ProcessLookupError):
            os.killpg(watched.process.pid, signal.SIGKILL)


def draw(path: Path, all_of_them: Sequence[Watched]) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.add_subplot()
    for one in all_of_them:
        axes.plot(np.array(one.seconds) / 60, one.resident_mb, label=f"{one.name}, {one.slope():+.0f} MB/hour")
    axes.set_xlabel("minutes")
    axes.set_ylabel("resident MB")
    axes.set_ylim(bottom=0)
    axes.legend()
    figure.savefig(path, dpi=120)


def soak(folder: Path, minutes: float, figure: Path) -> None:
    """Run everything for that long, and print the lines."""
    here = Soak(folder)
    here.once(here.train("trainer.max_duration=20st", f"hydra.run.dir={folder}/served"))
    port, rows = free_port(), [json.loads(line) for line in (here.data / "dev.jsonl").read_text().splitlines()]
    rows = [{"text": row["text"]} for row in rows]
    serve = [sys.executable, "-m", "nlu.serve", f"run={folder}/served", f"port={port}", "device=cpu"]
    stopped, wrong, count = threading.Event(), [], [0]
    wrong_answers: list[str] = wrong
    training = here.train("trainer.max_duration=10000000st", f"hydra.run.dir={here.run}")
    with ExitStack() as stack:
        watched = [here.start("training", training), here.start("search", here.search()), here.start("server", serve)]
        for one in watched:
            stack.callback(ended, one)
        until_there(lambda: _answers(port), watched[2])
        until_there((here.run / "checkpoints/last/state.json").exists, watched[0])
        clients = [
            threading.Thread(target=ask, args=(port, rows, stopped, wrong_answers, count)) for _ in range(CLIENTS)
        ]
        for client in clients:
            client.start()
        samples = stack.enter_context(figure.with_suffix(".tsv").open("w", buffering=1))
        samples.write(COLUMNS)
        began_s, printed = time.monotonic(), 0
        while (at_s := time.monotonic() - began_s) < 60 * minutes:
            for one in watched:
                one.sample(at_s)
                assert one.process.poll() is None, f"{one.name} ended: {one.log.read_text()[-2000:]}"
                samples.write(one.row())
            if at_s // LINES_S > printed:
                printed = at_s // LINES_S
                print(
                    f"after {at_s / 60:.0f} minutes, {count[0]:,} answers",
                    *(one.line() for one in watched),
                    sep="\n",
                    flush=True,
                )
            time.sleep(1)
        stopped.set()
        for client in clients:
            client.join()
        statuses = {one.name: ended(one) for one in watched}
    step = json.loads((here.run / "checkpoints/last/state.json").read_text())["state"]["step"]
    here.once([*training, f"trainer.stop_after={step + 10}st"])
    failed = [path for path in (folder / "search").rglob("status.json") if "failed" in path.read_text()]
    trials = sum(1 for _ in (folder / "search").glob("*/train.tsv"))
    print(f"{minutes:g} minutes; stopped with the status {statuses}; the training continues after step {step}")
    print(f"{count[0]:,} answers, {len(wrong)} wrong or missing; {trials:,} trials, {len(failed)} failed")
    for one in watched:
        print(one.line())
    for sentence in wrong[:5]:
        print(sentence)
    draw(figure, watched)
    print(f"figure: {figure}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--figure", type=Path, default=Path("soak.png"))
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="nlu-soak-") as name:
        soak(Path(name), arguments.minutes, arguments.figure)


if __name__ == "__main__":
    main()
