"""One nlu.serve with 16 LoRA runs of one encoder, against 16 nlu.serve with one run each: throughput and memory.

    python benchmarks/many_runs.py
    python benchmarks/many_runs.py --runs FOLDER     runs that an earlier call has trained there

The runs are of SimBERT-tiny (or --model), trained for a few steps on 200 rows of TNEWS, AFQMC, LCQMC and ChnSentiCorp.
A request holds one row of one run, drawn at random; clients keep their connections and send the next request when
the last one is answered. Both sides get the same stream in alternating turns, on the cores of the clients. Every answer
must be what `nlu.load(...).predict` gives that row by itself, to the bit. On a machine with other work, requests for a
second of the servers' processors compare where those for a second of the clock do not. The 16 processes are forked from
one that has imported everything. Memory is that of the process with 16 runs against one with one run.
"""

import asyncio
import json
import os
import random
import resource
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from afqmc import built, composed, options, scratch_folder, subset
from serve_load import Client, answers, expected_of, free_port
from table import Row, show

SETS = {"tnews": "classify", "afqmc": "match", "lcqmc": "match", "chnsenticorp": "classify"}
SEEDS = 4
ROWS = 8
"""distinct rows of each run"""
TRAINING = (
    "adapter=lora", "optimizer.lr=1e-3", "data.max_rows=200", "trainer.max_duration=8st", "trainer.batch_size=16",
    "trainer.device=cpu",
)  # fmt: skip
Request = tuple[str, bytes, Any]
"""a run, the body of a request for it, and the right answer"""


def train(folder: Path, model: str) -> dict[str, Path]:
    """Train the runs that the folder lacks; returns all of them by name."""
    for data, task in SETS.items():
        if not (folder / f"{data}-{SEEDS - 1}" / "result.json").exists():
            seeds = ",".join(map(str, range(SEEDS)))
            command = [sys.executable, "-m", "nlu.train", "-m", f"model={model}", f"data={data}", f"task={task}"]
            where = [f"seed={seeds}", f"hydra.sweep.dir={folder}", f"hydra.sweep.subdir={data}-${{seed}}"]
            subprocess.run([*command, *TRAINING, *where], check=True, stdout=subprocess.DEVNULL)
    return {f"{data}-{seed}": folder / f"{data}-{seed}" for data in SETS for seed in range(SEEDS)}


def requests_of(runs: dict[str, Path], model: str, threads: int) -> list[Request]:
    """Return requests for all runs with the right answers, some rows of the set of each."""
    found: list[Request] = []
    for data, task in SETS.items():
        config = composed(f"model={model}", f"data={data}", f"task={task}", *TRAINING)
        texts = [dict(row) for row in subset(built(config).store.sets["dev"], ROWS).texts() if row]
        for name in (name for name in runs if name.startswith(data)):
            for row, right in zip(texts, expected_of(runs[name], texts, threads), strict=True):
                found.append((name, json.dumps({"run": name, "rows": [row]}, ensure_ascii=False).encode(), right))
    return found


def load(
    pids: dict[int, int], ports: dict[str, int], requests: Sequence[Request], clients: int, count: int
) -> tuple[float, float]:
    """Send that many requests, drawn at random, from so many clients; returns how many a second of the clock, and a
    second of the servers' processors."""

    async def work(numbers: Iterator[int], rng: random.Random) -> None:
        connections = {port: Client(port) for port in ports.values()}
        for client in connections.values():
            await client.begin()
        for _ in numbers:
            name, body, right = rng.choice(requests)
            client = connections[ports[name]]
            try:
                answer = await client.ask(body)
            except (asyncio.IncompleteReadError, ConnectionError):
                # A server closes connections that rest for some seconds.
                await client.begin()
                answer = await client.ask(body)
            assert answer == right, (name, answer, right)
        for client in connections.values():
            client.end()

    async def all_of_them() -> None:
        numbers = iter(range(count))
        await asyncio.gather(*(work(numbers, random.Random(seed)) for seed in range(clients)))

    used_s, began_s = sum(map(processor_s, pids.values())), time.perf_counter()
    asyncio.run(all_of_them())
    return count / (time.perf_counter() - began_s), count / (sum(map(processor_s, pids.values())) - used_s)


def processor_s(pid: int) -> float:
    """Return the seconds that the processors have worked for a process."""
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def resident_mb(pid: int) -> float:
    """Return the resident memory of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize() / 1e6


@contextmanager
def serving(run_of_port: dict[int, str], threads: int) -> Iterator[dict[int, int]]:
    """Give the processes of servers by their ports, and end them."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "MKL_CBWR": "AUTO,STRICT"}
    command = [sys.executable, __file__, "--as-servers", json.dumps(run_of_port)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, start_new_session=True) as process:
        try:
            assert process.stdout is not None
            pids = {int(port): pid for port, pid in json.loads(process.stdout.readline()).items()}
            while not all(map(answers, run_of_port)):
                assert process.poll() is None, "a server has ended"
                time.sleep(0.5)
            yield pids
        finally:
            os.killpg(process.pid, signal.SIGTERM)


def serve_each(run_of_port: dict[str, str]) -> None:
    """Be a server for each run; several share the memory of what they import."""
    import nlu.serving.server  # noqa: F401
    from nlu.commands import serve

    pids = {}
    for port, run in run_of_port.items():
        if (pid := os.fork()) == 0:
            sys.argv = ["nlu.serve", f"run={run}", f"port={port}", "device=cpu"]
            serve.command()
        pids[port] = pid
    print(json.dumps(pids), flush=True)
    signal.pause()


def measure(*words: str) -> list[Row]:
    """Measure; `words` are as on the command line."""
    parser = options(__doc__)
    parser.add_argument("--model", default="simbert_tiny")
    parser.add_argument("--runs", type=Path, default=None)
    parser.add_argument("--clients", type=int, nargs="+", default=[16, 64])
    parser.add_argument("--requests", type=int, default=1500, help="of each side, each turn")
    parser.add_argument("--peer-threads", type=int, default=1, help="of each of the 16 processes")
    arguments = parser.parse_args(words)
    runs = train((arguments.runs or scratch_folder()).resolve(), arguments.model)
    requests = requests_of(runs, arguments.model, arguments.threads)
    of_all, theirs = free_port(), {name: free_port() for name in runs}
    ours, paths = dict.fromkeys(runs, of_all), list(map(str, runs.values()))
    with (
        serving({of_all: f"[{','.join(paths)}]"}, arguments.threads) as our_pids,
        serving({theirs[name]: str(run) for name, run in runs.items()}, arguments.peer_threads) as their_pids,
    ):
        sides = ((their_pids, theirs), (our_pids, ours))
        for side in sides:
            load(*side, requests, 16, 100)
        turns_of = {
            clients: [[load(*side, requests, clients, arguments.requests) for side in sides]
                      for _ in range(arguments.turns)]
            for clients in arguments.clients
        }  # fmt: skip
        used_mb = resident_mb(our_pids[of_all])
    alone = free_port()
    with serving({alone: paths[-1]}, arguments.threads) as pids:
        # The run with the longest texts.
        own = [one for one in requests if one[0] == list(runs)[-1]]
        load(pids, dict.fromkeys(runs, alone), own, max(arguments.clients), 100)
        one_mb = resident_mb(pids[alone])
    claim, peer, found = f"serve {len(runs)} runs, {arguments.model}", f"{len(runs)} processes", []
    for clients, turns in turns_of.items():
        for unit, name in enumerate(("requests/s", "requests/s of a processor")):
            both = [statistics.median(turn[side][unit] for turn in turns) for side in (0, 1)]
            found.append(Row(f"{claim}, {clients} clients", peer, name, *both, 3.0))
    found.append(
        Row(f"{claim}, memory", "one process of one run", "MB", one_mb, used_mb, 1 / 1.2, lower_is_better=True)
    )
    show(found)
    return found


if __name__ == "__main__":
    if sys.argv[1:2] == ["--as-servers"]:
        serve_each(json.loads(sys.argv[2]))
    else:
        measure(*sys.argv[1:])
