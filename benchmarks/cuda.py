"""All that a CUDA device has to show, in one command of at most ten minutes: `make bench-cuda`.

    python benchmarks/cuda.py                          # writes benchmarks/CUDA.md
    python benchmarks/cuda.py --device cpu             # the same parts with tiny sizes, before there is a device
    python benchmarks/cuda.py --parts tests "train BERT-base"    # some parts; written where --write says

First the tests that need a device: every method and head gives the same bytes twice and waits for the device in no
step, attention is that of the CPU, the compiled step is the eager one, and a trial that a search pauses continues to
the same bytes. Then a compiled run is killed and its bytes are compared, a step is profiled, eager and compiled, and
training and prediction of BERT-base and of 4 layers of 312 in bf16 are measured against transformers, eager and
compiled, as `train.py` and `predict.py` do it.

Each part runs in separate processes and is ended, with a sentence, if it takes longer than its share; the others
continue, and what was found is written after each. A compiled side that fails is left out, and the eager ones are
still compared. Nothing is fetched: where AFQMC is not in NLU_DATA, synthetic pairs of its lengths stand in. Without a
device it says so in one sentence and ends with status 0.
"""

import argparse
import importlib
import json
import os
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from afqmc import TINY, options
from inputs import CHOSEN, VOCAB, announce, write_synthetic
from table import Row, commit, description, fast_precision, markdown, show, versions
from train import WARM_UP_STEPS, WARM_UP_STEPS_ON_A_DEVICE, paced_command, training_overrides
from turns import Measure, Side, Turns, at, compiling, with_batches

from nlu.storage.locations import data_folder

ROOT = Path(__file__).resolve().parents[1]
PAGE, KILL = ROOT / "benchmarks" / "CUDA.md", "benchmarks/kill.py"
DIRECT = ("-m", KILL)
"""how the words of a part begin that are Python's arguments"""
MINUTES = {"cuda": 9.75, "cpu": 60}
"""for all parts together"""
MEASURED = ("profile", "train", "predict")
PARTS = ["tests", "kills", *(f"{what} {size}" for what in MEASURED for size in ("4 x 312", "BERT-base"))]
TESTS = (
    "tests/training/test_cuda_memory.py",
    "tests/diagnosis/test_cuda.py",
    "tests/training/test_cuda.py",
    "tests/training/test_cuda_compiled.py",
    "tests/models/layers/test_attention.py",
    "tests/models/test_encoder.py",
    "tests/launchers/test_cuda.py",
)
ON_CPU = {"NLU_COMPILE_ON_CPU": "1", "NLU_TEST_DEVICE": "cpu"}
"""nlu compiles on a CPU and the tests run there, which only this script and tests ask for"""
LONGEST_S, TINY_COUNTS = 400, {"--steps": 2, "--rows": 40}
"""on a CPU: seconds of a part, and how much is measured"""
STARTING = 0.65
"""of the share of a part: the longest that a compiled side may take to be ready"""
GRACE_S = 8
"""of the share of a part, in which it may say why it is late"""
TRACED = 3
"""steps under the profiler"""
OPERATOR, LAUNCH = re.compile(r"\w+::\w+$"), re.compile(r"cu(da)?(Launch|GraphLaunch)")
"""names of events: an operator of a library, and a call that starts a kernel or a graph of them"""
PROFILE = {
    "operators": ("operators started", "operators"), "host_ms": ("host's time in the call", "ms"),
    "step_ms": ("time", "ms"), "launches": ("launches", "calls"), "kernels": ("kernels started", "kernels"),
    "busy": ("share with a busy device", "%"),
}  # fmt: skip
"""figures of a step, with their units; those of a device are 0 without one"""
Part = tuple[int, tuple[str, ...]]


def parts_of(device: str) -> dict[str, Part]:
    """Return the parts by name: seconds at most, and what is run: Python's arguments, or a script's measure.

    On a CPU they are the same with tiny sizes, and have more time, since a processor takes long to compile.
    """
    small = device == "cpu"
    # Most of the time of a test is that of processes that start.
    pytest = ("-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider", "--durations=5", "--dist", "load")
    precision = fast_precision() if small else "bf16"
    common = ("--device", device, "--precision", precision, "--batch-size", *(("4", "8") if small else ("32", "256")))
    common += ("--turns", "1" if small else "3", "--threads", "1" if small else "8")

    def measured(script: str, size: str, amount: str, count: int) -> tuple[str, ...]:
        size, count = (TINY, TINY_COUNTS[amount]) if small else (size, count)
        return (script, "--sizes", size, amount, str(count), *common)

    parts: dict[str, Part] = {
        "tests": (120, (*pytest, "-n", str(min(12, os.cpu_count() or 1)), *TESTS)),
        "kills": (80, (
            KILL, "--kills", "1", "--accumulation", "2", "--devices", "1",
            "--precision", precision, "--override", f"trainer.device={device}", "trainer.compile=true",
        )),
        "profile 4 x 312": (35, measured("cuda", "4 x 312", "--steps", 20)),
        "profile BERT-base": (50, measured("cuda", "BERT-base", "--steps", 20)),
        "train 4 x 312": (75, measured("train", "4 x 312", "--steps", 60)),
        "train BERT-base": (95, measured("train", "BERT-base", "--steps", 20)),
        "predict 4 x 312": (60, measured("predict", "4 x 312", "--rows", 4000)),
        "predict BERT-base": (70, measured("predict", "BERT-base", "--rows", 4000)),
    }  # fmt: skip
    return {name: (LONGEST_S, words) for name, (_, words) in parts.items()} if small else parts


def device_name(device: str) -> str | None:
    """Return the name of the device, asked in a separate process; None without one that torch can use."""
    if device == "cpu":
        return description(1)
    ask = "import torch; print(torch.cuda.get_device_name() if torch.cuda.is_available() else '')"
    command = [sys.executable, "-c", ask]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"torch does not start:\n{done.stderr}")
    return done.stdout.strip() or None


def environment(folder: Path) -> dict[str, str]:
    """Return the environment of all parts: this checkout, a separate cache, and data that need not be fetched."""
    paths = [str(ROOT), str(ROOT / "launchers"), *filter(None, [os.environ.get("PYTHONPATH")])]
    found = {
        **os.environ, "PYTHONPATH": os.pathsep.join(paths), "NLU_CACHE": str(folder / "cache"),
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8", "HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1",
    }  # fmt: skip
    if CHOSEN in found:
        return found
    vocab = data_folder() / "bert_base_chinese_vocab" / "vocab.txt"
    if (data_folder() / "AFQMC" / "train.json").is_file() and vocab.is_file():
        return {**found, CHOSEN: "afqmc", VOCAB: str(vocab.resolve())}
    print(f"AFQMC or its vocabulary is not in {data_folder()}; synthetic pairs of its lengths stand in", flush=True)
    return {**found, **write_synthetic(folder / "synthetic", random.Random(0))}


def run(words: tuple[str, ...], limit_s: float, environ: dict[str, str], rows: Path) -> tuple[int | None, str]:
    """Run a part, showing what it says; returns its status, or None where it was ended, and all that it said."""
    arguments = words if words[0] in DIRECT else (__file__, "--measure", str(rows), *words)
    said = ""
    process = subprocess.Popen(
        [sys.executable, *arguments], cwd=ROOT, env=environ, text=True, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip
    assert process.stdout is not None
    ended = False

    def end(*_: object) -> None:
        nonlocal ended
        if ended:
            os.killpg(process.pid, signal.SIGKILL)
            return
        # Interrupted first, since the tests then say what has failed so far.
        ended = True
        process.send_signal(signal.SIGINT)
        signal.setitimer(signal.ITIMER_REAL, GRACE_S)

    # By an alarm, since this process blocks while it reads the output of a part that is silent.
    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, max(1.0, limit_s - GRACE_S))
    try:
        for line in process.stdout:
            said += line
            print(line, end="", flush=True)
        status = process.wait()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    return None if ended else status, said


def measure_rows(script: str, words: list[str], path: Path) -> None:
    """Be the process of a part: measure, and write the rows."""
    rows = importlib.import_module(script).measure(*words)
    path.write_text(json.dumps([asdict(row) for row in rows]))


class StepProfile:
    """Profiles a training loop that runs on by itself, from the end of one step to the end of a later one."""

    def __init__(self, turns: Turns, *, steps: int, device: str):
        self._turns, self._steps, self._on_cuda = turns, steps, device == "cuda"
        self._loop = self._segments()
        next(self._loop)

    def after_step(self, real_tokens: int, host_s: float) -> None:
        """Count a step, in which the host spent so long; wait for the next turn where a profile is complete."""
        self._loop.send(host_s)

    def _segments(self) -> Iterator[Any]:
        for _ in range(WARM_UP_STEPS_ON_A_DEVICE if self._on_cuda else WARM_UP_STEPS[TINY]):
            yield
        while True:
            self._turns.wait()
            host_s = 0.0
            began_s = time.perf_counter()
            for _ in range(self._steps):
                host_s += yield
            self._synchronize()
            step_s = (time.perf_counter() - began_s) / self._steps
            from torch.profiler import ProfilerActivity, profile

            activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if self._on_cuda else [])]
            with profile(activities=activities) as profiler:
                for _ in range(TRACED):
                    yield
                self._synchronize()
            self._turns.report(host_ms=1e3 * host_s / self._steps, step_ms=1e3 * step_s, **counts(profiler, step_s))

    def _synchronize(self) -> None:
        if self._on_cuda:
            import torch

            torch.cuda.synchronize()


def counts(profiler: Any, step_s: float) -> Measure:
    """Return what a step started, and the share of its time, measured without the profiler, in which the device is
    busy."""
    from torch.autograd import DeviceType

    on_host = [event.name for event in profiler.events() if event.device_type == DeviceType.CPU]
    on_device = [
        event for event in profiler.events() if event.device_type == DeviceType.CUDA and not event.is_user_annotation
    ]
    kernels = [event for event in on_device if not event.name.startswith(("Memcpy", "Memset"))]
    busy_s = sum(event.self_device_time_total for event in on_device) / 1e6
    return {
        "operators": sum(map(bool, map(OPERATOR.match, on_host))) / TRACED,
        "launches": sum(map(bool, map(LAUNCH.match, on_host))) / TRACED,
        "kernels": len(kernels) / TRACED,
        "busy": 100 * busy_s / TRACED / step_s,
    }


def profiled(turns: Turns, *, size: str, steps: int, threads: int, **run: Any) -> None:
    """A side that profiles the steps of `python -m nlu.train`."""
    paced_command(StepProfile(turns, steps=steps, device=run["device"]), training_overrides(size, **run), threads)


def parser() -> argparse.ArgumentParser:
    out = options(__doc__, steps_on_a_device=True)
    out.add_argument("--steps", type=int, required=True, help="whose time is taken, before three are traced")
    return out


def measure(*words: str) -> list[Row]:
    """Profile a step of every asked-for size, eager and compiled; `words` are as those of train.py."""
    arguments = parser().parse_args(words)
    announce()
    rows = []
    for size in arguments.sizes:
        common = {name: getattr(arguments, name) for name in ("steps", "threads", "device", "precision")}
        sides = {
            name: partial(Side, profiled, size=size, compiled=name != "nlu", **common)
            for name in ("nlu", "nlu, compiled")
        }
        found, medians = with_batches(sides, {}, arguments)
        for batch_size in arguments.batch_size:
            eager, compiled = (medians.get(at(name, batch_size)) for name in sides)
            late = compiling(found, at("nlu, compiled", batch_size)) if compiled else ""
            for key, (what, unit) in PROFILE.items():
                if eager[key]:
                    claim = at(f"{what} of a training step, {size}", batch_size)
                    ours, theirs = (compiled[key], eager[key]) if compiled else (eager[key], None)
                    worse = key != "busy"
                    rows.append(Row(claim, "nlu, eager", unit, theirs, ours, lower_is_better=worse, compiling=late))
    show(rows)
    return rows


def run_parts(
    parts: dict[str, Part], folder: Path, device: str, limit_s: float, rows: list[Row], sentences: list[str]
) -> Iterator[bool]:
    """Run the parts, adding to the rows and sentences; yields after each whether it went well."""
    began_s, environ = time.monotonic(), environment(folder) | (ON_CPU if device == "cpu" else {})
    to_come_s = sum(most_s for most_s, _ in parts.values())
    for name, (most_s, words) in parts.items():
        to_come_s -= most_s
        # What earlier parts have left of their shares is for whoever needs it.
        share_s = limit_s - (time.monotonic() - began_s) - to_come_s
        path, part_began_s = folder / "rows.json", time.monotonic()
        # A part that fails must not leave the rows of the part before it.
        path.unlink(missing_ok=True)
        print(f"== {name}, at most {share_s:.0f} s", flush=True)
        # A cache of a part's own, so that each says what compiling takes; a CPU would take too long.
        own = folder / "inductor" / ("" if device == "cpu" else name.replace(" ", "-"))
        if words[0] not in DIRECT:
            words = (*words, "--compiled", f"{STARTING * share_s:.0f}")
        status, said = run(words, share_s, environ | {"TORCHINDUCTOR_CACHE_DIR": str(own)}, path)
        seconds = time.monotonic() - part_began_s
        left_out = re.findall(r"^left out: .*$", said, re.MULTILINE)
        outcome = "ended at its share of the time" if status is None else f"ended with status {status}"
        last = (said.strip().splitlines() or ["silent"])[-1].strip("= ")
        told = f": {last}" if status != 0 or words[0] in DIRECT else ""
        sentences.append(f"{name}: {outcome} after {seconds:.0f} s{told}")
        sentences += [f"{name}: {sentence}" for sentence in left_out]
        sentences += re.findall(r"^(?:FAILED|ERROR) .*$", said, re.MULTILINE)
        if path.is_file():
            rows += [Row(**row) for row in json.loads(path.read_text())]
        yield status == 0 and not left_out


def page(rows: list[Row], sentences: list[str], where: str, device: str) -> str:
    """Return what was found as a page, which the site of the docs takes without a link to it."""
    command = shlex.join(["python", "benchmarks/cuda.py", *sys.argv[1:]])
    head = f"`{command}` at {commit()}, {datetime.now(UTC):%Y-%m-%d}, on {where}; {versions()}."
    ratios = {
        "cuda": "Ratios are how many times better ours is, from medians of alternating turns.",
        "cpu": "Sizes are tiny: this shows that every part runs, and its figures say nothing of speed.",
    }[device]
    listed = "".join(f"- {sentence}\n" for sentence in sentences)
    return f"---\norphan: true\n---\n# CUDA\n\n{head} {ratios}\n\n{markdown(rows)}\n{listed}"


def main() -> None:
    """Run the parts, print what came of them and write it."""
    if sys.argv[1:2] == ["--measure"]:
        measure_rows(sys.argv[3], sys.argv[4:], Path(sys.argv[2]))
        return
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--device", choices=list(MINUTES), default="cuda")
    asked.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    asked.add_argument("--minutes", type=float, help="at most, for all parts; 9.75 on a device")
    asked.add_argument("--write", metavar="FILE", type=Path, help=f"by default {PAGE.name}, for all parts on a device")
    arguments = asked.parse_args()
    device = device_name(arguments.device)
    if device is None:
        print("torch sees no CUDA device here, so nothing was tested or measured; --device cpu tries the same parts")
        return
    if (compiler := shutil.which(os.environ.get("CC", "cc")) or shutil.which("gcc")) is None:
        print("there is no C compiler (CC, cc or gcc), without which torch.compile fails")
    print(f"{device}; {versions()}; C compiler: {compiler}", flush=True)
    path = arguments.write or (PAGE if arguments.device == "cuda" and arguments.parts == PARTS else None)
    chosen = {name: part for name, part in parts_of(arguments.device).items() if name in arguments.parts}
    with tempfile.TemporaryDirectory(prefix="nlu-cuda-") as name:
        folder, limit_s = Path(name), 60 * (arguments.minutes or MINUTES[arguments.device])
        rows: list[Row] = []
        sentences: list[str] = []
        well = True
        for passed in run_parts(chosen, folder, arguments.device, limit_s, rows, sentences):
            well &= passed
            # After each part, since all of this may be ended from without.
            if path is not None:
                path.write_text(page(rows, sentences, device, arguments.device), encoding="utf-8")
    print("\n" + markdown(rows) + "\n" + "\n".join(sentences))
    sys.exit(0 if well else 1)


if __name__ == "__main__":
    main()
