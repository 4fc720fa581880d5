"""All that a CUDA device has to show, in one command of at most ten minutes: `make bench-cuda`.

    python benchmarks/cuda.py
    python benchmarks/cuda.py --parts tests      # only the tests

First the tests that need a device: every method and head gives the same bytes twice and waits for the device in no
step, attention is that of the CPU, and a trial that a search pauses continues to the same bytes. Then training and
prediction of BERT-base and of 4 layers of 312 in bf16 against transformers, as `train.py` and `predict.py` measure
them. Each part runs in separate processes and is ended, with a sentence, if it takes longer than its share; the others
continue. Nothing is fetched: where AFQMC is not in NLU_DATA, synthetic pairs of its lengths stand in. Without a device
it says so in one sentence and ends with status 0.
"""

import argparse
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

from inputs import CHOSEN, VOCAB, write_synthetic
from table import Row, markdown, versions

from nlu.storage.locations import data_folder

ROOT = Path(__file__).resolve().parents[1]
MINUTES = 9.75
"""for all parts together"""
MEASURED = ("--device", "cuda", "--batch-size", "256", "--turns", "3", "--threads", "8", "--precision", "bf16")
TESTS = (
    "tests/training/test_cuda_memory.py",
    "tests/diagnosis/test_cuda.py",
    "tests/training/test_cuda.py",
    "tests/models/layers/test_attention.py",
    "tests/models/test_encoder.py",
    "tests/launchers/test_cuda.py",
)
WORKERS = ("-n", str(min(12, os.cpu_count() or 1)), "--dist", "load")
"""Most of the time of a test is that of processes that start."""
PARTS: dict[str, tuple[int, tuple[str, ...]]] = {
    "tests": (230, ("-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider", "--durations=5", *WORKERS, *TESTS)),
    "train 4 x 312": (130, ("train", "--sizes", "4 x 312", "--steps", "60", "--no-weaker", *MEASURED)),
    "train BERT-base": (150, ("train", "--sizes", "BERT-base", "--steps", "20", "--no-weaker", *MEASURED)),
    "predict 4 x 312": (110, ("predict", "--sizes", "4 x 312", "--rows", "4000", *MEASURED)),
    "predict BERT-base": (110, ("predict", "--sizes", "BERT-base", "--rows", "4000", *MEASURED)),
}
"""seconds at most, and what is run: Python's arguments, or a script's measure"""


def device_name() -> str | None:
    """Return the name of the device, asked in a separate process; None without a device that torch can use."""
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
    arguments = words if words[0] == "-m" else (__file__, "--measure", str(rows), *words)
    said = ""
    process = subprocess.Popen(
        [sys.executable, *arguments], cwd=ROOT, env=environ, text=True, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip
    assert process.stdout is not None
    ended = False

    def end(*_: object) -> None:
        nonlocal ended
        ended = True
        os.killpg(process.pid, signal.SIGKILL)

    # By an alarm, since this process blocks while it reads the output of a part that is silent.
    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, limit_s)
    try:
        for line in process.stdout:
            said += line
            print(line, end="", flush=True)
        status = process.wait()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        if process.poll() is None:
            end()
    return None if ended else status, said


def measure_rows(script: str, words: list[str], path: Path) -> None:
    """Be the process of a part: measure, and write the rows."""
    import importlib

    rows = importlib.import_module(script).measure(*words)
    path.write_text(json.dumps([asdict(row) for row in rows]))


def run_parts(parts: list[str], folder: Path, limit_s: float) -> tuple[list[Row], list[str], bool]:
    """Run the parts; returns rows, sentences on what else there is to say, and whether all went well."""
    began_s, environ = time.monotonic(), environment(folder)
    rows: list[Row] = []
    sentences: list[str] = []
    well = True
    for name in parts:
        most_s, words = PARTS[name]
        left_s = limit_s - (time.monotonic() - began_s)
        if left_s < 20:
            sentences.append(f"{name}: skipped, since the minutes were used up")
            well = False
            continue
        path, part_began_s = folder / "rows.json", time.monotonic()
        # A part that fails must not leave the rows of the part before it.
        path.unlink(missing_ok=True)
        print(f"== {name}", flush=True)
        status, said = run(words, min(most_s, left_s), environ, path)
        seconds = time.monotonic() - part_began_s
        well &= status == 0
        if name == "tests":
            found = re.findall(r"^(?:=+ )?(\d+ (?:passed|failed|error|skipped).*?)(?: =+)?$", said, re.MULTILINE)
            sentences.append(f"tests: {found[-1] if found else 'no summary'}")
            sentences += re.findall(r"^(?:FAILED|ERROR) .*$", said, re.MULTILINE)
        if status is None:
            sentences.append(f"{name}: ended after {seconds:.0f} s, its share of the time")
        elif status and name != "tests":
            sentences.append(f"{name}: failed with status {status}: {(said.strip().splitlines() or ['silent'])[-1]}")
        if path.is_file():
            rows += [Row(**row) for row in json.loads(path.read_text())]
    sentences.append(f"{(time.monotonic() - began_s) / 60:.1f} minutes in all")
    return rows, sentences, well


def main() -> None:
    """Run the parts, print what came of them and, if asked to, write it."""
    if sys.argv[1:2] == ["--measure"]:
        measure_rows(sys.argv[3], sys.argv[4:], Path(sys.argv[2]))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--minutes", type=float, default=MINUTES, help=f"at most, for all parts; {MINUTES}")
    arguments = parser.parse_args()
    device = device_name()
    if device is None:
        print("torch sees no CUDA device here, so nothing was tested or measured")
        return
    print(f"{device}; {versions()}", flush=True)
    with tempfile.TemporaryDirectory(prefix="nlu-cuda-") as name:
        rows, sentences, well = run_parts(arguments.parts, Path(name), 60 * arguments.minutes)
    print("\n" + markdown(rows) + "\n" + "\n".join(sentences))
    sys.exit(0 if well else 1)


if __name__ == "__main__":
    main()
