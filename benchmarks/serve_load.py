"""Throughput of nlu.serve under 64 clients, against one request at a time and against a plain FastAPI + transformers
server with the same weights.

    python benchmarks/serve_load.py
    python benchmarks/serve_load.py --requests 100000 --no-peer

A request holds one pair of texts; lengths are mixed: those of AFQMC's pairs, and, in a second comparison, pairs of
which each side is one to four texts put together, up to 128 tokens. Clients keep their connections and send the next
request when the last one is answered; they run on the same cores as the server. Every answer of ours must be what
`nlu.load(...).predict` gives that row by itself, to the bit. The peer answers each request in a thread of its pool, and
is measured with one thread a product and with as many as ours has; the better one counts.
"""

import argparse
import asyncio
import csv
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from afqmc import built, native_config, options, scratch_folder, subset
from inputs import CHOSEN, STAND_IN, announce
from table import Row, show

CLIENTS = 64
HEAD = "POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n"
TARGETS = {"one request at a time": 3.0, "FastAPI + transformers": 1.5}
DISTINCT = 1000


def prepare(size: str, rows: int, precision: str) -> tuple[Path, Path, Path]:
    """Write a run with random weights, its export and a file of pairs; returns run, export and file."""
    from nlu.inference.exports.huggingface_export import write
    from nlu.inference.locate import locate
    from nlu.inference.trained import load_trained
    from nlu.runs.folder import write_config
    from nlu.runs.state import Best

    if os.environ.get(CHOSEN) == STAND_IN:
        # They are single texts, and the peers read pairs.
        raise SystemExit(
            "serve_load.py needs the pairs of AFQMC, which were not found; set NLU_DATA to a folder that holds AFQMC"
        )
    config = native_config(size, f"precision={precision}", "trainer.device=cpu")
    run = built(config)
    write_config(run.run_dir, config.to_config())
    # A checkpoint as an evaluation saves it, without training: values of weights do not change the cost.
    best = Best(step=0, examples=0, epoch=0.0, value=0.0, metrics={"dev": {}})
    run.checkpoints.save_best(run.stepper.model.state_dict(), [best])
    run.checkpoints.arrange([best])
    export = scratch_folder() / "export"
    export.mkdir()
    write(load_trained(locate(str(run.run_dir))), export)
    path = scratch_folder() / "pairs.csv"
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        fields = run.store.meta["fields"]
        writer.writerow([fields.get("text_a", "text_a"), fields.get("text_b", "text_b")])
        part = subset(run.store.sets["dev"], rows)
        writer.writerows([texts["text_a"], texts["text_b"]] for texts in part.texts() if texts)
    return run.run_dir, export, path


def rows_of(path: str) -> list[dict[str, str]]:
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def texts_of(path: Path, count: int, most_joined: int) -> list[dict[str, str]]:
    """Return rows of mixed lengths, each side one to `most_joined` texts of the pairs of a file."""
    rng = random.Random(0)
    pairs = [list(row.values()) for row in rows_of(str(path))]

    def joined(side: int) -> str:
        return "".join(rng.choice(pairs)[side] for _ in range(rng.randint(1, most_joined)))

    return [{"text_a": joined(0), "text_b": joined(1)} for _ in range(count)]


class Client:
    """One connection that is kept."""

    def __init__(self, port: int):
        self._port = port

    async def begin(self) -> None:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)

    async def ask(self, body: bytes) -> Any:
        self._writer.write(HEAD.format(len(body)).encode() + body)
        answer = await self._reader.readuntil(b"\r\n\r\n")
        status, length = int(answer[9:12]), 0
        for line in answer.lower().split(b"\r\n"):
            if line.startswith(b"content-length:"):
                length = int(line.partition(b":")[2])
        found = json.loads(await self._reader.readexactly(length))
        assert status == 200, (status, found)
        return found["rows"][0]

    def end(self) -> None:
        self._writer.close()


def load(
    port: int, bodies: Sequence[bytes], expected: Sequence[Any] | None, clients: int, count: int
) -> dict[str, float]:
    """Send that many requests from so many clients; returns requests a second and percentiles of their times in ms."""
    times_s: list[float] = []

    async def work(numbers: Iterator[int]) -> None:
        client = Client(port)
        await client.begin()
        for number in numbers:
            # A prime, so that neighboring requests have texts of unrelated lengths.
            place = number * 7919 % len(bodies)
            began_s = time.perf_counter()
            answer = await client.ask(bodies[place])
            times_s.append(time.perf_counter() - began_s)
            assert expected is None or answer == expected[place], (place, answer, expected[place])
        client.end()

    async def all_of_them() -> None:
        numbers = iter(range(count))
        await asyncio.gather(*(work(numbers) for _ in range(clients)))

    began_s = time.perf_counter()
    asyncio.run(all_of_them())
    assert len(times_s) == count, f"{count - len(times_s)} answers were lost"
    points = statistics.quantiles(times_s, n=100)
    return {
        "per_s": count / (time.perf_counter() - began_s),
        "p50_ms": points[49] * 1e3,
        "p99_ms": points[98] * 1e3,
        "max_ms": max(times_s) * 1e3,
    }


def peer(export: str, port: int, threads: int) -> None:
    """Be the server that is usually written with FastAPI and transformers: a request in each thread of a pool."""
    import torch
    import uvicorn
    from fastapi import Body, FastAPI
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    torch.set_num_threads(threads)
    app = FastAPI()
    tokenizer = AutoTokenizer.from_pretrained(export)
    model = AutoModelForSequenceClassification.from_pretrained(export).eval()

    @app.post("/predict")
    def predict(rows: list[dict[str, str]] = Body(embed=True)) -> dict[str, list[dict[str, str | float]]]:  # noqa: B008
        firsts, seconds = [row["text_a"] for row in rows], [row["text_b"] for row in rows]
        inputs = tokenizer(firsts, seconds, truncation=True, max_length=128, padding=True, return_tensors="pt")
        with torch.inference_mode():
            best = model(**inputs).logits.softmax(-1).max(-1)
        names = [model.config.id2label[number] for number in best.indices.tolist()]
        found = zip(names, best.values.tolist(), strict=True)
        return {"rows": [{"prediction": name, "probability": value} for name, value in found]}

    @app.get("/health")
    def health() -> dict[str, str]:
        return {"status": "ok"}

    uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning")


@contextmanager
def started(*command: str, port: int, threads: int) -> Iterator[int]:
    """Start a server, wait until it answers, and end it."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    with subprocess.Popen([sys.executable, *command], stderr=subprocess.DEVNULL, env=environment) as process:
        try:
            deadline_s = time.monotonic() + 120
            while not answers(port):
                assert process.poll() is None and time.monotonic() < deadline_s, f"{command} does not answer"
                time.sleep(0.2)
            yield port
        finally:
            process.terminate()


def answers(port: int) -> bool:
    """Return whether a server answers at a port."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1):
            return True
    except OSError:
        return False


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def expected_of(run: Path, rows: Sequence[dict[str, str]], threads: int) -> list[Any]:
    """What the run says of each row by itself, as predict would write it."""
    import torch

    import nlu

    torch.set_num_threads(threads)
    loaded = nlu.load(run, device="cpu")
    return [loaded.predict([row])[0] for row in rows]


def measure(*words: str) -> list[Row]:
    """Measure; `words` are as on the command line."""
    arguments = parser().parse_args(words)
    announce()
    run, export, path = prepare(arguments.size, 600, "fp32")
    ours_port, peer_ports = free_port(), [] if arguments.no_peer else [free_port(), free_port()]
    found = []
    with ExitStack() as stack:
        ours = ("-m", "nlu.serve", f"run={run}", f"port={ours_port}", "device=cpu")
        stack.enter_context(started(*ours, port=ours_port, threads=arguments.threads))
        for port, threads in zip(peer_ports, (1, arguments.threads), strict=False):
            its_peer = (__file__, "--as-peer", str(export), str(port), str(threads))
            stack.enter_context(started(*its_peer, port=port, threads=threads))
        for most_joined in arguments.joined:
            rows = texts_of(path, min(DISTINCT, arguments.requests), most_joined)
            expected = expected_of(run, rows, arguments.threads)
            claim = f"serve {CLIENTS} clients, {arguments.size}{', long texts' if most_joined > 1 else ''}"
            found += compare(claim, rows, expected, ours_port, peer_ports, arguments)
    show(found)
    return found


def compare(
    claim: str, rows: Sequence[dict[str, str]], expected: Sequence[Any], ours_port: int, peer_ports: Sequence[int],
    arguments: argparse.Namespace,
) -> list[Row]:  # fmt: skip
    """Measure one mixture of lengths."""
    bodies = [json.dumps({"rows": [row]}, ensure_ascii=False).encode() for row in rows]
    count = arguments.requests
    for port in (ours_port, *peer_ports):
        # Warms up kernels and connections of every server before the first turn.
        load(port, bodies, None, 8, 64)
    single, together, peers = [], [], []
    for _ in range(arguments.turns):
        # In turns, so that other work of the machine meets all sides alike.
        single.append(load(ours_port, bodies, expected, 1, min(500, max(50, count // 10))))
        together.append(load(ours_port, bodies, expected, CLIENTS, count))
        peers.append([load(port, bodies, None, CLIENTS, max(200, count // 4)) for port in peer_ports])
    print(f"{claim}: of {count * arguments.turns:,} requests no answer was lost, another's or other bits", flush=True)
    ours_per_s = _median(together, "per_s")
    found = [
        Row(claim, "one request at a time", "requests/s", _median(single, "per_s"), ours_per_s,
            TARGETS["one request at a time"]),
        Row(f"{claim}, p99", "p50, of ours", "ms", _median(together, "p50_ms"), _median(together, "p99_ms"),
            compared=False),
    ]  # fmt: skip
    if peer_ports:
        best = max(
            ([turn[number] for turn in peers] for number in range(len(peer_ports))),
            key=lambda turns: _median(turns, "per_s"),
        )
        found += [
            Row(claim, "FastAPI + transformers", "requests/s", _median(best, "per_s"), ours_per_s,
                TARGETS["FastAPI + transformers"]),
            Row(f"{claim}, p99", "FastAPI + transformers", "ms", _median(best, "p99_ms"), _median(together, "p99_ms"),
                lower_is_better=True),
        ]  # fmt: skip
    return found


def _median(turns: list[dict[str, float]], key: str) -> float:
    return statistics.median(turn[key] for turn in turns)


def parser() -> argparse.ArgumentParser:
    out = options(__doc__)
    out.add_argument("--size", default="4 x 312")
    out.add_argument("--requests", type=int, default=3000, help="of 64 clients, each turn")
    out.add_argument("--joined", type=int, nargs="+", default=[1, 4], help="texts that one side of a pair is made of")
    out.add_argument("--no-peer", action="store_true")
    out.set_defaults(turns=3)
    return out


if __name__ == "__main__":
    if sys.argv[1:2] == ["--as-peer"]:
        peer(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
    else:
        measure(*sys.argv[1:])
