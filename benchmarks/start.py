"""Start-up: wall time from the start of a process to its first optimizer step, less the bare cost of `import torch`.

    python benchmarks/start.py

Ours is the command as a user types it, `python -m nlu.train`, with 4 layers of width 312 on AFQMC, store and weights
cached; the step counts as done when its row stands in train.tsv. The peer is the script that a user of the HF Trainer
writes, run as this file with --as-peer: imports, cached weights, cached tokenized Arrow data set, Trainer, first step.
Files are in the page cache for all of them, since each is run once before it is measured.
"""

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import options
from afqmc import PadTo, peer_arguments, peer_model, rows_for_peer, stored_set
from inputs import announce, data_overrides, vocab_path
from table import Row, show

LIMIT_S = 2.5
POLL_S = 0.004
TIMEOUT_S = 300
ROOT = Path(__file__).resolve().parents[1]


def until(command: list[str], done: Callable[[], bool], environment: dict[str, str]) -> float:
    """Start a command, return the seconds until `done()`, and kill it. Raises SystemExit where it ends before that."""
    with tempfile.TemporaryFile() as said:
        began_s = time.perf_counter()
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=said, stderr=said)
        try:
            while not done():
                # Asked again after the end, since the last thing that a process does may be the sign.
                if process.poll() is not None and not done():
                    said.seek(0)
                    raise SystemExit(f"{' '.join(command)} ended too early:\n{said.read().decode()[-2000:]}")
                if time.perf_counter() - began_s > TIMEOUT_S:
                    raise SystemExit(f"{' '.join(command)}: no step within {TIMEOUT_S} s")
                time.sleep(POLL_S)
            return time.perf_counter() - began_s
        finally:
            process.kill()
            process.wait()


def import_torch(environment: dict[str, str]) -> float:
    """Return the seconds of a process that imports torch and does nothing else."""
    began_s = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import torch"], cwd=ROOT, env=environment, check=True)
    return time.perf_counter() - began_s


def native(folder: Path, environment: dict[str, str]) -> float:
    """Return the seconds until the first row of train.tsv stands."""
    run_dir = folder / "run"
    shutil.rmtree(run_dir, ignore_errors=True)
    table = run_dir / "train.tsv"
    command = [
        sys.executable, "-m", "nlu.train", "model=bert_tiny", *data_overrides(), f"tokenizer.vocab={vocab_path()}",
        f"model.pretrained={folder}/weights", "trainer.device=cpu", "precision=fp32", "trainer.log_interval=1st",
        f"hydra.run.dir={run_dir}",
    ]  # fmt: skip
    return until(command, lambda: table.is_file() and table.read_bytes().count(b"\n") >= 2, environment)


def peer(folder: Path, environment: dict[str, str]) -> float:
    """Return the seconds until the peer's script says that its first step is done."""
    mark = folder / "peer-mark"
    mark.unlink(missing_ok=True)
    return until([sys.executable, __file__, "--as-peer", str(folder)], mark.is_file, environment)


def run_peer(folder: Path) -> None:
    """The peer's script: what stands in a user's file, and a mark at the end of the first step."""
    from datasets import load_from_disk
    from transformers import BertForSequenceClassification, Trainer, TrainerCallback

    class Mark(TrainerCallback):
        def on_step_end(self, *arguments: object, **named: object) -> None:
            (folder / "peer-mark").touch()

    trainer = Trainer(
        model=BertForSequenceClassification.from_pretrained(folder / "weights"),
        args=peer_arguments(batch_size=32, device="cpu", bf16=False, max_steps=1000,
                            train_sampling_strategy="group_by_length"),
        data_collator=PadTo(), train_dataset=load_from_disk(str(folder / "rows")), callbacks=[Mark()],
    )  # fmt: skip
    trainer.train()


def prepare(folder: Path) -> None:
    """Write weights that both sides read, and the peer's data set, in a process whose imports do not matter."""
    from datasets import Dataset

    peer_model("4 x 312").save_pretrained(folder / "weights")
    shutil.copy(vocab_path(), folder / "weights" / "vocab.txt")
    rows = rows_for_peer(stored_set("train"))
    Dataset.from_list([{**row, "length": len(row["input_ids"])} for row in rows]).save_to_disk(str(folder / "rows"))


def parser() -> argparse.ArgumentParser:
    out = options.parser(__doc__)
    out.add_argument("--no-peer", dest="peer", action="store_false", help="leave out the peer")
    out.add_argument("--as-peer", metavar="FOLDER", type=Path, help="be the peer's script, with what stands in FOLDER")
    out.add_argument("--prepare", metavar="FOLDER", type=Path, help="only write what both sides read")
    return out


def measure(*words: str) -> list[Row]:
    """Measure in turns; `words` are as on the command line."""
    arguments = parser().parse_args(words)
    if arguments.as_peer or arguments.prepare:
        run_peer(arguments.as_peer) if arguments.as_peer else prepare(arguments.prepare)
        return []
    announce()
    environment = {**os.environ, "OMP_NUM_THREADS": str(arguments.threads), "PYTHONPATH": str(ROOT)}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        command = [sys.executable, __file__, "--prepare", name]
        subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        sides: dict[str, Callable[[], float]] = {
            "torch": lambda: import_torch(environment),
            "ours": lambda: native(folder, environment),
        }
        if arguments.peer:
            sides["peer"] = lambda: peer(folder, environment)
        for side in sides.values():
            side()
        found = {key: [] for key in sides}
        for _ in range(arguments.turns):
            for key, side in sides.items():
                found[key].append(side())
    medians_s = {key: statistics.median(values) for key, values in found.items()}
    print("start: " + ", ".join(f"{key} {value:.2f} s" for key, value in medians_s.items()), flush=True)
    more_s = {key: value - medians_s["torch"] for key, value in medians_s.items()}
    rows = [
        Row(
            "start, 4 x 312: first step, less import torch", "HF Trainer", "s", more_s.get("peer"), more_s["ours"],
            lower_is_better=True, limit=LIMIT_S,
        )
    ]  # fmt: skip
    show(rows)
    return rows


if __name__ == "__main__":
    measure(*sys.argv[1:])
