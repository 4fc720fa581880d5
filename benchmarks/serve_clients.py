"""nlu.serve by itself: the first answer after the start, times of answers under 1, 8 and 64 clients, and reloads.

    python benchmarks/serve_clients.py
    python benchmarks/serve_clients.py --precisions fp32 int8 --requests 3000

The rows are those of serve_load.py: pairs of one to four texts a side, up to 128 tokens, one pair a request. Clients
keep their connections, send the next request when the last one is answered, and run on the same cores as the server.
Every answer must be what `nlu.load(...).predict` gives that row by itself in the same precision, to the bit.

The first answer is timed from the start of the process. For the reload, 8
clients send requests while the checkpoint is replaced by another copy again and again; the longest time of an answer is
compared with the longest without a reload. The server must count every replacement, and no request may fail.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

import options
from afqmc import scratch_folder
from inputs import announce
from predict_files import prepare
from serve_load import DISTINCT, free_port, load, texts_of

CLIENTS = (1, 8, 64)
RELOADS = 3
RELOAD_S = 0.5


def first_answer(command: list[str], port: int, body: bytes) -> tuple[subprocess.Popen[bytes], float]:
    """Start a server and ask it until it answers; return it, and the seconds until its first prediction."""
    began_s = time.perf_counter()
    process = subprocess.Popen([sys.executable, *command], stderr=subprocess.DEVNULL)
    while True:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/predict", data=body, timeout=120):
                return process, time.perf_counter() - began_s
        except OSError:
            assert process.poll() is None, "the server ended"
            time.sleep(0.01)


def reloads_of(port: int) -> float:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    return float(next(line.split()[1] for line in lines if line.startswith("nlu_reloads_total")))


def replace_checkpoints(run: Path, port: int, seconds: list[float]) -> None:
    """Put another copy in the place of the best checkpoint and wait until it is served, RELOADS times."""
    best, folder = run / "checkpoints" / "best-1", scratch_folder()
    for number in range(RELOADS):
        new, old = (folder / f"{name}-{number}" for name in ("new", "old"))
        shutil.copytree(best, new)
        before, began_s = reloads_of(port), time.perf_counter()
        os.rename(best, old)
        os.rename(new, best)
        while reloads_of(port) == before:
            time.sleep(0.02)
        seconds.append(time.perf_counter() - began_s)


def measure_one(precision: str, run: Path, rows: list[dict[str, str]], arguments: argparse.Namespace) -> None:
    """Print the lines of a precision."""
    import nlu

    bodies = [json.dumps({"rows": [row]}, ensure_ascii=False).encode() for row in rows]
    loaded = nlu.load(run, device="cpu", precision=precision)
    expected: list[Any] = [loaded.predict([row])[0] for row in rows]
    port = free_port()
    command = [
        "-m", "nlu.serve", f"run={run}", f"port={port}", "device=cpu", f"precision={precision}", f"reload_s={RELOAD_S}",
    ]  # fmt: skip
    process, first_s = first_answer(command, port, bodies[0])
    try:
        print(f"{precision}: first answer {first_s:.2f} s after the start of the command", flush=True)
        load(port, bodies, expected, 8, 200)
        for clients in CLIENTS:
            count = max(100, arguments.requests // (10 if clients == 1 else 1))
            turns = [load(port, bodies, expected, clients, count) for _ in range(arguments.turns)]
            per_s, p50_ms, p99_ms = (
                statistics.median(turn[key] for turn in turns) for key in ("per_s", "p50_ms", "p99_ms")
            )
            print(
                f"{precision}: {clients:3} clients {per_s:7,.0f} answers/s, p50 {p50_ms:7.2f} ms, p99 {p99_ms:7.2f} ms",
                flush=True,
            )
        quiet = load(port, bodies, expected, 8, arguments.requests)
        seconds: list[float] = []
        replacing = threading.Thread(target=replace_checkpoints, args=(run, port, seconds))
        replacing.start()
        longest_ms, answers = 0.0, 0
        while replacing.is_alive():
            longest_ms = max(longest_ms, load(port, bodies, expected, 8, 200)["max_ms"])
            answers += 200
        replacing.join()
        assert len(seconds) == RELOADS, "a checkpoint was not taken up"
        print(
            f"{precision}: {RELOADS} reloads under 8 clients, {answers:,} answers, none wrong or lost; a new one "
            f"is served after {statistics.median(seconds):.2f} s; longest answer {longest_ms:.0f} ms, without reloads "
            f"{quiet['max_ms']:.0f} ms",
            flush=True,
        )
    finally:
        process.terminate()
        process.wait()


def main(arguments: argparse.Namespace) -> None:
    """Measure each precision."""
    import torch

    announce()
    torch.set_num_threads(arguments.threads)
    run, _, path = prepare(arguments.size, 600, "fp32")
    rows = texts_of(path, DISTINCT, 4)
    for precision in arguments.precisions:
        measure_one(precision, run, rows, arguments)


def parser() -> argparse.ArgumentParser:
    out = options.parser(__doc__)
    out.add_argument("--size", default="4 x 312")
    out.add_argument("--precisions", nargs="+", default=["fp32", "bf16", "int8"])
    out.add_argument("--requests", type=int, default=1000, help="of 8 and of 64 clients, each turn")
    out.set_defaults(turns=3)
    return out


if __name__ == "__main__":
    main(parser().parse_args(sys.argv[1:]))
